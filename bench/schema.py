"""How long changes of a table with many rows take: a column that is added, and a table that is written again.

A column that may be NULL is added to all rows at once, so the pause must not depend on how many there are. The rewrite is what
`op.alter_column` does, from rehearsal to commit. Beside it run the statements that it logged, in the sqlite3 module, on a copy of
the same file with the same settings, in a process of its own: two SQLite libraries in one would drop each other's locks.

Run: `python bench/schema.py [--quick]`. What the figures mean: bench/README.md.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

import apsw
from sqlalchemy import Column, Integer, Numeric, Text

from bench._common import Bar, Bench, in_turns, make_parser, paired, work_directory
from procedures import Database
from procedures.execution.executor import Executor
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState

ROWS: Final = 10_000_000
QUICK_ROWS: Final = 200_000
REWRITE_ROWS: Final = 2_000_000
ROUNDS: Final = 5
PLAIN: Final = """
import json, sqlite3, sys, time
path, statements = sys.argv[1], json.loads(sys.argv[2])
connection = sqlite3.connect(path, isolation_level=None)
for pragma in ("journal_mode = wal", "synchronous = off", "cache_size = -65536", "temp_store = memory"):
    connection.execute(f"PRAGMA {pragma}")
begun = time.perf_counter()
connection.execute("BEGIN IMMEDIATE")
for statement in statements:
    connection.execute(statement)
connection.execute("COMMIT")
print(time.perf_counter() - begun)
"""


def database(scale: int, *more: Column[Any]) -> Database:
    """The application, with sums of so many decimals."""
    db = Database("schema")
    db.table(
        "items",
        Column("id", Integer, primary_key=True),
        Column("name", Text, nullable=False),
        Column("sum", Numeric(12, scale), nullable=False),
        *more,
        partition_by="id",
    )
    return db


def rewriting() -> Database:
    """With two more decimals, by a migration."""
    db = database(4)

    @db.migration("0001_decimals")
    def more_decimals(tx: Any, op: Any) -> None:
        op.alter_column("items", "sum", type_=Numeric(12, 4))

    return db


def make_state(path: Path, rows: int) -> None:
    """A state of the first application with so many rows."""
    db = database(2)
    with contextlib.closing(PartitionState.open(path, partition=0)) as state:
        executor_of(state, db).apply_schema(
            index=1, term=1, checksum=0, txn_id=1, change=StatedChange(tuple(db.schema_statements()))
        )
    with contextlib.closing(apsw.Connection(str(path))) as connection:
        connection.pragma("synchronous", "off")
        connection.execute(
            "WITH RECURSIVE n(i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < ?) "
            "INSERT INTO items (id, name, sum) SELECT i, 'item number ' || i, i % 1000000 FROM n",
            (rows,),
        )
        connection.pragma("wal_checkpoint", "truncate")


def executor_of(state: PartitionState, db: Database) -> Executor:
    """As a site has it."""
    return Executor(state, lambda _version: db, digest_rows=True, millis_of=lambda txn: txn >> 21, progress=None)


def change_state(path: Path, db: Database) -> tuple[float, float, StatedChange]:
    """Seconds of rehearsal and commit, and what was changed."""
    with contextlib.closing(PartitionState.open(path, partition=0)) as state:
        executor = executor_of(state, db)
        begun = time.perf_counter()
        rehearsal = executor.rehearse_change(catalog=1, at=2 << 21, keep=True)
        rehearsed = time.perf_counter()
        if rehearsal is None:
            raise SystemExit("nothing was to be changed")
        executor.apply_schema(index=2, term=1, checksum=0, txn_id=2 << 21, change=rehearsal.change)
        return rehearsed - begun, time.perf_counter() - rehearsed, rehearsal.change


def measure_column(bench: Bench, folder: Path, rows: int) -> None:
    """The pause of a column that is added."""
    bench.section(f"a column that may be NULL, {rows:,} rows")
    path = folder / "column.db"
    make_state(path, rows)
    prepared, committed, change = change_state(path, database(2, Column("note", Text)))
    if len(change.statements) != 1:
        raise SystemExit(f"expected one statement, not {change.statements}")
    bench.value("rehearsal and commit", (prepared + committed) * 1e3, "ms")
    bench.ratio("pause / 50 ms", (prepared + committed) / 0.050, Bar(1, 0.2, at_most=True))


def measure_rewrite(bench: Bench, folder: Path, rows: int, rounds: int) -> None:
    """The rewrite beside its own statements."""
    bench.section(f"two more decimals: the table is written again, {rows:,} rows")
    original, work = folder / "rewrite.db", folder / "work.db"
    make_state(original, rows)
    statements: list[str] = []

    def copied(run: Callable[[], float]) -> Callable[[int], float]:
        def run_on_copy(_round: int) -> float:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{work}{suffix}").unlink(missing_ok=True)
            shutil.copyfile(original, work)
            return rows / run()

        return run_on_copy

    def run_ours() -> float:
        prepared, committed, change = change_state(work, rewriting())
        statements[:] = [sql for migration in change.migrations for step in migration.steps for sql in step]
        return prepared + committed

    def run_plain() -> float:
        done = subprocess.run(
            [sys.executable, "-c", PLAIN, str(work), json.dumps(statements)], check=True, capture_output=True, text=True
        )
        return float(done.stdout)

    copied(run_ours)(0)  # which also says what the other one has to run
    found = in_turns({"migration": copied(run_ours), "sqlite3": copied(run_plain)}, rounds)
    for name, speeds in found.items():
        bench.rates(name, speeds, "rows/s")
    bench.ratio("migration / sqlite3", paired(found["migration"], found["sqlite3"]), Bar(0.5, 0.8))


def main() -> None:
    """Runs both."""
    options = make_parser("schema", "Changes of tables with many rows.").parse_args()
    bench = Bench("schema", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder:
        measure_column(bench, folder, QUICK_ROWS if options.quick else ROWS)
        measure_rewrite(bench, folder, QUICK_ROWS if options.quick else REWRITE_ROWS, 3 if options.quick else ROUNDS)
    bench.write()


if __name__ == "__main__":
    main()
