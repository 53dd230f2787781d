"""Copied snapshots are this node's own, with what they hold unchanged."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.member.rejoin.own_snapshots import check_chains, newest_of, take_over_snapshots
from cmdlog.wal.directory.instance import Identity
from snapshot.catalog import check
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import MANIFEST_NAME
from tests.member.rejoin.copykit import FILES, LIFE, RECIPIENT, OfferedCopy

pytestmark = pytest.mark.slow  # the copy comes from a running node


def unpacked(folder: Path, offer: OfferedCopy) -> str:
    """The files of the copy."""
    for file, content in zip(offer.manifest.files, offer.contents, strict=True):
        path = folder / "snapshots" / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return str(folder)


def indexes(offer: OfferedCopy) -> dict[int, int]:
    """Where each partition's state ends."""
    return {partition: place.index for partition, place in offer.manifest.partitions.items()}


def test_snapshots_belong_to_the_new_life_and_are_whole(offer: OfferedCopy, tmp_path: Path) -> None:
    """With the whole chain of each; doing it twice changes nothing."""
    folder = unpacked(tmp_path, offer)
    check_chains(FILES, folder, indexes(offer))
    me = Identity(offer.cluster.cluster_id, RECIPIENT, LIFE)
    for _ in range(2):
        take_over_snapshots(FILES, folder, me, None)
        found = newest_of(FILES, folder, me, indexes(offer))
        assert [check(FILES, snapshot) for _, snapshot in sorted(found.items())] == ["", ""]
        assert {link.manifest.log_block for snapshot in found.values() for link in snapshot.chain if link.manifest} == {2}
    for file, content in zip(offer.manifest.files, offer.contents, strict=True):
        if not file.name.endswith(MANIFEST_NAME):
            assert (tmp_path / "snapshots" / file.name).read_bytes() == content


def test_copy_without_a_partition_is_no_copy(offer: OfferedCopy, tmp_path: Path) -> None:
    """A snapshot of the right index is wanted of each."""
    folder = unpacked(tmp_path, offer)
    with pytest.raises(SnapshotDamaged, match="no snapshot of partition 7 at 3"):
        check_chains(FILES, folder, {**indexes(offer), 7: 3})


def test_manifest_that_has_changed_is_found(offer: OfferedCopy, tmp_path: Path) -> None:
    """Before anything of the old directory is given up."""
    folder = unpacked(tmp_path, offer)
    name = next(file.name for file in offer.manifest.files if file.name.endswith(MANIFEST_NAME))
    path = tmp_path / "snapshots" / name
    path.write_bytes(path.read_bytes().replace(b'"index"', b'"Index"'))
    with pytest.raises(SnapshotDamaged):
        check_chains(FILES, folder, indexes(offer))
