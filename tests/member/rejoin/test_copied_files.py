"""Files of a copy have their names only when they are whole; what an interrupted run has left is continued."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import google_crc32c
import pytest

from cmdlog.cluster.copying.copy_client import ChunkDamaged
from cmdlog.cluster.copying.copy_values import CopyFile
from cmdlog.member.rejoin.copied_files import CopiedFiles
from cmdlog.wal.errors import DiskFull
from tests.member.rejoin.copykit import FILES

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
