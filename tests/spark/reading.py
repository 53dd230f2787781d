"""Reads a log the way a Spark task does, without Spark; and a log whose catalog states parameter names, as a node's does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures.code.loaded_modules import load_bundle
from replay.spark.base.options import parse_options
from replay.spark.reading.arrow_rows import read_task
from replay.spark.reading.read_plan import ReadPlan, plan_read
from tests.replay.rig import DEPOSIT, Rig, make_bundle

NAMES = {
    "begin": ["account"],
    "clock": ["account"],
    "deposit": ["account", "amount"],
    "drift": ["account"],
    "mirror": ["account", "source"],
    "trap": ["account"],
}
COLUMNS = ("partition_id", "txn_id", "procedure", "params")


class NamedRig(Rig):
    """Its catalog records state names and parameters beside the bundle."""

    def add_catalog(self, factor: int) -> None:
        """The application's code changes."""
        self.version, self.factor = self.version + 1, factor
        bundle = make_bundle(factor)
        stated = [{"name": name, "parameters": parameters} for name, parameters in NAMES.items()]
        value = {"version": self.version, "hash": bundle.hash, "procedures": stated, "bundle": bundle.to_bytes().decode()}
        self.bundles[str(self.version)] = value
        self.cluster_index += 1
        self.log(encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=self.term, index=self.cluster_index))
        self.catalogs.add_live(self.version, load_bundle(bundle))


def made(folder: Path, batches: int = 30, **settings: Any) -> NamedRig:
    """A node with that many batches of three deposits, stopped in good order."""
    folder.mkdir(exist_ok=True)
    rig = NamedRig(folder, **settings)
    rig.deposits(batches)
    rig.close()
    return rig


def made_large(folder: Path) -> NamedRig:
    """A log of several megabytes in few segments."""
    rig = made(folder, 0, segment_bytes=4 << 20, segments=4)
    rig.restart()
    for n in range(16):
        partition, calls = n % 2, [orjson.dumps([10 * (n % 2), 10**15 + c]) for c in range(6000)]
        index = rig.next_index[partition]
        rig.next_index[partition] += 1
        ids = rig.tick(len(calls), partition)
        rig.log(
            encode_batch(
                partition=partition, term=rig.term, index=index, catalog=1, txn_ids=ids,
                procedures=[DEPOSIT] * len(calls), params=calls,
            )
        )  # fmt: skip
    rig.stop()
    return rig


def plan_of(*directories: str, **options: Any) -> ReadPlan:
    """What is planned for these directories."""
    given = {name: value if isinstance(value, str) else orjson.dumps(value).decode() for name, value in options.items()}
    return plan_read(parse_options({"paths": orjson.dumps(directories).decode(), **given}))


def rows_of(plan: ReadPlan, columns: Sequence[str] = COLUMNS) -> list[tuple[Any, ...]]:
    """All rows, task by task."""
    found: list[tuple[Any, ...]] = []
    for task in plan.tasks:
        for batch in read_task(task, columns):
            batch.validate(full=True)
            found += [tuple(row[name] for name in columns) for row in batch.to_pylist()]
    return found


def read(*directories: str, **options: Any) -> list[tuple[Any, ...]]:
    """The rows of these directories."""
    return rows_of(plan_of(*directories, **options))


def txns(rows: Sequence[tuple[Any, ...]]) -> list[int]:
    """TxnIds, ascending."""
    return sorted(row[1] for row in rows)
