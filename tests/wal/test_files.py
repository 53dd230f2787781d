"""The door to the operating system: one contract for the real one and the simulated one."""

from __future__ import annotations

import contextlib
import gc
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from cmdlog.wal.errors import Corrupt, DiskFull, Locked, ShortWrite, WriteFailed
from cmdlog.wal.files import OWNER_BYTES_MAX, TEMP_SUFFIX, Files, RealFiles
from tests.wal.sim.simfiles import SimFiles


@dataclass(frozen=True, slots=True)
class Place:
    """A file system and an empty folder in it."""

    files: Files
    folder: str

    def path(self, name: str) -> str:
        return f"{self.folder}/{name}"

    def put(self, name: str, data: bytes) -> str:
        file = self.files.open(self.path(name), create=True)
        file.pwrite(data, 0)
        file.close()
        return self.path(name)


@pytest.fixture(params=["real", "simulated"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Every test that asks for it runs over both."""
    if request.param == "real":
        return Place(RealFiles(), str(tmp_path))
    files = SimFiles()
    files.mkdir("/node")
    return Place(files, "/node")


def test_written_bytes_read_back(place: Place) -> None:
    """What one handle wrote, another reads at once."""
    path = place.put("a", b"0123456789")
    file = place.files.open(path, read_only=True)
    assert file.pread(4, 3) == b"3456"
    assert file.size() == 10


@pytest.mark.parametrize("data", [b"bytes", bytearray(b"array"), memoryview(b"a view")[2:]])
def test_any_buffer_is_written_whole(place: Place, data: bytes | bytearray | memoryview) -> None:
    """Bytes, bytearrays and slices of views are written without the caller copying them."""
    file = place.files.open(place.path("a"), create=True)
    file.pwrite(data, 0)
    assert file.pread(100, 0) == bytes(data)


def test_overwriting_changes_nothing_else(place: Place) -> None:
    """A write in the middle leaves its neighbours and the size alone."""
    file = place.files.open(place.put("a", b"." * 2000), create=True)
    file.pwrite(b"xyz", 511)
    assert file.pread(2000, 0) == b"." * 511 + b"xyz" + b"." * 1486


def test_hole_reads_zeros(place: Place) -> None:
    """Bytes that were never written, before a written one, are zero."""
    file = place.files.open(place.path("a"), create=True)
    file.pwrite(b"x", 5000)
    assert file.pread(5001, 0) == bytes(5000) + b"x"


def test_read_past_the_end_is_short(place: Place) -> None:
    """A read stops where the file ends, and is empty beyond."""
    file = place.files.open(place.put("a", b"abc"), create=True)
    assert file.pread(10, 1) == b"bc"
    assert file.pread(10, 3) == b""
    assert file.pread(10, 9999) == b""


def test_truncation_cuts_and_extension_is_zero(place: Place) -> None:
    """Bytes cut off do not come back when the file grows again."""
    file = place.files.open(place.put("a", b"x" * 1000), create=True)
    file.truncate(300)
    file.truncate(1000)
    assert file.pread(1000, 0) == b"x" * 300 + bytes(700)


def test_allocation_takes_space_and_keeps_content(place: Place) -> None:
    """A shorter file grows with zeros, what is there stays, and a longer file is as it was."""
    file = place.files.open(place.put("a", b"abc"))
    file.allocate(9000)
    assert file.pread(10_000, 0) == b"abc" + bytes(8997)
    file.allocate(5)
    assert file.size() == 9000


def test_allocation_that_finds_no_space_is_a_full_disk(place: Place) -> None:
    """More than the volume has is refused, with the file's name, and the content stays."""
    file = place.files.open(place.put("a", b"abc"))
    with pytest.raises(DiskFull, match="/a"):
        file.allocate(1 << 60)
    assert file.pread(3, 0) == b"abc"


def test_sync_keeps_content(place: Place) -> None:
    """Both kinds of sync succeed and change nothing that reads see."""
    file = place.files.open(place.put("a", b"abc"), create=True)
    file.fdatasync()
    file.fsync()
    assert file.pread(3, 0) == b"abc"


def test_missing_file_is_named(place: Place) -> None:
    """Opening, removing, renaming and reading what is not there name it."""
    missing = place.path("missing")
    for act in (place.files.open, place.files.unlink, place.files.read_file, place.files.listdir):
        with pytest.raises(FileNotFoundError) as caught:
            act(missing)
        assert caught.value.filename == missing
    with pytest.raises(FileNotFoundError):
        place.files.rename(missing, place.path("b"))
    with pytest.raises(FileNotFoundError):
        place.files.open(place.path("no/folder"), create=True)


def test_exclusive_creation_happens_once(place: Place) -> None:
    """The second exclusive creation of a name fails and leaves the first file as it is."""
    place.files.open(place.path("a"), exclusive=True).pwrite(b"first", 0)
    with pytest.raises(FileExistsError):
        place.files.open(place.path("a"), create=True, exclusive=True)
    assert place.files.read_file(place.path("a")) == b"first"


def test_creation_keeps_an_existing_file(place: Place) -> None:
    """`create` opens what is there and does not empty it."""
    path = place.put("a", b"old")
    assert place.files.open(path, create=True).size() == 3


def test_read_only_handle_writes_nothing(place: Place) -> None:
    """A handle for reading refuses every change."""
    file = place.files.open(place.put("a", b"abc"), read_only=True)
    with pytest.raises(WriteFailed):
        file.pwrite(b"x", 0)
    assert file.pread(3, 0) == b"abc"


def test_closed_handle_is_useless(place: Place) -> None:
    """After `close`, which may be repeated, a handle reaches no file: not even a later one under the same descriptor."""
    file = place.files.open(place.put("a", b"abc"))
    file.close()
    file.close()
    other = place.files.open(place.put("b", b"def"))
    actions: list[Callable[[], object]] = [lambda: file.pwrite(b"x", 0), file.fdatasync, file.fsync, lambda: file.truncate(0)]
    for action in actions:
        with pytest.raises(WriteFailed, match="/a:"):
            action()
    for read in (file.size, lambda: file.pread(3, 0)):
        with pytest.raises(OSError, match="/a"):
            read()
    assert other.pread(3, 0) == b"def"


def test_rename_replaces_the_target(place: Place) -> None:
    """After a rename the target has the source's content and the source is gone."""
    source, target = place.put("a", b"new"), place.put("b", b"old")
    place.files.rename(source, target)
    assert place.files.listdir(place.folder) == ["b"]
    assert place.files.read_file(target) == b"new"


def test_rename_of_a_file_onto_itself_keeps_it(place: Place) -> None:
    """Renaming to the same name is nothing."""
    path = place.put("a", b"kept")
    place.files.rename(path, path)
    assert place.files.read_file(path) == b"kept"


def test_rename_moves_between_folders_and_moves_folders(place: Place) -> None:
    """A file goes to another folder, and a folder takes its files along."""
    place.files.mkdir(place.path("one"))
    place.put("a", b"abc")
    place.files.rename(place.path("a"), place.path("one/a"))
    place.files.rename(place.path("one"), place.path("two"))
    assert place.files.read_file(place.path("two/a")) == b"abc"
    assert place.files.listdir(place.folder) == ["two"]


def test_rename_does_not_mix_files_and_folders(place: Place) -> None:
    """A file never replaces a folder, a folder never a file, and no folder one that is not empty."""
    place.put("file", b"")
    for name in ("one", "two"):
        place.files.mkdir(place.path(name))
        place.put(f"{name}/kept", b"")
    for source, target in (("file", "one"), ("one", "file"), ("one", "two")):
        with pytest.raises(OSError):
            place.files.rename(place.path(source), place.path(target))
    assert place.files.listdir(place.folder) == ["file", "one", "two"]


def test_open_handle_follows_its_file(place: Place) -> None:
    """A handle goes on reading its file after the name was moved, replaced or removed."""
    file = place.files.open(place.put("a", b"abc"))
    place.files.rename(place.path("a"), place.path("b"))
    place.files.rename(place.put("c", b"other"), place.path("b"))
    place.files.unlink(place.path("b"))
    assert file.pread(3, 0) == b"abc"
    assert place.files.listdir(place.folder) == []


def test_listing_is_sorted(place: Place) -> None:
    """Names come in ascending order, whatever the order of creation."""
    for name in ("b", "a10", "a2", "Z"):
        place.put(name, b"")
    assert place.files.listdir(place.folder) == ["Z", "a10", "a2", "b"]


def test_folder_is_made_once(place: Place) -> None:
    """Making a folder that exists, as folder or file, fails; a new one is empty."""
    place.files.mkdir(place.path("d"))
    assert place.files.listdir(place.path("d")) == []
    place.put("f", b"")
    for name in ("d", "f"):
        with pytest.raises(FileExistsError):
            place.files.mkdir(place.path(name))


def test_existence_is_of_files_and_folders(place: Place) -> None:
    """`exists` knows both, and what lies below a file or below nothing does not exist."""
    place.put("f", b"")
    assert place.files.exists(place.folder)
    assert place.files.exists(place.path("f"))
    assert not place.files.exists(place.path("g"))
    assert not place.files.exists(place.path("f/below"))
    assert not place.files.exists(place.path("g/below"))


def test_folder_sync_needs_a_folder(place: Place) -> None:
    """Syncing a folder succeeds; a file or nothing in its place is an error."""
    place.files.fsync_dir(place.folder)
    place.put("f", b"")
    for name, error in (("f", NotADirectoryError), ("g", FileNotFoundError)):
        with pytest.raises(error):
            place.files.fsync_dir(place.path(name))


def test_folder_is_no_file(place: Place) -> None:
    """A folder cannot be opened for writing nor unlinked."""
    place.files.mkdir(place.path("d"))
    with pytest.raises(IsADirectoryError):
        place.files.open(place.path("d"))
    with pytest.raises(OSError):
        place.files.unlink(place.path("d"))


def test_boot_id_is_stable(place: Place) -> None:
    """Within one boot it is one printable word or sentence."""
    assert place.files.boot_id() == place.files.boot_id().strip() != ""


def test_lock_excludes_and_names_its_owner(place: Place) -> None:
    """The second taker is refused with the owner's record, and succeeds once the first has let go."""
    lock = place.files.lock(place.path("LOCK"))
    assert lock.owner() == b""
    record = b'{"pid":12,"host":"seven","started":"2026-01-31T12:00:00Z"}'
    lock.write_owner(record)
    with pytest.raises(Locked, match="process 12 on seven, which started at 2026-01-31T12:00:00Z"):
        place.files.lock(place.path("LOCK"))
    lock.close()
    lock.close()
    second = place.files.lock(place.path("LOCK"))
    assert second.owner() == record
    second.close()


def test_shorter_owner_record_replaces_a_longer_one(place: Place) -> None:
    """Nothing of the old record is left behind the new one."""
    lock = place.files.lock(place.path("LOCK"))
    lock.write_owner(b"a long record of an old owner")
    lock.write_owner(b"short")
    assert lock.owner() == b"short"
    with pytest.raises(ValueError, match="4096"):
        lock.write_owner(bytes(OWNER_BYTES_MAX + 1))
    lock.close()


def test_reading_the_lock_file_does_not_release_it(place: Place) -> None:
    """Other handles of the lock file come and go (POSIX record locks would fall with them)."""
    lock = place.files.lock(place.path("LOCK"))
    place.files.read_file(place.path("LOCK"))
    with pytest.raises(Locked, match="no owner record"):
        place.files.lock(place.path("LOCK"))
    lock.close()


def test_atomic_write_makes_and_replaces(place: Place) -> None:
    """It leaves the new content, shorter or longer, and no temporary file, not even an earlier crash's."""
    path = place.path("instance.json")
    place.put("instance.json" + TEMP_SUFFIX, b"the half of an earlier and much longer attempt")
    for data in (b"first version", b"second", b""):
        place.files.write_file_atomic(path, data)
        assert place.files.read_file(path) == data
        assert place.files.listdir(place.folder) == ["instance.json"]


def test_atomic_write_needs_its_folder(place: Place) -> None:
    """Without the folder it fails and makes nothing."""
    with pytest.raises(FileNotFoundError):
        place.files.write_file_atomic(place.path("no/such"), b"")
    assert place.files.listdir(place.folder) == []


def test_quarantine_replaces_nothing(place: Place) -> None:
    """Evidence of a second look gets its own name."""
    paths = [place.files.quarantine(place.path("torn"), data) for data in (b"one", b"two", b"three")]
    assert paths == [place.path("torn"), place.path("torn.1"), place.path("torn.2")]
    assert [place.files.read_file(path) for path in paths] == [b"one", b"two", b"three"]


def test_temporaries_are_cleared(place: Place) -> None:
    """Only names with the suffix go, and their names are told."""
    place.put("a" + TEMP_SUFFIX, b"x")
    place.put("b", b"y")
    assert place.files.clear_temporaries(place.folder) == ["a" + TEMP_SUFFIX]
    assert place.files.clear_temporaries(place.folder) == []
    assert place.files.listdir(place.folder) == ["b"]


# What only the operating system does


def test_short_write_of_the_system_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pwrite that takes less is told with both numbers, and not continued."""
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data)[:3], offset))
    with pytest.raises(ShortWrite, match=r"offset 7 of .*/a took 3 of 5 bytes"):
        file.pwrite(b"abcde", 7)
    assert file.size() == 10


def test_length_of_a_wide_view_is_counted_in_bytes(tmp_path: Path) -> None:
    """A view of larger items has fewer of them than bytes, and its write is still whole."""
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    file.pwrite(memoryview(bytes(16)).cast("Q"), 0)
    assert file.size() == 16


def test_short_read_of_the_system_is_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the file's end shortens a read."""
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    file.pwrite(b"abcdefgh", 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: pread(fd, min(size, 3), offset))
    assert file.pread(100, 1) == b"bcdefgh"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs Linux")
def test_full_device_is_disk_full() -> None:
    """ENOSPC from the kernel becomes DiskFull and names the file."""
    file = RealFiles().open("/dev/full")
    with pytest.raises(DiskFull, match="/dev/full"):
        file.pwrite(b"x", 0)
    file.close()


def test_unreadable_file_is_corrupt_with_its_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO of a read is damage at a place, not a crash."""

    def fail(fd: int, size: int, offset: int) -> bytes:
        raise OSError(5, "Input/output error")

    file = RealFiles().open(str(tmp_path / "a"), create=True)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(Corrupt, match="/a at offset 512"):
        file.pread(10, 512)


@pytest.mark.parametrize("call", ["fsync", "fdatasync"])
def test_failed_sync_of_the_system_is_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """EIO of a sync is raised at the first time: a retry could succeed and lie."""
    calls: list[int] = []

    def fail(fd: int) -> None:
        calls.append(fd)
        raise OSError(5, "Input/output error")

    file = RealFiles().open(str(tmp_path / "a"), create=True)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(WriteFailed, match=call):
        getattr(file, call)()
    assert calls == [file.fd]


def test_unreadable_folder_never_looks_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where looking is not permitted, `exists` raises: a node directory would be taken for a new one."""

    def refuse(path: str) -> os.stat_result:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "stat", refuse)
    with pytest.raises(PermissionError, match="closed"):
        RealFiles().exists(str(tmp_path / "closed"))


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    """A spawned process gets neither the log's files nor its lock."""
    file = RealFiles().open(str(tmp_path / "a"), create=True)
    assert not os.get_inheritable(file.fd)


def test_file_is_not_for_everybody(tmp_path: Path) -> None:
    """New files and folders give nothing to other users."""
    files = RealFiles()
    files.write_file_atomic(str(tmp_path / "a"), b"")
    files.mkdir(str(tmp_path / "d"))
    assert [os.stat(tmp_path / name).st_mode & 0o007 for name in ("a", "d")] == [0, 0]


def test_error_of_a_missing_file_keeps_nothing_of_its_callers(tmp_path: Path) -> None:
    """What a function held that looked for a file in vain is freed with it, without the collector of cycles."""

    class Held:
        """As large as a segment, perhaps."""

    def look() -> weakref.ref[Held]:
        held = Held()
        with contextlib.suppress(FileNotFoundError):
            RealFiles().read_file(str(tmp_path / "nothing"))
        return weakref.ref(held)

    gc.disable()
    try:
        assert look()() is None
    finally:
        gc.enable()
