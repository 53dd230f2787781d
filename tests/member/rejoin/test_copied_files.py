"""Files of a copy have their names only when they are whole; what an interrupted run has left is continued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from cmdlog.cluster.copying.copy_client import ChunkDamaged
from cmdlog.cluster.copying.copy_values import CopyFile
from cmdlog.member.rejoin.copied_files import CopiedFiles, check_chains, newest_of, take_over_snapshots
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import DiskFull
from snapshot.catalog import check
from snapshot.errors import SnapshotDamaged
from snapshot.manifest import MANIFEST_NAME
from tests.member.rejoin.copykit import FILES, LIFE, RECIPIENT, OfferedCopy

CONTENT = bytes(range(256)) * 1000
FILE = CopyFile(0, 0, "p0000-0000000000000007/image.sqlite", len(CONTENT), int(google_crc32c.value(CONTENT)))


@pytest.fixture
def copied(tmp_path: Path) -> CopiedFiles:
    """A copy that begins."""
    made = CopiedFiles(FILES, str(tmp_path))
    made.begin_copy()
    return made


class Source:
    """Gives CONTENT in pieces, up to a limit."""

    def __init__(self, upto: int = len(CONTENT), content: bytes = CONTENT) -> None:
        self.upto, self.content, self.asked = upto, content, list[int]()

    def read_from(self, offset: int) -> Iterator[bytes]:
        for at in range(offset, len(self.content), 1000):
            if at >= self.upto:
                raise ConnectionError
            self.asked.append(at)
            yield self.content[at : at + 1000]


def fetch(copied: CopiedFiles, source: Source) -> list[int]:
    """The sizes that arrived."""
    arrived = list[int]()
    copied.fetch_file(FILE, source.read_from, arrived.append)
    return arrived


def test_an_interrupted_file_is_continued_where_it_was(copied: CopiedFiles, tmp_path: Path) -> None:
    """Also by another process: what is there is read again, and nothing is asked for twice."""
    with pytest.raises(ConnectionError):
        fetch(copied, Source(upto=5000))
    assert not copied.is_whole(FILE)
    again, source = CopiedFiles(FILES, str(tmp_path)), Source()
    assert fetch(again, source)[:2] == [5000, 1000]
    assert min(source.asked) == 5000
    assert (tmp_path / "copying" / "snapshots" / FILE.name).read_bytes() == CONTENT
    assert CopiedFiles(FILES, str(tmp_path)).is_whole(FILE)


def test_a_file_with_another_checksum_is_not_kept(copied: CopiedFiles, tmp_path: Path) -> None:
    """Nothing of it: it is unknown which part is wrong."""
    with pytest.raises(ChunkDamaged, match=r"image\.sqlite"):
        fetch(copied, Source(content=bytes(len(CONTENT))))
    assert list((tmp_path / "copying" / "parts").iterdir()) == []
    assert fetch(copied, Source())[0] == 0


def test_a_part_that_has_rotted_is_found_at_the_end(copied: CopiedFiles, tmp_path: Path) -> None:
    """What an earlier process wrote was not synced: it may be anything after a power cut."""
    with pytest.raises(ConnectionError):
        fetch(copied, Source(upto=5000))
    (part,) = (tmp_path / "copying" / "parts").iterdir()
    part.write_bytes(bytes(5000))
    with pytest.raises(ChunkDamaged):
        fetch(CopiedFiles(FILES, str(tmp_path)), Source())
    assert fetch(CopiedFiles(FILES, str(tmp_path)), Source())[0] == 0


def test_a_whole_file_that_changed_is_not_whole(copied: CopiedFiles, tmp_path: Path) -> None:
    """A later start reads it again."""
    fetch(copied, Source())
    (tmp_path / "copying" / "snapshots" / FILE.name).write_bytes(bytes(len(CONTENT)))
    assert not CopiedFiles(FILES, str(tmp_path)).is_whole(FILE)


def test_a_full_disk_keeps_what_has_arrived(copied: CopiedFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is raised, and the next start continues."""
    written = list[int]()
    pwrite = type(FILES.open(str(tmp_path / "x"), create=True)).pwrite

    def full_after_five(self: object, data: bytes, offset: int) -> None:
        if len(written) == 5:
            raise DiskFull("no space")
        written.append(offset)
        pwrite(self, data, offset)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr("cmdlog.wal.files.RealFile.pwrite", full_after_five)
        with pytest.raises(DiskFull):
            fetch(copied, Source())
    assert fetch(copied, Source())[0] == 5000


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


@pytest.mark.slow  # the copy comes from a running node
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


@pytest.mark.slow  # the copy comes from a running node
def test_copy_without_a_partition_is_no_copy(offer: OfferedCopy, tmp_path: Path) -> None:
    """A snapshot of the right index is wanted of each."""
    folder = unpacked(tmp_path, offer)
    with pytest.raises(SnapshotDamaged, match="no snapshot of partition 7 at 3"):
        check_chains(FILES, folder, {**indexes(offer), 7: 3})


@pytest.mark.slow  # the copy comes from a running node
def test_manifest_that_has_changed_is_found(offer: OfferedCopy, tmp_path: Path) -> None:
    """Before anything of the old directory is given up."""
    folder = unpacked(tmp_path, offer)
    name = next(file.name for file in offer.manifest.files if file.name.endswith(MANIFEST_NAME))
    path = tmp_path / "snapshots" / name
    path.write_bytes(path.read_bytes().replace(b'"index"', b'"Index"'))
    with pytest.raises(SnapshotDamaged):
        check_chains(FILES, folder, indexes(offer))
