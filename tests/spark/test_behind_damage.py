"""What a read that accepts loss gives behind damage inside a segment: the same as the history does, and every gap is told.

One rule: the truth is the list of rows of the sound log. No session needed.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.reader import LogReader, read_segment
from replay.errors import ReplayError
from replay.history.history import history
from replay.spark.base.options import parse_options
from replay.spark.datasource.log_tables import rows_of as table_rows
from replay.spark.reading import segment_index
from replay.spark.reading.read_plan import choose
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.histories import random_history
from tests.spark.reading import made, plan_of, rows_of, txns

CASES = 12
CLUSTERS = 6


def table(directory: str, name: str) -> list[tuple[Any, ...]]:
    """The rows of a table beside the log."""
    return list(table_rows(parse_options({"path": directory, "table": name})))


def blocks_of(directory: str, segment: int) -> list[tuple[int, int]]:
    """(number, offset) of the blocks of a segment, by its place in the list."""
    reader = LogReader(RealFiles(), directory)
    found = reader.segments[segment]
    ends = [*(int(one.header.first_block) - 1 for one in reader.segments[1:]), int(reader.last_block)]
    return [(int(block.header.number), block.offset) for block in read_segment(RealFiles(), found, upto=ends[segment])]


def holds_code(directory: str, number: int) -> bool:
    """Whether a catalog's record stands in the block."""
    records = LogReader(RealFiles(), directory).read()
    return any(lsn.block == number and record.kind is RecordKind.CATALOG for lsn, record in records)


Calls = dict[tuple[int, int], list[int]]
"""(partition, index) of a batch -> TxnIds of its calls."""


def told(directory: str) -> Calls:
    """What the history tells around damage."""
    found: Calls = {}
    for call in history(RealFiles(), [directory], accept_data_loss=True).calls:
        found.setdefault((call["partition"], call["index"]), []).append(int(call["txn_id"]))
    return found


def txns_of(calls: Calls) -> list[int]:
    """All TxnIds, ascending."""
    return sorted(txn for of in calls.values() for txn in of)


@pytest.mark.parametrize("segments", ["one", "many"])
def test_only_the_calls_of_the_damaged_block_are_missing(tmp_path: Path, segments: str) -> None:
    """Blocks behind a damaged one of the same segment are read; rows, gaps, faults and history say the same."""
    rig = made(tmp_path, 60, segment_bytes=(1 << 20) if segments == "one" else (64 << 10))
    every = rows_of(plan_of(rig.directory), ("txn_id", "partition_id", "_block_offset", "_segment"))
    which = 0 if segments == "one" else 2
    path = damage.segments(rig.directory)[which]
    number, offset = blocks_of(rig.directory, which)[len(blocks_of(rig.directory, which)) // 2]
    lost = {txn for txn, _, at, name in every if (at, name) == (offset, Path(path).name)}
    assert len(lost) == 3
    damage.flip(path, offset + 100)
    plan = plan_of(rig.directory, failOnDataLoss="false")
    found = txns(rows_of(plan))
    assert found == sorted({row[0] for row in every} - lost)
    assert found == txns_of(told(rig.directory))
    assert [(gap.first, gap.last) for gap in plan.gaps] == [(gap[1], gap[2]) for gap in table(rig.directory, "gaps")]
    assert sum(gap.last - gap.first + 1 for gap in plan.gaps) == 1
    assert [(fault[2], fault[3], fault[4]) for fault in table(rig.directory, "faults")] == [(path, offset, number)]
    rows = [row for row in table(rig.directory, "segments") if row[2] == Path(path).name]
    assert sum(row[14] for row in rows) == sum(Path(path).name == name for *_, name in every) - 3


def spoil(directory: str, rng: random.Random) -> str:
    """Damage of one to three places inside segments of log and archive; what."""
    paths = [path for path in damage.segments(directory) if damage.used_bytes(path) > 8192]
    archive = Path(directory, "archive")
    paths += sorted(str(path) for path in archive.glob("*.seg")) if archive.exists() else []
    told = []
    for _ in range(rng.randint(1, 3) if paths else 0):
        path = rng.choice(paths)
        offset = rng.randrange(min(4096, damage.used_bytes(path) - 1), damage.used_bytes(path))
        if rng.random() < 0.6:
            damage.flip(path, offset, 1 << rng.randrange(8))
        else:
            damage.zero_sector(path, offset)
        told.append(f"{Path(path).name}@{offset}")
    return ", ".join(told)


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """A stopped node whose ring was used several times over."""
    rig = ArchiveRig(tmp_path_factory.mktemp("archived"), segments=6)
    rig.rotate(2, batches=16)
    rig.deposits(24)
    rig.close()
    return rig


@pytest.mark.slow
def test_any_damage_inside_segments_gives_the_rows_of_the_history(archived: ArchiveRig, tmp_path: Path) -> None:
    """Up to three places of log and archive, at random: rows are those of the history, and exactly the other ones are in gaps.

    Where the very end of the log cannot be read, nothing says how far it went: those are in none.
    """
    every, sound = set(rows_of(plan_of(archived.directory))), told(archived.directory)
    for seed in range(CASES):
        rng = random.Random(seed)
        directory = str(tmp_path / str(seed))
        shutil.copytree(archived.directory, directory, ignore=shutil.ignore_patterns("state", "snapshots", "free*"))
        about = f"seed {seed}: {spoil(directory, rng)}"
        segment_index._kept.clear()
        plan = plan_of(directory, failOnDataLoss="false")
        rows, there = rows_of(plan), told(directory)
        assert set(rows) <= every, about
        assert txns(rows) == txns_of(there), about
        gone = {entry for entry in sound if any(g.partition == entry[0] and g.first <= entry[1] <= g.last for g in plan.gaps)}
        groups = choose(parse_options({"path": directory, "failOnDataLoss": "false"})).logs.verdict.groups
        assert gone == {entry for entry in set(sound) - set(there) if entry[1] <= groups[entry[0]].last_index}, about


def test_block_that_goes_bad_behind_the_plan_ends_its_stretch_only(tmp_path: Path) -> None:
    """The task goes on with the next segment, and with what follows damage that was known before."""
    rig = made(tmp_path, 60)
    every = txns(rows_of(plan_of(rig.directory)))
    plan = plan_of(rig.directory, failOnDataLoss="false")
    assert len(plan.tasks) == 1
    _, offset = blocks_of(rig.directory, 1)[-2]
    damage.flip(damage.segments(rig.directory)[1], offset + 100)
    found = txns(rows_of(plan))
    assert found[-1] == every[-1]
    assert len(every) - len(found) in range(1, 7)


@pytest.mark.slow
def test_damage_of_a_node_of_several_gives_committed_calls_only(tmp_path: Path) -> None:
    """Random clusters: behind damage of one log, alone or among the others, nothing void is given, and nothing twice."""
    read_around = 0
    for seed in range(CLUSTERS):
        found = random_history(tmp_path / str(seed), seed)
        rng = random.Random(seed)
        about = f"seed {seed}: {spoil(found.directories[0], rng)}"
        true = {call[0] for entries in found.truth.committed.values() for entry in entries for call in entry.calls}
        for directories in (found.directories, found.directories[:1]):
            try:
                plan = plan_of(*directories, failOnDataLoss="false")
            except ReplayError:
                continue
            calls = [(row[0], row[1]) for row in rows_of(plan)]
            rows = [txn for _, txn in calls]
            assert len(calls) == len(set(calls)), about
            alone = (
                len(directories) == 1
                and choose(parse_options({"path": directories[0], "failOnDataLoss": "false"})).logs.logs[0].alone
            )
            assert set(rows) <= true or alone, about
            read_around += bool(plan.damages and rows)
    assert read_around


def test_calls_of_code_that_was_lost_are_told_by_number(tmp_path: Path) -> None:
    """The block with the catalog's record is damaged, and no head behind it states the code: the calls are read all the same."""
    rig = made(tmp_path, 20, segment_bytes=1 << 20)
    every = rows_of(plan_of(rig.directory))
    _, offset = next(place for place in blocks_of(rig.directory, 0) if holds_code(rig.directory, place[0]))
    damage.flip(damage.segments(rig.directory)[0], offset + 100)
    rows = rows_of(plan_of(rig.directory, failOnDataLoss="false"))
    assert txns(rows) == txns(every)
    assert {row[2] for row in rows} == {"number 0", "number 2"}
    assert rows_of(plan_of(rig.directory, failOnDataLoss="false", procedures="deposit")) == []
    assert (rows[0][3], every[0][3]) == ("[0]", '{"account":0}')
