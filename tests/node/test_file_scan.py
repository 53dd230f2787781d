"""Slices of files: however a reading is cut, it finds the same; and no bit that changed passes."""

from __future__ import annotations

import dataclasses
import os
import random
from pathlib import Path

import pytest

from cmdlog.node.scrub.entry_sums import EntrySums
from cmdlog.node.scrub.file_scan import ScanGround, Scanned, SliceOrder, scan_slice
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.segment import decode_segment_header
from snapshot.manifest import FileEntry, Manifest, encode_manifest, file_entry, snapshot_name
from tests.wal.damagekit import seg, several
from tests.wal.logkit import IDENTITY

NAME = snapshot_name(0, 7)


def ground(files: Files) -> ScanGround:
    """With new sums."""
    return ScanGround(files, IDENTITY, EntrySums())


def segment_order(files: Files, sequence: int, *, bytes_max: int = 1 << 20) -> SliceOrder:
    """Of a segment that has a successor."""
    this, after = (decode_segment_header(files.read_file(seg(n))[:SECTOR_BYTES]) for n in (sequence, sequence + 1))
    return SliceOrder(
        "log", seg(sequence), bytes_max, last_block=int(after.first_block) - 1, generation=this.generation, sums=True
    )


def scan_whole(files: Files, order: SliceOrder) -> tuple[Scanned, int, int]:
    """The last slice, the bytes of all, and how many there were."""
    of, size, slices = ground(files), 0, 0
    while True:
        found = scan_slice(of, order)
        size, slices = size + found.bytes, slices + 1
        if found.at is None:
            return found, size, slices
        order = dataclasses.replace(order, at=found.at)


@pytest.mark.parametrize("bytes_max", [1, 2000, 9000, 1 << 20])
def test_a_segment_is_read_to_its_end_in_slices_of_any_size(bytes_max: int) -> None:
    """All blocks once, and nothing is found."""
    files = several()
    found, size, slices = scan_whole(files, segment_order(files, 2, bytes_max=bytes_max))
    assert (found.damage, found.gone) == (None, False)
    assert size == scan_whole(files, segment_order(files, 2))[1]
    assert (slices > 1) is (bytes_max < size)


@pytest.mark.parametrize("bytes_max", [1, 1 << 20])
def test_no_bit_of_a_segment_that_changed_passes(bytes_max: int) -> None:
    """Seeded places in header, block headers, records and padding; the place named is that of the block."""
    files, rng = several(), random.Random(17)
    order = segment_order(files, 2, bytes_max=bytes_max)
    end = SECTOR_BYTES + scan_whole(files, order)[1]
    for _ in range(150):
        bit = rng.randrange(8 * end)
        files.flip_bit(seg(2), bit)
        damage = scan_whole(files, order)[0].damage
        assert damage is not None, f"bit {bit} of {8 * end}"
        assert damage.path == seg(2)
        assert damage.offset is not None
        assert damage.offset <= bit // 8
        files.flip_bit(seg(2), bit)
    assert scan_whole(files, order)[0].damage is None


def test_a_segment_that_is_recycled_is_gone_and_not_damaged() -> None:
    """Another generation under the name, or no such name."""
    files = several()
    order = segment_order(files, 1)
    assert scan_slice(ground(files), dataclasses.replace(order, generation=order.generation + 1)).gone
    assert scan_slice(ground(files), dataclasses.replace(order, path=seg(99))).gone


def test_a_segment_without_its_last_blocks_is_damaged() -> None:
    """Zeros where a block was durable."""
    files = several()
    order = dataclasses.replace(segment_order(files, 2), last_block=segment_order(files, 2).last_block + 1)
    damage = scan_whole(files, order)[0].damage
    assert damage is not None
    assert damage.block == order.last_block


def a_snapshot(folder: Path, content: bytes) -> SliceOrder:
    """The order that begins to read a snapshot with that file."""
    path = folder / NAME
    path.mkdir()
    (path / "image.sqlite").write_bytes(content)
    entry: FileEntry = file_entry(str(path / "image.sqlite"))
    manifest = Manifest(
        cluster_id=IDENTITY.cluster_id.hex(), node_id=7, incarnation="", partition=0, index=7, term=1, checksum=0, txn_id=1,
        log_block=1, epoch=1, configuration=None, catalogs={}, environment=None, key_policy=None, schema=(), tables=(),
        files=(entry,), created="",
    )  # fmt: skip
    (path / "manifest.json").write_bytes(encode_manifest(manifest))
    return SliceOrder("snapshot", str(path), 300_000)


@pytest.mark.parametrize("size", [0, 1, 262_144, 700_001])
def test_a_snapshot_is_read_in_slices_and_any_change_is_found(tmp_path: Path, size: int) -> None:
    """Manifest first; then its file by one growing checksum; longer and shorter files differ too."""
    order = a_snapshot(tmp_path, content := random.Random(size).randbytes(size))
    found, read, slices = scan_whole(RealFiles(), order)
    assert (found.damage, found.gone) == (None, False)
    assert read == size + (tmp_path / NAME / "manifest.json").stat().st_size
    assert slices >= 2 + size // 500_000
    image = tmp_path / NAME / "image.sqlite"
    flipped = content[:-1] + bytes([content[-1] ^ 1]) if content else b"x"
    for other in (flipped, content + b"x", content[: size // 2], b""):
        if other == content:
            continue
        image.write_bytes(other)
        damage = scan_whole(RealFiles(), order)[0].damage
        assert damage is not None
        assert damage.path == str(image)


def test_a_snapshot_without_its_parts_is_named(tmp_path: Path) -> None:
    """A manifest that is missing or changed is damage of the folder; a missing file is gone, and the caller looks why."""
    order = a_snapshot(tmp_path, b"content")
    at = scan_slice(ground(RealFiles()), order).at
    (tmp_path / NAME / "image.sqlite").unlink()
    assert scan_slice(ground(RealFiles()), dataclasses.replace(order, at=at)).gone
    (tmp_path / NAME / "manifest.json").write_bytes(b"{}")
    damage = scan_slice(ground(RealFiles()), order).damage
    assert damage is not None
    assert damage.path == order.path
    os.unlink(tmp_path / NAME / "manifest.json")
    assert scan_slice(ground(RealFiles()), order).damage is not None


def test_sums_are_made_only_when_they_are_wanted() -> None:
    """A node alone compares with nobody."""
    files = several()
    of = ground(files)
    scan_slice(of, dataclasses.replace(segment_order(files, 2), sums=False))
    assert of.sums.take_changes() == []
