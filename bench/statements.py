"""Statements in a procedure: prepared at module level, and built in the call from Python values.

Run: `python bench/statements.py [--quick]`. Both run in one call, in turns. What SQLAlchemy takes to build a statement, and to
make the cache key of its structure, is measured beside: no cache of ours avoids either.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from sqlalchemy import Column, Integer, String, bindparam, insert, select, update

from bench._common import Bench, make_parser
from procedures import Database, Transaction
from procedures.execution.executor import Executor, Invocations
from procedures.statements.statement_forms import structure_of
from procedures.storage.state import PartitionState

ROUNDS = 200
RUNS = 100  # of one statement in a round; the best round counts

db = Database("statements")
T = db.table("t", Column("id", Integer, primary_key=True), Column("name", String), Column("n", Integer), partition_by="id")
FETCH = select(T.c.name, T.c.n).where(T.c.id == bindparam("i"))
CHANGE = update(T).where(T.c.id == bindparam("i")).values(n=T.c.n + bindparam("d"))
FOUND: dict[str, float] = {}
ROUNDS_OF = [ROUNDS]


@db.procedure(partition_by="n")
def measure(tx: Transaction, n: int) -> None:
    """Fills `FOUND` with microseconds per statement; in the second call, when prepared statements are known."""
    if n == 0:
        tx.execute(insert(T), {"id": 1, "name": "x", "n": 0})
    cases: dict[str, Callable[[], Any]] = {
        "select, prepared": lambda: tx.execute(FETCH, i=1).first(),
        "select, built in the call": lambda: tx.execute(select(T.c.name, T.c.n).where(T.c.id == 1)).first(),
        "select, built and not run": lambda: select(T.c.name, T.c.n).where(T.c.id == 1),
        "select, built, with its key": lambda: structure_of(select(T.c.name, T.c.n).where(T.c.id == 1)),
        "update, prepared": lambda: tx.execute(CHANGE, i=1, d=1),
        "update, built in the call": lambda: tx.execute(update(T).where(T.c.id == 1).values(n=T.c.n + 1)),
        "update, built and not run": lambda: update(T).where(T.c.id == 1).values(n=T.c.n + 1),
        "update, built, with its key": lambda: structure_of(update(T).where(T.c.id == 1).values(n=T.c.n + 1)),
    }
    for _ in range(ROUNDS_OF[0]):
        for name, run in cases.items():
            began = time.perf_counter()
            for _ in range(RUNS):
                run()
            took = (time.perf_counter() - began) / RUNS * 1e6
            FOUND[name] = min(took, FOUND.get(name, took))


def main() -> None:
    options = make_parser("statements", "Prepared statements beside those that a call builds.").parse_args()
    bench = Bench("statements", options.seed, options.quick)
    bench.head()
    ROUNDS_OF[0] = 20 if options.quick else ROUNDS
    with tempfile.TemporaryDirectory() as folder:
        state = PartitionState.open(Path(folder) / "0.db", partition=0)
        executor = Executor(state, lambda _: db, digest_rows=True, millis_of=lambda txn: txn >> 21, progress=None)
        executor.apply_schema(index=1, term=1, checksum=0, txn_id=1, statements=db.schema_statements())
        for call in (0, 1):
            FOUND.clear()
            batch = Invocations(2 + call, 1, 0, catalog=1, txn_ids=[2 + call], procedures=[0], params=[[call]], keys=None)
            if executor.apply(batch).bodies != [b"null"]:
                raise SystemExit("the procedure failed")
    for name, took in FOUND.items():
        print(f"{name:32} {took:8.2f} us")
    for kind in ("select", "update"):
        prepared, built, keyed = (FOUND[f"{kind}, {how}"] for how in ("prepared", "built in the call", "built, with its key"))
        bench.ratio(f"{kind}: built in the call / prepared + build and key", built / (prepared + keyed))
        bench.ratio(f"{kind}: built in the call / prepared", built / prepared)
    bench.write()


if __name__ == "__main__":
    main()
