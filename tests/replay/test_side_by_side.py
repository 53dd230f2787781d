"""Two histories side by side: which call made each row differ, held against a model call by call. No Spark session is needed."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

import cmdlog
from cmdlog.wal.files import RealFiles
from procedures import Database
from procedures.code.bundle import capture_bundle
from replay.fork.fork import START
from replay.spark.base.version_check import versions as versions_here
from replay.spark.jobs.backfill import _orders
from replay.spark.jobs.backfill_task import backfill_partition
from replay.spark.jobs.task_attempt import carry_out
from tests.replay.ledgers import SMALL, Call, Versions, logged_calls

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("executor_here")]
KEYS = 5
CALLS = 150
BOARD = """
from sqlalchemy import Column, Integer, bindparam, delete, insert, select, update
from procedures import Database

db = Database("board")
cells = db.table("cells", Column("id", Integer, primary_key=True), Column("value", Integer, nullable=False), partition_by="id")
GET = select(cells.c.value).where(cells.c.id == bindparam("id_"))
NEW = insert(cells).values(id=bindparam("id_"), value=bindparam("value_"))
SET = update(cells).where(cells.c.id == bindparam("id_")).values(value=bindparam("value_"))
MOVE = update(cells).where(cells.c.id == bindparam("id_")).values(id=bindparam("to_"))
DROP = delete(cells).where(cells.c.id == bindparam("id_"))


def twist(value):
    return value


def write(tx, cell, value):
    if not tx.execute(SET, id_=cell, value_=value).rowcount:
        tx.execute(NEW, id_=cell, value_=value)


@db.procedure(partition_by="cell")
def put(tx, cell: int, value: int) -> int:
    write(tx, cell, twist(value))
    return 0


@db.procedure(partition_by="cell")
def touch(tx, cell: int, value: int) -> int:
    write(tx, cell, value + 1)
    write(tx, cell, value)
    return 1


@db.procedure(partition_by="cell")
def drop(tx, cell: int, value: int) -> int:
    if twist(value) == value:
        tx.execute(DROP, id_=cell)
    return 2


@db.procedure(partition_by="cell")
def risk(tx, cell: int, value: int) -> int:
    write(tx, cell, -1)
    if twist(value) == value:
        tx.abort("no")
    return 3


@db.procedure(partition_by="cell")
def move(tx, cell: int, value: int) -> int:
    if tx.execute(GET, id_=cell + 100).scalar() is None:
        tx.execute(MOVE, id_=cell, to_=cell + 100)
    return 4
"""
OTHER = BOARD.replace("    return value\n\n\ndef write", "    return value + 1 if value == 3 else value\n\n\ndef write")
NAMES = ("put", "touch", "drop", "risk", "move")


@dataclass
class Model:
    """The same calls on dictionaries."""

    twisted: bool
    cells: dict[int, int] = field(default_factory=dict)

    def call(self, name: str, cell: int, value: int) -> None:
        twist = value + 1 if self.twisted and value == 3 else value
        if name == "put":
            self.cells[cell] = twist
        elif name == "touch" or (name == "risk" and twist != value):
            self.cells[cell] = value if name == "touch" else -1
        elif name == "drop" and twist == value:
            self.cells.pop(cell, None)
        elif name == "move" and cell in self.cells and cell + 100 not in self.cells:
            self.cells[cell + 100] = self.cells.pop(cell)


@pytest.fixture(scope="module")
def history(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, str]]:
    """A stopped node, and the procedure of every transaction."""
    folder, rng = tmp_path_factory.mktemp("board") / "node", random.Random(7)
    names: dict[int, str] = {}
    with cmdlog.open(folder, versions.load("board_v1", BOARD), partitions=1, **SMALL) as opened:
        sent = []
        for n in range(CALLS):
            name = NAMES[rng.choice((0, 0, 0, 1, 2, 3, 4))]
            sent.append((name, opened.submit(name, cell=rng.randrange(KEYS), value=rng.randrange(6))))
            if n % 20 == 19:
                for _, answer in sent:
                    answer.exception()
        made = [name for name, _ in sent]
    for call, name in zip(logged_calls(folder), made, strict=True):
        names[call.txn_id] = name
    return folder, names


def run(node: Path, db: Database, work: Path, at: int, until: int | None) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The differing rows, and the row of the task."""
    request = {"paths": [str(node)], "tables": None, "missing": "refuse"}
    for name in ("attempts", "rows", "progress"):
        (work / name).mkdir(parents=True)
    (order,) = _orders(RealFiles(), request, db, capture_bundle(db), fork=at, end=until)
    told = {**orjson.loads(orjson.dumps(order)), "staging": str(work), "versions": versions_here()}
    row = orjson.loads(carry_out(told, backfill_partition))
    assert "error" not in row, row
    path = next(work / file["path"] for file in row["files"] if file["kind"] == "diff")
    return parquet.read_table(path).to_pylist(), row


def modelled(calls: list[Call], names: dict[int, str], at: int, until: int | None) -> dict[int, tuple[Any, Any, int]]:
    """Cell -> value on both sides, and the first call behind which they were not the same; of cells that differ at the end."""
    left, right, first = Model(twisted=False), Model(twisted=False), dict[int, int]()
    for call in calls:
        if until is not None and call.txn_id > until:
            break
        right.twisted = call.txn_id > at
        for side in (left, right):
            side.call(names[call.txn_id], *call.params)
        for cell in {*left.cells, *right.cells}:
            if left.cells.get(cell) != right.cells.get(cell):
                first.setdefault(cell, call.txn_id)
    cells = sorted({*left.cells, *right.cells})
    found = {cell: (left.cells.get(cell), right.cells.get(cell), first.get(cell, 0)) for cell in cells}
    return {cell: of for cell, of in found.items() if of[0] != of[1]}


def test_first_call_is_that_of_the_model(history: tuple[Path, dict[int, str]], versions: Versions, tmp_path: Path) -> None:
    """At every sixth moment: rows that differ for a while and are equal again, rows that are dropped, moved, written by calls
    that abort, and several changes of a row in one batch and in one call; forks and ends that cut batches."""
    node, names = history
    db, calls = versions.load("board_v2", OTHER), logged_calls(node)
    assert any(call.count > 3 for call in calls)
    moments = [(START, None), *((calls[n].txn_id, None) for n in range(5, CALLS, 24)), (START, calls[70].txn_id)]
    moments += [(calls[n].txn_id, calls[n + 31].txn_id) for n in range(8, CALLS - 40, 30)]
    differing = 0
    for number, (at, until) in enumerate(moments):
        rows, task = run(node, db, tmp_path / str(number), at, until)
        found = {row["id"]: (row["old_value"], row["new_value"], row["first_txn_id"]) for row in rows}
        wanted = modelled(calls, names, at, until)
        assert found == wanted, (at, until)
        assert all(row["first_procedure"] == names[row["first_txn_id"]] for row in rows)
        differing += len(wanted)
        behind = [call for call in calls if call.txn_id > at and (until is None or call.txn_id <= until)]
        assert task["outcomes"]["calls"] == len(behind)
    assert differing > 10


def test_same_code_differs_nowhere(history: tuple[Path, dict[int, str]], versions: Versions, tmp_path: Path) -> None:
    """No row, no outcome."""
    rows, task = run(history[0], versions.load("board_v1", BOARD), tmp_path / "work", START, None)
    assert (rows, task["outcomes"]["changed"], task["outcomes"]["first"]) == ([], 0, None)
