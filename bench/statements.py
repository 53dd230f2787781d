"""Statements in a procedure: prepared at module level, and built in the call from Python values.

Run: `python bench/statements.py [--quick]`. Both run in one call, in turns; and a loop that inserts rows, in the first call of a
process and in the third, when its statement is known to live longer than a call. Measured beside: what SQLAlchemy takes to build
a statement, which no cache of ours avoids, and the keys of its structure: ours, and SQLAlchemy's; and what it costs that keys of
other partitions are refused: the same statements where there is one partition, in turns, and the functions that they enter.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from sqlalchemy import Column, Integer, String, bindparam, delete, insert, select, update

from bench._common import Bar, Bench, make_parser
from bench._in_a_call import run_calls
from procedures import Database, Transaction
from procedures.statements.structure_keys import StructureKeys, structure_by_sqlalchemy

ROUNDS = 4000
LOOP_ROWS = 3000
RUNS = 5  # of one statement in a round; the best round counts

db = Database("statements")
T = db.table("t", Column("id", Integer, primary_key=True), Column("name", String), Column("n", Integer), partition_by="id")
FETCH = select(T.c.name, T.c.n).where(T.c.id == bindparam("i"))
CHANGE = update(T).where(T.c.id == bindparam("i")).values(n=T.c.n + bindparam("d"))
REMOVE = delete(T).where(T.c.id == bindparam("i"))
ADD = insert(T).values(id=bindparam("id"))
KINDS = ("select", "update", "delete")
HERE, GONE = 1, -2  # keys of the first of two partitions; no row has the second
FOUND: dict[str, float] = {}
ENTERED: dict[str, int] = {}
ROUNDS_OF = [ROUNDS]


@db.procedure(partition_by="n")
def measure(tx: Transaction, n: int) -> None:
    """Fills `FOUND` with microseconds per statement; in the second call, when prepared statements are known."""
    if n == 0:
        tx.execute(insert(T), {"id": HERE, "name": "x", "n": 0})
    keys = StructureKeys()
    for kind, (prepared, build) in cases_of(tx).items():
        cases: dict[str, Callable[[], Any]] = {
            "prepared": prepared,
            "built in the call": partial(_after, build, tx.execute),
            "built and not run": build,
            "built, with our key": partial(_after, build, keys.structure_of),
            "built, with SQLAlchemy's key": partial(_after, build, structure_by_sqlalchemy),
        }
        measure_in_turns(kind, cases)


def _after(build: Callable[[], Any], take: Callable[[Any], object]) -> None:
    take(build())


@db.procedure(partition_by="n")
def insert_rows(tx: Transaction, n: int) -> None:
    for number in range(LOOP_ROWS):
        tx.execute(ADD, id=n * LOOP_ROWS + number + 2)


@db.procedure(partition_by="n")
def find_keys(tx: Transaction, n: int) -> None:
    """Fills `FOUND` with microseconds per statement that pins a key, and `ENTERED` with the functions that it enters."""
    for kind, (prepared, _) in cases_of(tx).items():
        FOUND[f"{kind}, pinned"] = FOUND.get(f"{kind}, pinned", 1e9)
        for _ in range(ROUNDS_OF[0] // 4):
            began = time.perf_counter()
            for _ in range(RUNS):
                prepared()
            FOUND[f"{kind}, pinned"] = min(FOUND[f"{kind}, pinned"], (time.perf_counter() - began) / RUNS * 1e6)
        ENTERED[kind] = functions_entered(prepared)


def functions_entered(run: Callable[[], Any]) -> int:
    """Those of Python and of C, `run` among them."""
    entered: list[str] = []
    sys.setprofile(lambda _frame, event, _: entered.append(event) if event in ("call", "c_call") else None)
    run()
    sys.setprofile(None)
    return len(entered) - 1  # without `setprofile`


def pinned_us(partitions: int | None, best: dict[str, float]) -> dict[str, int]:
    """Improves the best microseconds by kind of statement; returns the functions entered."""
    FOUND.clear()
    run_calls(db, "find_keys", calls=2, before=lambda: None, partitions=partitions)
    for kind in KINDS:
        best[kind] = min(best.get(kind, float("inf")), FOUND[f"{kind}, pinned"])
    return dict(ENTERED)


def measure_judging(bench: Bench) -> None:
    alone: dict[str, float] = {}
    judged: dict[str, float] = {}
    entered_alone, entered_judged = pinned_us(None, alone), pinned_us(2, judged)
    for _ in range(3):
        pinned_us(None, alone)
        pinned_us(2, judged)
    for kind in KINDS:
        bench.value(f"{kind}: functions entered, keys not judged", entered_alone[kind], "functions")
        bench.value(f"{kind}: functions entered, keys judged", entered_judged[kind], "functions")
        bench.value(f"{kind}: keys judged", judged[kind], "us")
        bench.ratio(f"{kind}: keys judged / not judged", judged[kind] / alone[kind], Bar(1.1, 1.03, at_most=True))


def loop_us() -> list[float]:
    """Microseconds per row of the first, the second and the third call of `insert_rows` in a process."""
    took: list[float] = []
    began: list[float] = []

    def before() -> None:
        if began:
            took.append((time.perf_counter() - began.pop()) / LOOP_ROWS * 1e6)
        began.append(time.perf_counter())

    run_calls(db, "insert_rows", calls=3, before=before)
    before()
    return took


def cases_of(tx: Transaction) -> dict[str, tuple[Callable[[], Any], Callable[[], Any]]]:
    """Kind of statement -> one that is prepared and runs, and how one is built."""
    return {
        "select": (lambda: tx.execute(FETCH, i=HERE).first(), lambda: select(T.c.name, T.c.n).where(T.c.id == HERE)),
        "update": (lambda: tx.execute(CHANGE, i=HERE, d=1), lambda: update(T).where(T.c.id == HERE).values(n=T.c.n + 1)),
        "delete": (lambda: tx.execute(REMOVE, i=GONE), lambda: delete(T).where(T.c.id == GONE)),
    }


def measure_in_turns(kind: str, cases: dict[str, Callable[[], Any]]) -> None:
    for _ in range(ROUNDS_OF[0]):
        for name, run in cases.items():
            began = time.perf_counter()
            for _ in range(RUNS):
                run()
            took = (time.perf_counter() - began) / RUNS * 1e6
            FOUND[f"{kind}, {name}"] = min(took, FOUND.get(f"{kind}, {name}", took))


def main() -> None:
    options = make_parser("statements", "Prepared statements beside those that a call builds.").parse_args()
    bench = Bench("statements", options.seed, options.quick)
    bench.head()
    ROUNDS_OF[0] = 800 if options.quick else ROUNDS
    run_calls(db, "measure", calls=2, before=FOUND.clear)
    for name, took in FOUND.items():
        print(f"{name:32} {took:8.2f} us")
    for kind in KINDS:
        prepared, built, alone = (FOUND[f"{kind}, {how}"] for how in ("prepared", "built in the call", "built and not run"))
        bench.ratio(f"{kind}: built in the call / prepared", built / prepared)
        bench.ratio(f"{kind}: built and not run / prepared", alone / prepared)
        bench.ratio(f"{kind}: the rest / prepared", (built - alone) / prepared)
    measure_judging(bench)
    first, _, third = (min(took) for took in zip(*(loop_us() for _ in range(3 if options.quick else 10)), strict=True))
    bench.value("a loop of inserts, third call in a process", third, "us a row")
    bench.ratio("a loop of inserts: first call in a process / third", first / third, Bar(2.0, 1.2, at_most=True))
    bench.write()


if __name__ == "__main__":
    main()
