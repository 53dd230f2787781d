"""Recovery into another number of partitions: the same rows, the same answers under old keys, and calls that find both."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import apsw
import pytest
from sqlalchemy import Column, DateTime, ForeignKey, Index, Integer, LargeBinary, String, bindparam, insert

from cmdlog.errors import Aborted, KeyReused
from cmdlog.node.embedded import Embedded, open_embedded
from cmdlog.wal.files import RealFiles
from cmdlog.wal.ids import txn_tick
from cmdlog.wal.instance import BadSettings
from cmdlog.wal.log import Log
from procedures import Database, Transaction
from procedures.samples import bank, tpcc, voter
from procedures.samples.tpcc.checks import violations
from procedures.slots import partition_by_slot, slot_of
from replay.errors import ReshapeRefused
from replay.plan import make_plan
from replay.rebuild import rebuild
from replay.reshape import Moved
from replay.trust import state_path
from snapshot.catalog import check, list_snapshots

SMALL: Final[dict[str, Any]] = {"segment_bytes": 1 << 20, "segments": 8, "log_reserve_bytes": 64 << 10, "call_bytes_max": 100_000}
FILES: Final = RealFiles()
Call = tuple[str, dict[str, Any]]


def opened(directory: Path, db: Database, **settings: Any) -> Embedded:
    return open_embedded(str(directory), db, **{**SMALL, **settings})


def reshaped(source: Path, out: Path, partitions: int, **given: Any) -> Path:
    """The node `out` made from `source`."""
    rebuild(make_plan(FILES, str(source), use_state="never"), FILES, str(out), workers=0, partitions=partitions, **given)
    return out


def answer_of(node: Embedded, call: Call, key: str | None = None) -> Any:
    """What a caller is told: value and transaction, or the error's kind and text."""
    name, params = call
    try:
        result = node.invoke(name, params, idempotency_key=key)
    except (Aborted, KeyReused) as error:
        return type(error).__name__, str(error)
    return result.value, result.txn_id


def tables(directory: Path, partition: int, db: Database) -> dict[str, list[Any]]:
    """Rows of every table of a partition, in key order."""
    connection = apsw.Connection(state_path(str(directory), partition), flags=apsw.SQLITE_OPEN_READWRITE)
    rows = {name: sorted(connection.execute(f'SELECT * FROM "{name}"')) for name in db.tables}  # noqa: S608
    connection.close()
    return rows


def whole(directory: Path, partitions: int, db: Database) -> dict[str, list[Any]]:
    """Rows of all partitions; each partitioned row is where its slot says, each replicated table is the same everywhere."""
    by_slot, found = partition_by_slot(partitions), [tables(directory, p, db) for p in range(partitions)]
    rows = dict(found[0])
    for name, info in db.tables.items():
        if info.partition_by is None:
            assert all(of[name] == rows[name] for of in found), name
            continue
        at = list(info.table.columns.keys()).index(info.partition_by)
        assert all(by_slot[slot_of(row[at])] == p for p, of in enumerate(found) for row in of[name]), name
        rows[name] = sorted(row for of in found for row in of[name])
    return rows


def bank_calls(seed: int, count: int) -> list[Call]:
    """Transfers, deposits and rates over some branches; some abort."""
    chance = random.Random(seed)
    calls: list[Call] = [("set_rate", {"name": "base", "basis_points": 150})]
    calls += [
        ("open_accounts", {"branch": branch, "first": 1, "count": 4, "savings": 1000, "checking": 500}) for branch in range(12)
    ]
    for _ in range(count):
        branch = chance.randrange(14)  # two of them have no accounts
        one, two = chance.sample(range(1, 6), 2)
        calls.append(
            chance.choice([
                ("transfer", {"branch": branch, "source": one, "target": two, "amount": chance.randrange(1, 400)}),
                ("transact_savings", {"branch": branch, "customer": one, "amount": chance.randrange(-600, 600)}),
                ("set_rate", {"name": chance.choice("abc"), "basis_points": chance.randrange(500)}),
                ("pay_interest", {"branch": branch, "customer": one, "rate": "base"}),
            ])
        )  # fmt: skip
    return calls


def told(node: Embedded, calls: Iterable[Call]) -> dict[str, tuple[Call, Any]]:
    """Every call under a key of its own, with what it was answered."""
    return {f"key {at}": (call, answer_of(node, call, f"key {at}")) for at, call in enumerate(calls)}


def check_keys(node: Embedded, known: Mapping[str, tuple[Call, Any]]) -> None:
    """Every retry gets the stored answer; every other request under the key is refused, wherever it is routed."""
    for key, (call, answer) in known.items():
        assert answer_of(node, call, key) == answer, (key, call)
        for branch in range(14):
            other: Call = ("transact_savings", {"branch": branch, "customer": 1, "amount": 1})
            if other != call:
                assert answer_of(node, other, key)[0] == "KeyReused", (key, call, branch)
        assert answer_of(node, ("set_rate", {"name": "z", "basis_points": 9}), key)[0] == "KeyReused"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_rows_and_answers_survive_any_shape_and_the_way_back(tmp_path: Path, seed: int) -> None:
    """1 -> 3 -> 2 -> 1 partitions: the rows of the start, and every key, also those used on the way, has its first answer."""
    source = tmp_path / "1"
    with opened(source, bank.db, partitions=1) as node:
        known = told(node, bank_calls(seed, 60))
    expected = whole(source, 1, bank.db)
    for step, partitions in enumerate((3, 2, 1)):
        out = reshaped(source, tmp_path / f"{step} of {partitions}", partitions)
        assert whole(out, partitions, bank.db) == expected
        with opened(out, bank.db) as node:
            check_keys(node, known)
            late: dict[str, tuple[Call, Any]] = {}
            for branch in range(14):
                call: Call = ("transact_savings", {"branch": branch, "customer": 2, "amount": 5})
                late[f"late {step} {branch}"] = (call, answer_of(node, call, f"late {step} {branch}"))
            rate: Call = ("set_rate", {"name": f"step {step}", "basis_points": step})
            late[f"late rate {step}"] = (rate, answer_of(node, rate, f"late rate {step}"))
            assert late[f"late rate {step}"][1][0] == [None] * partitions
            check_keys(node, late)
            known |= late
        expected = whole(out, partitions, bank.db)
        source = out
