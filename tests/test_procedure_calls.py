"""Procedures called by their functions: the same calls as by name, with the function's own types for people and checkers."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog import Call, Database, Embedded, Transaction
from cmdlog.procedure_calls import call_of_item
from tests.client import typed_shop as shop
from tests.client.typed_shop import Kept, Note, labels, put, rate_count, reserve, set_rate
from tests.type_checkers import EACH_CHECKER, marked_lines, wrong_lines
from tests.waiting import PATIENCE_S

NOTE = Note(text="soon", within=timedelta(minutes=90))


def test_embedded_calls_by_function_give_the_functions_types(tmp_path: Path) -> None:
    """Arguments go by position or name, results come back as the function's return type says, and a key makes it once."""
    with cmdlog.open(tmp_path, shop.db, partitions=2) as database:
        assert database.call(put, 1, count=10) == 10
        assert database.call(reserve, 1, 3, note=NOTE) == Kept(7, NOTE)
        assert database.submit(reserve, item=1, count=1).result(PATIENCE_S) == Kept(9, Note(text="-"))
        assert database.call(set_rate, rate=5) is None
        assert database.call(rate_count) == [1, 1]
        assert database.call(labels, item=1, more={"b": [1.5], "a": None}) == {"a": None, "b": [1.5]}
        first = database.invoke(Call.of(put, item=2, count=1).under("order-1"))
        assert database.invoke(Call.of(put, item=2, count=1).under("order-1")) == first
        assert database.call("reserve", item=1, count=3, note={"text": "soon", "within": "PT90M"}) == Kept(7, NOTE)


def test_what_is_no_procedure_is_refused_before_anything_is_placed(tmp_path: Path) -> None:
    """A plain function, a function of two names and arguments twice are named."""
    db = Database("twice")

    def double(tx: Transaction, n: int) -> int:
        return 2 * n

    for name in ("one", "two"):
        db.procedure(partition_by="n", name=name)(double)
    anything: Any = Embedded
    with cmdlog.open(tmp_path, shop.db) as database:
        for give, said in (
            (lambda: database.call(anything.call, item=1), "no procedure"),
            (lambda: database.call(double, n=1), "one and two"),
            (lambda: anything.call(database, put, 1, 2, 3), "takes 2 parameters"),
            (lambda: anything.call(database, put, 1, item=1, count=1), "by position and by name"),
            (lambda: anything.call(database, "put", 1, 2), "by name"),
        ):
            with pytest.raises(TypeError, match=said):
                give()


@pytest.mark.parametrize(
    "item", ["put", (put, {"item": 1}), ("put", "item"), ("put", ["item"]), {"procedure": "put", "params": {}}, 5, ()]
)
def test_what_is_no_item_of_a_batch_is_named(item: Any) -> None:
    """A name alone, a function without `Call.of`, parameters without names: the error says what an item is."""
    with pytest.raises(TypeError, match=r"is no item of a batch: give \(name, parameters\)"):
        call_of_item(item)


def test_items_of_a_batch_are_calls() -> None:
    """A call itself, or its first members."""
    assert call_of_item(Call("put", {"item": 1}, "key")) == call_of_item(("put", {"item": 1}, "key"))
    assert call_of_item(("put", {})) == call_of_item(["put"]) == Call("put")


GOOD = """
from concurrent.futures import Future
from cmdlog import AsyncClient, Call, Client, Embedded
from tests.client.typed_shop import Kept, Note, put, rate_count, reserve, set_rate

def embedded(shop: Embedded) -> int:
    kept: Kept = shop.call(reserve, item=1, count=3, note=Note(text="a"))
    future: Future[int] = shop.submit(put, 1, 2)
    counts: list[int] = shop.call(rate_count)
    shop.call(set_rate, rate=1)
    shop.call("put", item=1, count=2, idempotency_key="a")
    return shop.invoke(Call.of(put, item=1, count=2).under("key")).value + kept.left + future.result() + counts[0]

def client(shop: Client) -> int:
    named = Call("put", {"item": 1, "count": 1})
    kept = named.under("key")
    for answer in shop.batch([Call.of(put, item=1, count=1), ("put", {"item": 1, "count": 1}), named, kept]):
        print(answer)
    return shop.call(put, item=1, count=3) + shop.call(rate_count)[0]

async def later(shop: AsyncClient) -> int:
    result = await shop.invoke(Call.of(put, item=1, count=3), timeout_s=1.0)
    return await shop.call(put, item=1, count=3) + result.value
"""

BAD = """
from cmdlog import AsyncClient, Call, Client, Embedded
from tests.client.typed_shop import put, rate_count, reserve, set_rate

def embedded(shop: Embedded) -> None:
    shop.call(reserve, itme=1, count=3)  # bad
    shop.call(reserve, item="1", count=3)  # bad
    shop.call(reserve, item=1)  # bad
    name: str = shop.call(put, item=1, count=3)  # bad
    one: int = shop.call(rate_count)  # bad
    shop.call(set_rate, rate="1")  # bad
    shop.submit(put, item=1, cuont=2)  # bad
    Call.of(put, item=1, number=2)  # bad

def client(shop: Client) -> str:
    shop.call(put, item=None, count=1)  # bad
    return shop.invoke(Call.of(put, item=1, count=2)).value  # bad

async def later(shop: AsyncClient) -> None:
    await shop.call(put, item=1, cout=1)  # bad
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", EACH_CHECKER)
def test_a_type_checker_sees_wrong_names_and_types(tmp_path: Path, checker: str) -> None:
    """mypy and pyright, both strict, accept what is right, and name each wrong line of what is not."""
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(GOOD)
    bad.write_text(BAD)
    assert wrong_lines(checker, [good, bad]) == marked_lines(bad)
