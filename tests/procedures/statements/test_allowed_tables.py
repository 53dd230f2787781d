"""Which tables a statement may touch."""

from __future__ import annotations

from sqlalchemy import (
    delete,
    insert,
    select,
)

from procedures import Database, Transaction
from procedures.execution.executor import Status
from tests.procedures.statements.statement_bench import MakeSite, StatementBench


def test_tables_are_held_to_where_a_procedure_runs(bench: StatementBench) -> None:
    """One partition writes its own rows, all partitions write replicated rows, a read writes none."""
    rows, shared = bench.rows, bench.shared
    ok = Status.OK
    assert bench.run(lambda tx: tx.execute(insert(rows).values(id=1)).rowcount)[0] == ok
    assert bench.run(lambda tx: tx.execute(select(shared.c.id)).rowcount)[0] == ok
    assert "replicated" in bench.run(lambda tx: tx.execute(insert(shared).values(id=1)))[1]["message"]
    assert bench.run(lambda tx: tx.execute(insert(shared).values(id=1)).rowcount, "everywhere")[0] == ok
    assert "partitioned" in bench.run(lambda tx: tx.execute(select(rows.c.id)), "everywhere")[1]["message"]
    assert "partitioned" in bench.run(lambda tx: tx.execute(delete(rows)), "everywhere")[1]["message"]
    bench.body = lambda tx: tx.execute(delete(rows))
    _, answers = bench.site.executor.read([(bench.site.numbers["look"], [1])], catalog=1)
    assert b"read_only" in answers[0][1]


def test_everywhere_has_no_partition_and_the_same_chance(make_site: MakeSite) -> None:
    """A call that runs on all partitions sees the same random numbers on each, and none has a partition number."""
    db = Database("copies")

    @db.procedure(partition_by=None)
    def draw(tx: Transaction) -> list[str]:
        return [str(tx.random.random()), str(tx.uuid()), tx.now.isoformat(), str(tx.txn_id)]

    @db.procedure(partition_by=None)
    def where(tx: Transaction) -> int:
        return tx.partition

    @db.procedure(partition_by="n")
    def draw_one(tx: Transaction, n: int) -> list[str]:
        return [str(tx.random.random()), str(tx.partition)]

    sites = [make_site(db, partition=number) for number in (0, 1)]
    one, other = (site.call("draw") for site in sites)
    assert one == other
    assert all(site.call("where")[0] == Status.FAILED for site in sites)
    assert sites[0].call("draw_one", n=1)[1][0] != sites[1].call("draw_one", n=1)[1][0]
    assert sites[1].call("draw_one", n=1)[1][1] == "1"
