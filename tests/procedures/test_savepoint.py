"""`with tx.savepoint():` rolls back its own block and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Column, Integer, String, exc, func, insert, select, update

from procedures import Database, Transaction
from procedures.errors import EnvironmentFault
from procedures.execution.executor import Status
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]


def blocks() -> Database:
    """Procedures that use savepoints in all ways."""
    db = Database("blocks")
    declare_blocks(db)
    declare_misuse(db)
    return db


def declare_blocks(db: Database) -> None:
    """Blocks that raise and blocks that do not."""
    t = db.table("t", Column("id", Integer, primary_key=True), Column("name", String, nullable=False), partition_by="id")
    ids = select(t.c.id).order_by(t.c.id)

    @db.procedure(partition_by="n")
    def add_what_fits(tx: Transaction, n: int, numbers: list[int]) -> int:
        added = 0
        for number in numbers:
            try:
                with tx.savepoint():
                    tx.execute(insert(t), id=number, name="new")
                    tx.execute(update(t).where(t.c.id == number).values(name="kept" if number % 2 else None))
                added += 1
            except exc.IntegrityError:
                pass
        return added

    @db.procedure(partition_by="n")
    def nested(tx: Transaction, n: int, fail_inner: bool, fail_outer: bool, end: str) -> list[Any]:
        tx.execute(insert(t), id=n, name="outside")
        try:
            with tx.savepoint():
                tx.execute(insert(t), id=n + 1, name="outer")
                try:
                    with tx.savepoint():
                        tx.execute(insert(t), id=n + 2, name="inner")
                        if fail_inner:
                            raise KeyError
                except KeyError:
                    pass
                if fail_outer:
                    raise KeyError
        except KeyError:
            pass
        if end == "abort":
            tx.abort("end")
        if end == "raise":
            raise ValueError
        return tx.scalars(ids)

    @db.procedure(partition_by="n")
    def number_after(tx: Transaction, n: int) -> int:
        try:
            with tx.savepoint():
                tx.execute(insert(t), name="gone")
                raise KeyError
        except KeyError:
            pass
        return int(tx.execute(insert(t), name="stays").inserted_primary_key.id)


def declare_misuse(db: Database) -> None:
    """Blocks that are not ended as they should be, and one in a query."""
    t = db.tables["t"].table

    @db.procedure(partition_by="n")
    def misuse(tx: Transaction, n: int, how: str) -> None:
        first, second = tx.savepoint(), tx.savepoint()
        first.__enter__()
        if how == "left open":
            tx.execute(insert(t), id=n, name=how)
            return
        if how == "twice":
            first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)

    @db.procedure(partition_by="n", read_only=True)
    def count(tx: Transaction, n: int) -> int:
        with tx.savepoint():
            found: int = tx.scalar(select(func.count()).select_from(t))
        return found


def test_block_that_raises_is_rolled_back_alone(make_site: MakeSite) -> None:
    """The call goes on without what the block did; what was before and comes after stays."""
    site = make_site(blocks())
    assert site.call("add_what_fits", n=1, numbers=[1, 2, 3, 3, 5]) == (Status.OK, 3)
    assert site.rows("SELECT * FROM t") == [(1, "kept"), (3, "kept"), (5, "kept")]


@pytest.mark.parametrize(
    ("fail_inner", "fail_outer", "kept"),
    [(False, False, [10, 11, 12]), (True, False, [10, 11]), (False, True, [10]), (True, True, [10])],
)
def test_savepoints_nest(make_site: MakeSite, fail_inner: bool, fail_outer: bool, kept: list[int]) -> None:
    """An inner block ends with the outer one, and a call that fails leaves nothing of either."""
    site = make_site(blocks())
    how = {"n": 10, "fail_inner": fail_inner, "fail_outer": fail_outer}
    assert site.call("nested", **how, end="abort")[0] == Status.ABORTED
    assert site.call("nested", **how, end="raise")[0] == Status.FAILED
    assert site.rows("SELECT * FROM t") == []
    assert site.call("nested", **how, end="return") == (Status.OK, kept)
    assert [id_ for (id_,) in site.rows("SELECT id FROM t")] == kept


def test_number_after_a_block_is_as_if_it_had_not_run(make_site: MakeSite) -> None:
    """A row number that was rolled back is given again."""
    site = make_site(blocks())
    assert [site.call("number_after", n=1) for _ in range(2)] == [(Status.OK, 1), (Status.OK, 2)]


@pytest.mark.parametrize("how", ["twice", "crossed"])
def test_misuse_fails_the_call(make_site: MakeSite, how: str) -> None:
    """A savepoint is entered once, and they end in the reverse order."""
    site = make_site(blocks())
    assert site.call("misuse", n=1, how=how)[1]["type"] == "RuntimeError"
    assert site.call("add_what_fits", n=1, numbers=[1]) == (Status.OK, 1)


def test_savepoint_left_open_ends_with_its_call(make_site: MakeSite) -> None:
    """Its changes are the call's; the next call is not in it."""
    site = make_site(blocks())
    assert site.call("misuse", n=1, how="left open") == (Status.OK, None)
    assert site.call("nested", n=10, fail_inner=False, fail_outer=True, end="return") == (Status.OK, [1, 10])


def test_read_only_procedures_may_use_it(make_site: MakeSite) -> None:
    """It has nothing to roll back there; code that is shared with a writing procedure runs."""
    site = make_site(blocks())
    site.call("add_what_fits", n=1, numbers=[1, 3])
    assert site.executor.read([(site.numbers["count"], [1])], catalog=1)[1] == [(Status.OK, b"2")]


def test_digests_and_states_agree_however_batches_run(make_site: MakeSite) -> None:
    """Straight, with a savepoint per call, one by one, in a group: the same rows, outcomes and digests."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("add_what_fits", {"n": 1, "numbers": [1, 2, 3, 1]}),
        ("nested", {"n": 10, "fail_inner": True, "fail_outer": False, "end": "return"}),
        ("nested", {"n": 20, "fail_inner": False, "fail_outer": True, "end": "return"}),
        ("number_after", {"n": 1}),
        ("misuse", {"n": 90, "how": "left open"}),
    ]
    straight, guarded, grouped, plain = (make_site(blocks()), make_site(blocks()), make_site(blocks()),
                                         make_site(blocks(), digest_rows=False))  # fmt: skip
    first = straight.apply(*calls)
    second = guarded.apply(*calls, ("nested", {"n": 50, "fail_inner": True, "fail_outer": False, "end": "raise"}))
    grouped.executor.begin_group()
    third = grouped.apply(*calls)
    grouped.executor.end_group()
    assert plain.apply(*calls).bodies == first.bodies
    assert first.bodies == second.bodies[:-1] == third.bodies
    assert first.rows_digest == second.rows_digest == third.rows_digest
    assert straight.rows("SELECT * FROM t") == guarded.rows("SELECT * FROM t") == grouped.rows("SELECT * FROM t")


def test_failure_of_the_machine_inside_a_block_ends_the_batch(make_site: MakeSite) -> None:
    """It is no outcome, and the block's end does not touch SQLite, which may have rolled back already."""
    db = blocks()
    t = db.tables["t"].table

    @db.procedure(partition_by="n")
    def fill(tx: Transaction, n: int) -> None:
        with tx.savepoint():
            for number in range(5000):
                tx.execute(insert(t), id=number, name="x" * 1000)

    site = make_site(db)
    site.state.connection.pragma("max_page_count", 40)
    with pytest.raises(EnvironmentFault, match="disk_full"):
        site.call("fill", n=1)
    site.state.connection.pragma("max_page_count", 100_000)
    assert site.call("add_what_fits", n=1, numbers=[1]) == (Status.OK, 1)
