"""What may go and what must stay, as a pure decision; and what of the archive's files is believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt, DiskFull
from cmdlog.wal.files import RealFiles
from snapshot.archive.archive_retention import PROMISE_NAME, end_promise, promise_end, read_promise, write_promise
from snapshot.archive.segment_copy import copy_segment
from snapshot.archive_layout import (
    SegmentManifest,
    TxnRange,
    archived_snapshot,
    decode_segment_manifest,
    encode_segment_manifest,
    segment_file_name,
    segment_names,
)
from snapshot.catalog import Snapshot
from snapshot.errors import SnapshotDamaged, SnapshotForeign
from snapshot.manifest import Base, Manifest, snapshot_name
from snapshot.recovery_points import Point
from snapshot.retention import needs, oldest_restorable, retain, window_begin
from tests.replay.rig import Rig

US = Identity(b"c" * 16, 3, b"i" * 8)
SEGMENT_BLOCKS = 10


def snapshot(
    partition: int, index: int, *, txn: int, block: int, bases: tuple[Snapshot, ...] = (), archived: bool = False
) -> Snapshot:
    """One that can be relied on; a delta if it has bases."""
    base = Base(bases[0].name, bases[0].index, 1, 0, 0) if bases else None
    manifest = Manifest(
        cluster_id="", node_id=1, incarnation="", partition=partition, index=index, term=1, checksum=0, txn_id=txn,
        log_block=block, epoch=1, configuration=None, catalogs={}, environment=None, key_policy=None, schema=(), tables=(),
        files=(), created="",
        kind="delta" if base else "full", base=base,
    )  # fmt: skip
    name = snapshot_name(partition, index)
    return Snapshot(f"/snapshots/{name}", partition, index, 1, manifest, bases=bases, name=name)


@st.composite
def histories(draw: st.DrawFn) -> list[Snapshot]:
    """Snapshots of two partitions along one log; some are deltas on an earlier one."""
    found: list[Snapshot] = []
    for partition in range(2):
        index = txn = block = 0
        mine: list[Snapshot] = []
        for _ in range(draw(st.integers(0, 7))):
            index += draw(st.integers(1, 20))
            txn += draw(st.integers(0, 100))
            block += draw(st.integers(0, 30))
            base = draw(st.sampled_from([None, *mine]))
            mine.append(snapshot(partition, index, txn=txn, block=block, bases=base.chain if base else ()))
        found += mine
    return found


@pytest.mark.slow
@given(histories(), st.integers(0, 600), st.integers(0, 700))
@settings(max_examples=80, deadline=None)
def test_every_moment_of_the_window_can_be_restored_from_what_stays(found: list[Snapshot], begin: int, moment: int) -> None:
    """For any moment in the window: a snapshot at or before it stays with its chain, and all of the log behind it."""
    needed = needs(found, range(2), begin=begin)
    kept = [s for s in found if (s.partition, s.name) in needed.snapshots]
    for one in kept:
        assert all((base.partition, base.name) in needed.snapshots for base in one.bases)
    for partition in range(2):
        before = [s for s in kept if s.partition == partition and s.manifest and s.manifest.txn_id <= max(begin, moment)]
        block = max((s.manifest.log_block for s in before if s.manifest), default=0)
        for first in range(block - block % SEGMENT_BLOCKS, 400, SEGMENT_BLOCKS):
            assert needed.log(first_block=first, last_block=first + SEGMENT_BLOCKS - 1)


@pytest.mark.slow
@given(histories(), st.integers(0, 600), st.integers(0, 600))
@settings(max_examples=60, deadline=None)
def test_a_begin_that_goes_back_needs_no_less(found: list[Snapshot], one: int, other: int) -> None:
    """A clock that is set back, or a longer window, never lets go of what the shorter one needs."""
    longer, shorter = (needs(found, range(2), begin=begin) for begin in sorted((one, other)))
    assert shorter.snapshots <= longer.snapshots
    assert longer.from_block is not None
    assert shorter.from_block is not None
    assert longer.from_block <= shorter.from_block


@pytest.mark.slow
@given(histories(), st.integers(0, 5), st.integers(0, 400))
@settings(max_examples=40, deadline=None)
def test_points_need_what_they_name(found: list[Snapshot], which: int, block: int) -> None:
    """Without any window the snapshots of a point stay, with their chains, and its blocks, and nothing else."""
    if not found:
        return
    named = found[which % len(found)]
    point = Point(5, "", {named.partition: named.name}, block, block + 25)
    needed = needs(found, range(2), begin=None, points=[point])
    assert needed.snapshots == {(s.partition, s.name) for s in named.chain}
    assert needed.log(first_block=block + 20, last_block=block + 29)
    assert not needed.log(first_block=block + 26, last_block=block + 40)
    assert not needed.log(first_block=block - 10, last_block=block - 1)


@pytest.mark.slow
@given(histories(), st.integers(2, 4))
@settings(max_examples=60, deadline=None)
def test_retention_by_count_keeps_chains(found: list[Snapshot], kept: int) -> None:
    """The newest ones that count stay with everything that they stand on; each other one is handed over once."""
    handed: list[Snapshot] = []
    names = retain(RealFiles(), found, kept=kept, let_go=handed.append)
    assert sorted(names) == sorted(s.name for s in handed)
    left = [s for s in found if s not in handed]
    for partition in range(2):
        mine = sorted((s for s in found if s.partition == partition), key=lambda s: s.order, reverse=True)
        assert all(s in left for one in mine[:kept] for s in one.chain)
    needed = {s.path for s in left for s in s.chain}
    assert needed <= {s.path for s in left}


def test_window_begins_at_the_clock_of_transactions() -> None:
    """Milliseconds of the ids, never before 1970; no window, no begin."""
    assert window_begin(now_millis=10_000, window_s=2.5) == 7_500 << 21
    assert window_begin(now_millis=1_000, window_s=60) == 0
    assert window_begin(now_millis=1_000, window_s=0) is None


def test_oldest_restorable_needs_every_partition() -> None:
    """The youngest of the partitions' earliest snapshots whose log is there; none while a partition has none."""
    found = [snapshot(0, 5, txn=50, block=5), snapshot(0, 9, txn=90, block=20), snapshot(1, 7, txn=70, block=15)]
    assert oldest_restorable(found, range(2), log_from=0) == 70
    assert oldest_restorable(found, range(2), log_from=10) == 90
    assert oldest_restorable(found, range(2), log_from=16) is None


# -- files -------------------------------------------------------------------------------------------------------------------

MANIFEST = SegmentManifest(
    cluster_id=US.cluster_id.hex(), node_id=3, incarnation=US.incarnation.hex(), generation=7, previous_generation=6, sequence=2,
    first_block=11, last_block=20, previous_chain=1, last_chain=2, predecessor=None, partitions={0: TxnRange(1, 2)},
    first_millis=0, last_millis=0, bytes=4096, sha256="00", created="2026-01-01T00:00:00Z",
)  # fmt: skip


def test_names_are_those_of_the_contract() -> None:
    """Cluster, node, and first and last block in the name; only the strict form is recognised."""
    assert segment_file_name(US, first_block=11, last_block=20) == "log-63636363-n3-0000000000000011-0000000000000020.seg"
    assert archived_snapshot("snap-63636363-n3-p0001-0000000000000009-2") == "p0001-0000000000000009-2"
    for name in (
        "snap-63636363-n3-../../etc",
        "snap-63636363-n3-p1-9",
        "p0001-0000000000000009",
        "snap-%2f-n3-p0001-0000000000000009",
    ):
        assert archived_snapshot(name) is None


def test_segment_names_ignores_everything_else(tmp_path: Path) -> None:
    """A manifest alone names its segment; strange files are nobody's."""
    good = segment_file_name(US, first_block=11, last_block=20)
    other = segment_file_name(US, first_block=21, last_block=30)
    for name in (good, other.replace(".seg", ".json"), "log-x.seg", "notes.txt", good + ".tmp", "LOG" + good):
        (tmp_path / name).touch()
    assert segment_names(RealFiles(), str(tmp_path)) == [good, other]


def test_manifest_comes_back_and_every_flip_is_seen(tmp_path: Path) -> None:
    """What is written is read; a change of any byte is damage or a newer format, never another manifest."""
    data = encode_segment_manifest(MANIFEST)
    assert decode_segment_manifest(data, path="x") == MANIFEST
    for at in range(0, len(data), 3):
        changed = bytearray(data)
        changed[at] ^= 2
        try:
            found = decode_segment_manifest(bytes(changed), path="x")
        except (SnapshotDamaged, SnapshotForeign):
            continue
        assert found == MANIFEST, at  # a space of the layout


def test_promise_that_cannot_be_read_promises_everything(tmp_path: Path) -> None:
    """So nothing is pruned because of a damaged file."""
    (tmp_path / "archive").mkdir()
    assert read_promise(RealFiles(), str(tmp_path)) == 0
    write_promise(RealFiles(), str(tmp_path), window_s=60)
    assert read_promise(RealFiles(), str(tmp_path)) == 60
    path = tmp_path / "archive" / PROMISE_NAME
    path.write_bytes(path.read_bytes().replace(b"60", b"16"))
    assert read_promise(RealFiles(), str(tmp_path)) == float("inf")


def test_end_of_a_promise_is_stated_once_and_until_it_is_made_again(tmp_path: Path) -> None:
    """The window stays what it was; the first moment without it stands, and nothing ends where nothing was promised."""
    files, node = RealFiles(), str(tmp_path)
    (tmp_path / "archive").mkdir()
    end_promise(files, node, now_millis=1)
    assert (read_promise(files, node), promise_end(files, node)) == (0, None)
    write_promise(files, node, window_s=60)
    assert promise_end(files, node) is None
    for now_millis in (5, 9):
        end_promise(files, node, now_millis=now_millis)
        assert (read_promise(files, node), promise_end(files, node)) == (60, 5)
    write_promise(files, node, window_s=60)
    assert (read_promise(files, node), promise_end(files, node)) == (60, None)
    (tmp_path / "archive" / PROMISE_NAME).write_bytes(b"{}")
    end_promise(files, node, now_millis=1)
    assert (read_promise(files, node), promise_end(files, node)) == (float("inf"), None)


def test_copy_takes_the_blocks_alone_and_says_what_they_hold(tmp_path: Path) -> None:
    """Nothing behind the last block is copied: a recycled file holds old records there."""
    rig = Rig(tmp_path)
    rig.deposits(30)
    one, two = rig.wal.segments[:2]
    last = int(two.header.first_block) - 1
    copied = copy_segment(RealFiles(), one.path, str(tmp_path / "copy"), last_block=last)
    source, target = Path(one.path).read_bytes(), (tmp_path / "copy").read_bytes()
    assert target == source[: len(target)]
    assert len(target) == copied.bytes
    assert not any(source[len(target) :])
    assert copied.last_chain == two.header.previous_chain
    assert sorted(copied.partitions) == [0, 1]
    rig.stop()


@pytest.mark.parametrize("at", [10, 4096 + 10, 4096 * 4 + 70, 4096 * 9 + 2000])
def test_copy_of_a_damaged_segment_is_refused(tmp_path: Path, at: int) -> None:
    """The source is named with block and offset."""
    rig = Rig(tmp_path)
    rig.deposits(30)
    one, two = rig.wal.segments[:2]
    rig.stop()
    data = bytearray(Path(one.path).read_bytes())
    data[at] ^= 8
    Path(one.path).write_bytes(data)
    with pytest.raises(Corrupt) as refused:
        copy_segment(RealFiles(), one.path, str(tmp_path / "copy"), last_block=int(two.header.first_block) - 1)
    assert refused.value.path == one.path


class FullFiles(RealFiles):
    """A disk that is full."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> object:  # type: ignore[override]
        if exclusive:
            raise DiskFull(f"open of {path}")
        return super().open(path, create=create, exclusive=exclusive, read_only=read_only)


def test_copy_to_a_full_disk_says_so(tmp_path: Path) -> None:
    """The error is the disk's, not the segment's."""
    rig = Rig(tmp_path)
    rig.deposits(30)
    one, two = rig.wal.segments[:2]
    with pytest.raises(DiskFull):
        copy_segment(FullFiles(), one.path, str(tmp_path / "copy"), last_block=int(two.header.first_block) - 1)
    assert not os.path.exists(tmp_path / "copy")
    rig.stop()
