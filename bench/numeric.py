"""Numeric beside Integer: the same prepared statements over a column of each, by kind of statement.

Run: `python bench/numeric.py [--quick]`. Both run in one call, in turns; the best round of each counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from decimal import Decimal
from itertools import count
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from sqlalchemy import Column, Integer, Numeric, bindparam, func, insert, select, update
from sqlalchemy.types import TypeEngine

from bench._common import Bench, make_parser
from bench._in_a_call import run_twice
from procedures import Database, Transaction

ROUNDS = 4000
RUNS = 5  # of one statement in a round
KINDS = ("select by key", "update x + ?", "insert", "sum")

db = Database("numeric")
TYPES: dict[str, TypeEngine[Any]] = {"integer": Integer(), "numeric": Numeric(12, 2)}
TABLES = {
    name: db.table(name, Column("id", Integer, primary_key=True), Column("x", type_), partition_by="id")
    for name, type_ in TYPES.items()
}
STATEMENTS: dict[str, tuple[Any, ...]] = {
    name: (
        select(table.c.x).where(table.c.id == bindparam("i")),
        update(table).where(table.c.id == bindparam("i")).values(x=table.c.x + bindparam("d")),
        insert(table).values(id=bindparam("i"), x=bindparam("v")),
        select(func.sum(table.c.x)).where(table.c.id < bindparam("i")),
    )
    for name, table in TABLES.items()
}
VALUES: dict[str, Any] = {"integer": 1050, "numeric": Decimal("10.50")}
FOUND: dict[str, float] = {}
ROUNDS_OF = [ROUNDS]
_ids = count(1000)


@db.procedure(partition_by="n")
def measure(tx: Transaction, n: int) -> None:
    """Fills `FOUND` with microseconds per statement; in the second call, when prepared statements are known."""
    cases = {f"{kind}, {name}": run for name in TABLES for kind, run in cases_of(tx, name, fill=n == 0).items()}
    for _ in range(ROUNDS_OF[0]):
        for name, run in cases.items():
            began = time.perf_counter()
            for _ in range(RUNS):
                run()
            took = (time.perf_counter() - began) / RUNS * 1e6
            FOUND[name] = min(took, FOUND.get(name, took))


def cases_of(tx: Transaction, name: str, *, fill: bool) -> dict[str, Callable[[], Any]]:
    """Kind of statement -> one that runs; the table has 50 rows below 1000, and those that are inserted."""
    by_key, change, add, total = STATEMENTS[name]
    value, one = VALUES[name], VALUES[name] * 0 + 1
    if fill:
        tx.execute(add, [{"i": i, "v": value} for i in range(50)])
    cases: tuple[Callable[[], Any], ...] = (
        lambda: tx.scalar(by_key, i=1),
        lambda: tx.execute(change, i=1, d=one),
        lambda: tx.execute(add, i=next(_ids), v=value),
        lambda: tx.scalar(total, i=50),
    )
    return dict(zip(KINDS, cases, strict=True))


def main() -> None:
    options = make_parser("numeric", "Numeric beside Integer.").parse_args()
    bench = Bench("numeric", options.seed, options.quick)
    bench.head()
    ROUNDS_OF[0] = 800 if options.quick else ROUNDS
    run_twice(db, FOUND.clear)
    for name, took in FOUND.items():
        print(f"{name:24} {took:8.2f} us")
    for kind in KINDS:
        bench.ratio(f"{kind}: Numeric / Integer", FOUND[f"{kind}, numeric"] / FOUND[f"{kind}, integer"])
    bench.write()


if __name__ == "__main__":
    main()
