"""Failures of the machine in the middle of a batch: never outcomes, and the state is as before."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import apsw
import pytest
from sqlalchemy import Column, Integer, String, bindparam, insert, select

from procedures import Database, Transaction
from procedures.errors import EnvironmentFault
from procedures.execution.executor import Status
from procedures.statements.call_state import fault_kind
from tests.procedures.sites import Call, Site

MakeSite = Callable[..., Site]
BIG = "x" * 3000


def fragile(break_it: Callable[[], None]) -> Database:
    """Rows of three kilobytes, and procedures that meet what `break_it` does, openly or swallowing it."""
    db = Database("fragile")
    table = db.table("t", Column("id", Integer, primary_key=True), Column("text", String), partition_by="id")
    put = insert(table).values(id=bindparam("number"), text=bindparam("text"))
    look = select(table.c.text).where(table.c.id == bindparam("number"))

    @db.procedure(partition_by="number")
    def store(tx: Transaction, number: int) -> None:
        tx.execute(put, number=number, text=BIG)

    @db.procedure(partition_by="number")
    def break_and_store(tx: Transaction, number: int) -> None:
        break_it()
        tx.execute(put, number=number, text=BIG)

    @db.procedure(partition_by="number")
    def swallow(tx: Transaction, number: int) -> None:
        with contextlib.suppress(Exception):
            break_it()
            tx.execute(put, number=number, text=BIG)
        with contextlib.suppress(Exception):
            tx.execute(look, number=number)

    @db.procedure(partition_by="number")
    def swallow_and_go(tx: Transaction, number: int) -> None:
        break_it()
        with contextlib.suppress(Exception):
            tx.execute(put, number=number, text=BIG)

    @db.procedure(partition_by="number", read_only=True)
    def look_up(tx: Transaction, number: int) -> Any:
        break_it()
        return tx.execute(look, number=number).scalar()

    return db


def store(number: int) -> Call:
    """A call that stores three kilobytes."""
    return "store", {"number": number}


def expect_fault(site: Site, calls: list[Call], kind: str, *, position: int, procedure: str) -> EnvironmentFault:
    """Applies calls that must end in a fault which names the call and leaves everything as it was."""
    before, batch = site.dump(), site.batch(calls)
    with pytest.raises(EnvironmentFault) as caught:
        site.executor.apply(batch)
    fault = caught.value
    assert (fault.kind, fault.position, fault.procedure) == (kind, position, procedure)
    assert fault.txn_id == batch.txn_ids[position]
    assert not site.state.connection.in_transaction
    assert site.dump() == before
    assert site.state.position.index == batch.index - 1
    return fault


@pytest.mark.parametrize("savepoints", [0, 5])
@pytest.mark.parametrize("name", ["break_and_store", "swallow"])
@pytest.mark.parametrize(
    ("error", "kind"), [(MemoryError, "memory"), (RecursionError, "recursion"), (KeyboardInterrupt, "interrupted")]
)
def test_exception_of_the_machine_is_no_outcome(
    make_site: MakeSite, error: type[BaseException], kind: str, name: str, savepoints: int
) -> None:
    """MemoryError, RecursionError and KeyboardInterrupt end the batch, with savepoints and without."""
    failing = True

    def break_it() -> None:
        if failing:
            raise error

    site = make_site(fragile(break_it))
    site.apply(store(1))
    site.executor._savepoint_batches = savepoints
    if name == "break_and_store" or error is KeyboardInterrupt:
        expect_fault(site, [store(2), (name, {"number": 3})], kind, position=1, procedure=name)
    failing = False
    assert list(site.apply(store(2), (name, {"number": 3})).statuses) == [Status.OK, Status.OK]


@pytest.mark.parametrize("name", ["store", "swallow"])
@pytest.mark.parametrize("savepoints", [0, 5])
def test_full_disk_in_mid_batch_leaves_the_state_whole(make_site: MakeSite, name: str, savepoints: int) -> None:
    """SQLITE_FULL ends the batch even if the procedure swallowed it; with space again the same batch runs."""
    site = make_site(fragile(lambda: None))
    site.apply(*[store(number) for number in range(20)])
    pages = site.rows("PRAGMA page_count")[0][0]
    site.state.connection.pragma("max_page_count", pages + 3)
    site.executor._savepoint_batches = savepoints
    calls = [(name, {"number": number}) for number in range(100, 120)]
    before, batch = site.dump(), site.batch(calls)
    with pytest.raises(EnvironmentFault) as caught:
        site.executor.apply(batch)
    assert caught.value.kind == "disk_full"
    assert caught.value.position > 0
    assert caught.value.txn_id == batch.txn_ids[caught.value.position]
    assert site.dump() == before
    site.state.connection.pragma("max_page_count", pages + 1000)
    assert set(site.executor.apply(batch).statuses) == {Status.OK}
    assert len(site.rows("SELECT id FROM t")) == 40


def test_interrupt_in_mid_batch_leaves_the_state_whole(make_site: MakeSite) -> None:
    """SQLITE_INTERRUPT ends the batch at the call that was running."""
    site = make_site(fragile(lambda: None))
    site.apply(*[store(number) for number in range(50)])
    budget = [400]

    def progress() -> bool:
        budget[0] -= 1
        return budget[0] < 0

    site.state.connection.set_progress_handler(progress, 1)
    batch = site.batch([store(number) for number in range(100, 150)])
    with pytest.raises(EnvironmentFault) as caught:
        site.executor.apply(batch)
    site.state.connection.set_progress_handler(None)
    assert caught.value.kind == "interrupted"
    assert caught.value.procedure == "store"
    assert site.rows("SELECT count(*) FROM t") == [(50,)]
    assert set(site.executor.apply(batch).statuses) == {Status.OK}


@pytest.mark.parametrize("savepoints", [0, 5])
def test_swallowed_fault_of_the_last_call_ends_the_batch(make_site: MakeSite, savepoints: int) -> None:
    """A procedure that swallows the failure and returns is no success, even if nothing uses tx after it."""

    def break_it() -> None:
        left = [1]
        # Interrupts one statement, and no later one.
        site.state.connection.set_progress_handler(lambda: bool(left and left.pop()), 1)

    site = make_site(fragile(break_it))
    site.apply(store(1))
    site.executor._savepoint_batches = savepoints
    last = ("swallow_and_go", {"number": 3})
    expect_fault(site, [store(2), last], "interrupted", position=1, procedure="swallow_and_go")


def test_every_interrupt_point_leaves_no_half_batch(make_site: MakeSite) -> None:
    """Interrupted after the n-th step of SQLite, for every n until it ends: nothing or all of the batch is there."""
    site = make_site(fragile(lambda: None))
    done = 0
    kinds: set[str] = set()
    for steps in range(5, 2000, 7):
        left = [steps]

        def progress(left: list[int] = left) -> bool:
            left[0] -= 1
            return left[0] < 0

        batch = site.batch([store(steps * 10 + number) for number in range(3)])
        site.state.connection.set_progress_handler(progress, 1)
        try:
            site.executor.apply(batch)
        except EnvironmentFault as fault:
            kinds.add(fault.kind)
        finally:
            site.state.connection.set_progress_handler(None)
        applied = site.state.position.index == batch.index
        done += applied
        assert site.rows("SELECT count(*) FROM t") == [(3 * done,)]
        assert site.rows("SELECT idx FROM _cmdlog_meta") == [(site.state.position.index,)]
        if done > 3:
            assert kinds == {"interrupted"}
            return
    raise AssertionError("the batch never ended: the handler counts other steps than expected")


def test_fault_in_a_read_names_the_call(make_site: MakeSite) -> None:
    """A read that meets a failure of the machine raises it as well, and the next read works."""
    failing: list[BaseException] = [apsw.IOError("disk I/O error")]

    def break_it() -> None:
        if failing:
            raise failing.pop()

    site = make_site(fragile(break_it))
    site.apply(store(1))
    number = site.numbers["look_up"]
    with pytest.raises(EnvironmentFault) as caught:
        site.executor.read([(number, [1])], catalog=1)
    assert (caught.value.kind, caught.value.procedure) == ("io", "look_up")
    for error in (MemoryError(), RecursionError(), KeyboardInterrupt()):  # of the procedure: no replay has to repeat them
        failing.append(error)
        assert site.executor.read([(number, [1])], catalog=1)[1][0][0] == Status.FAILED
    assert site.executor.read([(number, [1])], catalog=1)[1][0][0] == Status.OK


def test_real_recursion_is_a_fault(make_site: MakeSite) -> None:
    """A procedure that recurses for ever ends the batch, not the process."""

    def deeper() -> None:
        deeper()

    site = make_site(fragile(deeper))
    expect_fault(site, [("break_and_store", {"number": 1})], "recursion", position=0, procedure="break_and_store")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (apsw.FullError(), "disk_full"),
        (apsw.IOError(), "io"),
        (apsw.NoMemError(), "memory"),
        (apsw.InterruptError(), "interrupted"),
        (apsw.CorruptError(), "io"),
        (apsw.ConstraintError(), None),
        (apsw.SQLError(), None),
        (apsw.TooBigError(), None),
        (ValueError(), None),
    ],
)
def test_kinds_of_faults(error: BaseException, kind: str | None) -> None:
    """What SQLite says about the machine is a fault; what it says about the statement is an outcome."""
    assert fault_kind(error) == kind
