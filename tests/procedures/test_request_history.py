"""Retries after a deploy that changed a signature: the stored answer for the same request, a refusal for another one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from procedures import Database, Transaction
from procedures.code.bundle import Bundle
from procedures.code.procedure_versions import catalog_value, facts_of
from procedures.idempotency.request_history import (
    FORMER_MAX,
    JUDGED,
    renamed_hashes,
)
from procedures.wire.sent_request import given_hash


def application(function: Callable[..., Any]) -> Database:
    """With one procedure, `move`."""
    made = Database("moves")
    made.procedure(name="move", partition_by="source")(function)
    return made


def first(tx: Transaction, source: int, target: int, amount: int = 1) -> int:
    """The signature of a log's first version."""
    return amount


def reordered(tx: Transaction, amount: int, target: int, source: int) -> int:
    """The same names."""
    return amount


def swapped(tx: Transaction, target: int, source: int, amount: int = 1) -> int:
    """Two names of one type have changed places."""
    return amount


def renamed(tx: Transaction, amount: int, source: int, receiver: int) -> int:
    """`target` has another name."""
    return amount


def extended(tx: Transaction, source: int, target: int, amount: int = 1, note: str = "") -> int:
    """One more, with a default."""
    return amount


def shortened(tx: Transaction, target: int, source: int) -> int:
    """One less."""
    return 1


def other_default(tx: Transaction, source: int, target: int, amount: int = 2) -> int:
    """Only its default differs."""
    return amount


def stated(*functions: Callable[..., Any]) -> tuple[Database, dict[str, Any]]:
    """The last of these, and the value of its catalog record, after the others."""
    value: dict[str, Any] = {}
    db = Database("moves")
    for version, function in enumerate(functions, 1):
        db = application(function)
        content: dict[str, Any] = {
            "target": "moves:db", "modules": {}, "packages": [], "sql": {},
            "procedures": [{"name": "move", "parameters": list(db.procedures["move"].parameter_names)}],
        }  # fmt: skip
        value = catalog_value(db, Bundle(**content, hash=str(version)), version, value or None, partitions=1)
    return db, value


def hashes(functions: tuple[Callable[..., Any], ...], **params: Any) -> tuple[int, set[int]]:
    """Of a request to the last of these: its hash, and those that stand for it as well."""
    db, value = stated(*functions)
    procedure, requests = db.procedures["move"], facts_of(value).requests
    bound = procedure.bind(params)
    now = given_hash("move", params)
    return now, {now, *renamed_hashes(procedure, requests, bound)}


def stored(function: Callable[..., Any], **params: Any) -> int:
    """The hash of what the client of that version sent."""
    return given_hash("move", params)


@pytest.mark.parametrize("now", [reordered, swapped, extended])
def test_same_request_is_known_under_another_signature(now: Callable[..., Any]) -> None:
    """Its parameters are the same by name."""
    request = {"source": 1, "target": 2, "amount": 3}
    assert stored(first, **request) in hashes((first, now), **request)[1]


def test_request_with_a_renamed_parameter_is_known() -> None:
    """What only one side has, in order, is taken for a renamed parameter, also where others moved."""
    was = stored(first, source=1, target=2, amount=3)
    assert was in hashes((first, renamed), source=1, receiver=2, amount=3)[1]
    assert was not in hashes((first, renamed), source=2, receiver=1, amount=3)[1]


@pytest.mark.parametrize("now", [shortened, other_default])
def test_default_that_is_gone_or_another_one_is_that_of_its_time(now: Callable[..., Any]) -> None:
    """A client that never gave the parameter makes the same request."""
    assert stored(first, source=1, target=2) in hashes((first, now), source=1, target=2)[1]


def test_values_at_the_same_places_under_other_names_are_another_request() -> None:
    """Signatures have seeds of their own: by position these two would be equal."""
    was = stored(first, source=1, target=2, amount=3)
    now, former = hashes((first, swapped), source=2, target=1, amount=3)
    assert was != now
    assert was not in former


def test_new_parameter_with_a_value_is_another_request() -> None:
    """The former code could not be asked for it."""
    request = {"source": 1, "target": 2, "amount": 3}
    assert stored(first, **request) not in hashes((first, extended), **request, note="x")[1]


def test_signature_that_returns_has_its_hashes_again() -> None:
    """After a rollback, requests made before and meanwhile are known."""
    request = {"source": 1, "target": 2, "amount": 3}
    now, former = hashes((first, reordered, first), **request)
    assert now == stored(first, **request)
    assert hashes((first, reordered), **request)[0] in former


def test_log_without_changed_signatures_says_nothing_new() -> None:
    """The hashes are those of the calls themselves."""
    _, value = stated(first, first)
    assert orjson.loads(value["bundle"])["requests"] == {JUDGED: {}}
    assert hashes((first, first), source=1, target=2) == (known := stored(first, source=1, target=2), {known})
    assert value["procedures"][0]["defaults"] == {"amount": 1}


def test_former_signatures_are_bounded() -> None:
    """The oldest are forgotten."""
    orders: list[Callable[..., Any]] = [first, reordered, swapped, renamed, extended, shortened, other_default] * 2
    _, value = stated(*orders)
    assert len(facts_of(value).requests["move"]["former"]) <= FORMER_MAX
