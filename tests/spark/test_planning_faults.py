"""What a read of the log makes of damage: recycled, bad, cut, missing, doubled and foreign files; holes; copies that help out."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.reader import Recycled
from replay.errors import ReplayError
from replay.spark.base.options import parse_options
from replay.spark.reading import segment_index
from replay.spark.reading.read_plan import choose
from replay.spark.reading.read_task import DataLoss
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.historycluster import Cluster
from tests.spark.reading import made, plan_of, read, rows_of, txns


@pytest.mark.parametrize("what", ["gone", "overwritten"])
def test_segment_recycled_under_a_read_is_an_error(tmp_path: Path, what: str) -> None:
    """P15, a node lets a segment go after the plan: the task says so, and gives nothing of the file's new life."""
    rig = made(tmp_path)
    plan = plan_of(rig.directory)
    first, *_, last = damage.segments(rig.directory)
    if what == "gone":
        os.rename(first, os.path.join(rig.directory, "log", "free-0.wal"))
    else:
        Path(first).write_bytes(Path(last).read_bytes())
    with pytest.raises(Recycled, match=r"segment 1 .*was (recycled|released before it was read)"):
        rows_of(plan)


def test_damaged_block_fails_with_segment_and_offset(tmp_path: Path) -> None:
    """P15, D14: a read fails before anything is given out, naming the place; failOnDataLoss=false reads around it and tells."""
    rig = made(tmp_path)
    every = txns(read(rig.directory))
    segment_index._kept.clear()  # as in the process of another read
    segment = damage.segments(rig.directory)[1]
    damage.flip(segment, 5 * 4096 + 100)
    with pytest.raises(Corrupt, match="block that was durable cannot be read") as error:
        plan_of(rig.directory)
    assert (error.value.path, error.value.offset) == (segment, 5 * 4096)
    plan = plan_of(rig.directory, failOnDataLoss="false")
    found = txns(rows_of(plan))
    assert set(found) < set(every)
    assert found[0] == every[0]
    assert found[-1] == every[-1]
    assert len(every) - len(found) == 3 * sum(gap.last - gap.first + 1 for gap in plan.gaps) == 3
    assert [(one.path, one.offset) for one in plan.damages] == [(segment, 5 * 4096)]


def test_damage_behind_the_plan_fails_the_task(tmp_path: Path) -> None:
    """A block that goes bad after the plan is met by the task that reads it, and named."""
    rig = made(tmp_path)
    plan = plan_of(rig.directory)
    segment = damage.segments(rig.directory)[0]
    damage.flip(segment, 6 * 4096 + 80)
    with pytest.raises(Corrupt) as error:
        rows_of(plan)
    assert (error.value.path, error.value.offset) == (segment, 6 * 4096)


@pytest.mark.slow
def test_no_byte_of_a_segment_can_turn_behind_the_plan(tmp_path: Path) -> None:
    """D5: wherever a bit turns in what a task reads, the task ends with the place, or the byte says nothing."""
    rig = made(tmp_path)
    plan = plan_of(rig.directory)
    before = rows_of(plan)
    segment = damage.segments(rig.directory)[0]
    found: list[tuple[int, Corrupt]] = []
    blocks = range(4096, damage.used_bytes(segment), 4096)
    for offset in (block + at for block in blocks for at in range(0, 480, 11)):  # each block is that short, zeros follow
        damage.flip(segment, offset)
        try:
            rows = rows_of(plan)
        except Corrupt as error:
            found.append((offset, error))
        else:
            assert rows == before
        damage.flip(segment, offset)
    assert len(found) > 300
    assert all((error.path, error.offset <= offset) == (segment, True) for offset, error in found)


@pytest.mark.parametrize("number", [0, 1, 2])
def test_missing_segment_is_refused(tmp_path: Path, number: int) -> None:
    """D15, H9: the first, a middle or the last segment taken away is seen before anything is read."""
    rig = made(tmp_path)
    path = damage.segments(rig.directory)[number]
    os.unlink(path)
    with pytest.raises(WalError, match=rf"missing.*{os.path.basename(path)}|{os.path.basename(path)}.*missing|is missing"):
        plan_of(rig.directory)


@pytest.mark.parametrize("size", [0, 4096, 5000, 40_960])
def test_truncated_segment_is_refused(tmp_path: Path, size: int) -> None:
    """D14: a file cut anywhere is no segment any more."""
    rig = made(tmp_path)
    path = damage.segments(rig.directory)[1]
    damage.truncate(path, size)
    with pytest.raises((WalError, ReplayError), match="segment"):
        plan_of(rig.directory)


def test_duplicated_and_foreign_segments_are_refused(tmp_path: Path) -> None:
    """D16, D17: a file under another number, and one of another node, are no part of this log."""
    rig, other = made(tmp_path / "a"), made(tmp_path / "b")
    copy = rig.copy(tmp_path / "copy")
    damage.duplicate(damage.segments(copy)[0], 4)
    with pytest.raises((WalError, ReplayError), match=r"another name|segment"):
        plan_of(copy)
    damage.swap(damage.segments(rig.directory)[1], damage.segments(other.directory)[1])
    with pytest.raises((WalError, ReplayError), match="belongs to"):
        plan_of(rig.directory)


@pytest.mark.slow
def test_archive_with_a_hole_is_not_taken_for_a_truncated_log(tmp_path: Path) -> None:
    """D15, D16: of an archived segment that is gone or another's, the calls in front of it are not left out in silence.

    What begins behind it is read; and with failOnDataLoss=false all that is readable, the hole being told.
    """
    rig = ArchiveRig(tmp_path, segments=6)
    for _ in range(2):
        rig.rotate(2, batches=16)
    rig.close()
    every = txns(read(rig.directory))
    assert len(every) == len(rig.history)
    archived = sorted(Path(rig.directory, "archive").glob("*.seg"))
    kept = archived[1].read_bytes()
    for content in (None, archived[2].read_bytes()):
        if content is None:
            archived[1].unlink()
        else:
            archived[1].write_bytes(content)
        with pytest.raises(DataLoss, match=rf"all transactions were requested.*{archived[1].name}"):
            plan_of(rig.directory)
        assert txns(read(rig.directory, startingTxn=str(every[-9]))) == every[-9:]
        plan = plan_of(rig.directory, failOnDataLoss="false")
        found = txns(rows_of(plan))
        assert set(found) < set(every)
        assert (found[0], found[-1]) == (every[0], every[-1])
        assert {gap.partition for gap in plan.gaps} == {0, 1}
        archived[1].write_bytes(kept)
    assert txns(read(rig.directory)) == every


def test_newer_format_is_refused(tmp_path: Path) -> None:
    """H7: a log that a newer version wrote is named as such, whether or not loss is accepted."""
    rig = made(tmp_path)
    path = Path(rig.directory, "instance.json")
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":2').replace(b'"format": 1', b'"format": 2'))
    with pytest.raises((WalError, ReplayError), match="newer"):
        plan_of(rig.directory)


def test_damage_in_one_copy_is_read_from_another(tmp_path: Path) -> None:
    """With failOnDataLoss=false what one log has lost comes from a log that knows it committed, and nothing is missing."""
    cluster = Cluster(tmp_path / "c", segment_bytes=32 << 10)
    for n in range(30):
        cluster.deposits(n % 2)
        cluster.spread(n % 2)
    directories = cluster.finish()
    every = txns(read(*directories))
    logs = choose(parse_options({"paths": orjson.dumps(directories).decode()})).logs
    chosen = logs.verdict.groups[0].chosen
    segment_index._kept.clear()  # as in the process of another read
    damage.flip(damage.segments(chosen)[0], 3 * 4096 + 70)
    with pytest.raises(Corrupt):
        plan_of(*directories)
    plan = plan_of(*directories, failOnDataLoss="false")
    assert txns(rows_of(plan)) == every
    assert plan.gaps == ()
