"""A `tx` belongs to one call: kept in a global, it ends with the call that kept it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest
from sqlalchemy import Column, Integer, bindparam, insert, select

from procedures import Database, Transaction
from procedures.execution.executor import Status
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]


def keepers(kept: list[Any]) -> Database:
    """Procedures that keep their `tx`, or something of it, and others that use it."""
    db = Database("keepers")
    table = db.table("notes", Column("id", Integer, primary_key=True), partition_by="id")
    make = insert(table).values(id=bindparam("number"))
    count = select(table.c.id)

    @db.procedure(partition_by="number")
    def keep(tx: Transaction, number: int) -> None:
        tx.execute(make, number=number)
        kept.append(tx)

    @db.procedure(partition_by="number")
    def keep_method(tx: Transaction, number: int) -> None:
        kept.append(tx.execute)

    @db.procedure(partition_by="number")
    def keep_and_raise(tx: Transaction, number: int) -> None:
        keep(tx, number)
        raise ValueError("after the change")

    @db.procedure(partition_by="number")
    def use(tx: Transaction, number: int, what: str) -> Any:
        earlier = kept[0]
        uses: dict[str, Callable[[], Any]] = {
            "execute": lambda: earlier.execute(make, number=number).rowcount,
            "method": lambda: earlier(make, number=number).rowcount,
            "txn_id": lambda: str(earlier.txn_id),
            "now": lambda: str(earlier.now),
            "partition": lambda: earlier.partition,
            "random": lambda: earlier.random.getrandbits(8),
            "uuid": lambda: str(earlier.uuid()),
            "abort": lambda: earlier.abort("mine"),
        }
        return uses[what]()

    @db.procedure(partition_by="number")
    def own(tx: Transaction, number: int) -> int:
        tx.execute(make, number=number)
        return len(tx.execute(count).all())

    @db.procedure(partition_by="number", read_only=True)
    def peek(tx: Transaction, number: int) -> str:
        kept.append(tx)
        return "kept"

    @db.procedure(partition_by="number", read_only=True)
    def peek_kept(tx: Transaction, number: int) -> int:
        return len(kept[0].execute(count))

    return db


@pytest.mark.parametrize("what", ["execute", "txn_id", "now", "partition", "random", "uuid", "abort"])
@pytest.mark.parametrize("together", [True, False], ids=["one_batch", "two_batches"])
def test_kept_context_refuses_every_use(make_site: MakeSite, *, what: str, together: bool) -> None:
    """Whatever a later call does with it fails, names the procedure that kept it, and leaves no trace."""
    site = make_site(keepers([]))
    keep, use = ("keep", {"number": 1}), ("use", {"number": 2, "what": what})
    applied = site.apply(keep, use) if together else [site.apply(keep), site.apply(use)][1]
    assert applied.statuses[-1] == Status.FAILED
    body = orjson.loads(applied.bodies[-1])
    assert (body["type"], "keep" in body["message"]) == ("TransactionClosed", True), body
    assert site.rows("SELECT id FROM notes") == [(1,)]


def test_kept_method_is_a_kept_context(make_site: MakeSite) -> None:
    """A bound method holds its `tx` just as well."""
    site = make_site(keepers([]))
    applied = site.apply(("keep_method", {"number": 1}), ("use", {"number": 2, "what": "method"}))
    assert list(applied.statuses) == [Status.OK, Status.FAILED]


def test_context_kept_by_a_failed_call_is_refused(make_site: MakeSite) -> None:
    """A batch that runs a second time leaves nothing usable of its first run."""
    site = make_site(keepers([]))
    applied = site.apply(
        ("own", {"number": 1}),
        ("keep_and_raise", {"number": 2}),
        ("use", {"number": 3, "what": "execute"}),
        ("own", {"number": 4}),
    )
    assert list(applied.statuses) == [Status.OK, Status.FAILED, Status.FAILED, Status.OK]
    assert site.rows("SELECT id FROM notes") == [(1,), (4,)]


def test_calls_after_a_kept_context_use_their_own(make_site: MakeSite) -> None:
    """The successor of a kept `tx` sees and changes the same rows."""
    site = make_site(keepers([]))
    applied = site.apply(("keep", {"number": 1}), ("own", {"number": 2}))
    assert [bytes(body) for body in applied.bodies] == [b"null", b"2"]


def test_read_only_call_cannot_use_a_kept_context(make_site: MakeSite) -> None:
    """Queries on a site are held to the same."""
    site = make_site(keepers([]))
    numbers = {procedure.name: number for number, procedure in enumerate(site.db.procedure_list)}
    _, answers = site.executor.read([(numbers["peek"], [1]), (numbers["peek_kept"], [1])], catalog=1)
    assert [status for status, _ in answers] == [Status.OK, Status.FAILED]


def test_context_that_is_not_kept_serves_all_calls(make_site: MakeSite) -> None:
    """No object per call: results, aborts, failures and second runs leave the one `tx` in place."""
    seen: set[int] = set()
    db = Database("plain")
    table = db.table("notes", Column("id", Integer, primary_key=True), partition_by="id")
    make = insert(table).values(id=bindparam("number"))

    @db.procedure(partition_by="number")
    def look(tx: Transaction, number: int, fate: str) -> None:
        tx.execute(make, number=number)
        seen.add(id(tx))
        if fate == "abort":
            tx.abort("no")
        if fate == "raise":
            raise ValueError(fate)

    site = make_site(db)
    site.apply(("look", {"number": 1, "fate": "abort"}))
    seen.clear()
    for number in range(10, 40, 3):
        site.apply(*(("look", {"number": number + at, "fate": fate}) for at, fate in enumerate(("", "raise", "abort"))))
    assert len(seen) == 1
