"""The simulated disk's faults: what fails, what a failed sync loses, what lies, and crashes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from cmdlog.wal.errors import Corrupt, DiskFull, ShortWrite, WalError, WriteFailed
from tests.wal.sim.simdisk import SECTOR
from tests.wal.sim.simfiles import Fault, Hit, SimCrash, SimFiles
from tests.wal.simkit import CUTS, SEEDS, durable_file, left

# Faults


def test_failed_sync_loses_its_pages_and_a_retry_lies() -> None:
    """Reads still see the bytes, a second sync succeeds, and a power cut shows that they never were on the disk."""
    for kind in ("fdatasync", "fsync"):
        files = SimFiles()
        file = durable_file(files, "/a", b"old!")
        file.pwrite(b"new!", 0)
        files.fail_at(1, Fault.IO_ERROR)
        with pytest.raises(WriteFailed, match=kind):
            getattr(file, kind)()
        getattr(file, kind)()
        assert file.pread(4, 0) == b"new!"
        assert left(files, "/a", "all") == b"old!"
        assert [hit.operation.kind for hit in files.hits] == [kind]


def test_failed_folder_sync_loses_its_names_and_a_retry_lies() -> None:
    """The same holds for names."""
    files = SimFiles()
    files.open("/a", create=True)
    files.fail_at(1, Fault.IO_ERROR)
    with pytest.raises(WriteFailed, match="folder /"):
        files.fsync_dir("/")
    files.fsync_dir("/")
    assert files.exists("/a")
    assert files.power_cut(random.Random(0), "all").listdir("/") == []


@pytest.mark.parametrize(("fault", "error"), [(Fault.IO_ERROR, WriteFailed), (Fault.NO_SPACE, DiskFull)])
def test_every_operation_can_fail(fault: Fault, error: type[WalError]) -> None:
    """Each kind of operation fails with the error of its fault, names its path, takes no effect, and works the next time."""
    files = SimFiles()
    files.mkdir("/d")
    file = durable_file(files, "/d/a", b"old")
    actions: dict[str, Callable[[], object]] = {
        "create": lambda: files.open("/d/new", create=True),
        "mkdir": lambda: files.mkdir("/d/folder"),
        "pwrite": lambda: file.pwrite(b"new", 0),
        "truncate": lambda: file.truncate(1),
        "fdatasync": file.fdatasync,
        "fsync": file.fsync,
        "rename": lambda: files.rename("/d/a", "/d/b"),
        "fsync_dir": lambda: files.fsync_dir("/d"),
        "unlink": lambda: files.unlink("/d/new"),
    }
    for kind, action in actions.items():
        if kind == "unlink" and fault is Fault.NO_SPACE:
            continue
        before = files.listdir("/d"), file.pread(9, 0)
        files.fail_at(1, fault)
        with pytest.raises(error, match="/d"):
            action()
        assert (files.listdir("/d"), file.pread(9, 0)) == before
        action()
        assert files.hits[-1] == Hit(files.trace[-2], fault)
        assert files.trace[-1].kind == kind


def test_fault_comes_at_its_number_once_or_for_ever() -> None:
    """The n-th operation of the kinds asked for fails; `forever`, so does every later one until the disk is healed."""
    files = SimFiles()
    file = durable_file(files, "/a")
    files.fail_at(2, Fault.IO_ERROR, repeat="forever", kinds=frozenset({"fdatasync"}))
    file.pwrite(b"1", 0)
    file.fdatasync()
    for _ in range(3):
        file.pwrite(b"2", 0)
        with pytest.raises(WriteFailed):
            file.fdatasync()
    assert len(files.hits) == 3
    files.heal()
    file.fdatasync()
    with pytest.raises(ValueError, match="SHORT_WRITE"):
        files.fail_at(1, Fault.SHORT_WRITE, kinds=frozenset({"fsync"}))


def test_full_disk_refuses_growth_alone() -> None:
    """Without space, overwriting and removing go on, and writing works again when space returns."""
    files = SimFiles(capacity_bytes=1000)
    file = durable_file(files, "/a", bytes(900))
    with pytest.raises(DiskFull, match="/b"):
        files.write_file_atomic("/b", bytes(101))
    assert files.listdir("/") == ["a"]
    files.capacity_bytes = 500  # somebody else filled the volume
    file.pwrite(b"x" * 900, 0)
    files.capacity_bytes = 2000
    files.write_file_atomic("/b", bytes(101))
    files.unlink("/a")


def test_damage_at_rest_is_in_cache_and_on_disk() -> None:
    """Flipped bits, foreign bytes and swapped files are seen at once and after a power cut; nothing counts as an operation."""
    files = SimFiles()
    durable_file(files, "/a", b"abc" + bytes(SECTOR))
    durable_file(files, "/b", b"B").pwrite(b"C", 0)
    before = len(files.trace)
    files.flip_bit("/a", 8)
    files.overwrite("/a", SECTOR, b"xyz")
    files.overwrite("/b", 0, b"D")
    for content in (files.read_file("/a"), left(files, "/a")):
        assert content == b"acc" + bytes(SECTOR - 3) + b"xyz"
    assert {left(files, "/b", keep) for keep in CUTS} == {b"D"}
    files.flip_bit("/a", 8)
    files.swap("/a", "/b")
    assert files.read_file("/b")[:3] == left(files, "/b")[:3] == b"abc"
    with pytest.raises(ValueError, match="ends at"):
        files.overwrite("/a", 0, b"too long")
    assert len(files.trace) == before


# The end of the process


def test_crash_ends_everything() -> None:
    """At its operation and after it every call raises, by every way in; closing does not, since `finally` blocks run."""
    files = SimFiles()
    file = durable_file(files, "/a", b"old")
    lock = files.lock("/LOCK")
    files.crash_at(2)
    file.pwrite(b"one", 0)
    calls: list[Callable[[], object]] = [
        file.fdatasync,
        file.size,
        lambda: file.pread(1, 0),
        lambda: file.pwrite(b"", 0),
        lambda: files.listdir("/"),
        lambda: files.exists("/a"),
        lambda: files.open("/a"),
        lambda: files.write_file_atomic("/b", b""),
    ]
    for call in calls:
        with pytest.raises(SimCrash):
            call()
    file.close()
    lock.close()
    assert files.kill().read_file("/a") == b"one"
    assert left(files, "/a") == b"old"


def test_failed_sync_loses_growth() -> None:
    """A file that grew before a failed sync has its old size after a power cut."""
    files = SimFiles()
    file = durable_file(files, "/a", b"old")
    file.pwrite(b"grown", 3)
    files.fail_at(1, Fault.NO_SPACE)
    with pytest.raises(DiskFull):
        file.fdatasync()
    file.fdatasync()
    assert left(files, "/a", "all") == b"old"


def test_write_after_a_failed_sync_takes_its_sector_along() -> None:
    """A later write makes its whole sector dirty again, and no other."""
    files = SimFiles()
    file = durable_file(files, "/a", b"o" * 2 * SECTOR)
    file.pwrite(b"n" * 2 * SECTOR, 0)
    files.fail_at(1, Fault.IO_ERROR)
    with pytest.raises(WriteFailed):
        file.fdatasync()
    file.pwrite(b"!", 0)
    file.fdatasync()
    assert left(files, "/a") == b"!" + b"n" * (SECTOR - 1) + b"o" * SECTOR


def test_short_write_applies_a_part_and_says_so() -> None:
    """Some first bytes are written, the rest is not, and the error has both numbers."""
    lengths = set()
    for seed in SEEDS:
        files = SimFiles(seed)
        file = durable_file(files, "/a", b"old")
        files.fail_at(1, Fault.SHORT_WRITE)
        with pytest.raises(ShortWrite, match="of 3000 bytes"):
            file.pwrite(b"n" * 3000, 0)
        done = len(file.pread(3000, 0).rstrip(b"old"))
        assert file.pread(3000, 0)[:done] == b"n" * done
        lengths.add(done)
    assert len(lengths) > 10
    assert max(lengths) < 3000


def test_lost_write_is_seen_only_without_the_cache() -> None:
    """Write and sync succeed and reads see the bytes; after a power cut the old ones are back."""
    files = SimFiles()
    file = durable_file(files, "/a", b"o" * SECTOR)
    files.fail_at(1, Fault.LOST_WRITE)
    file.pwrite(b"n" * SECTOR, 0)
    file.fdatasync()
    assert file.pread(1, 0) == b"n"
    assert left(files, "/a", "all") == b"o" * SECTOR
    assert len(files.hits) == 1


def test_misdirected_write_damages_two_places() -> None:
    """The sector that was meant keeps its old bytes, and the next one gets them."""
    files = SimFiles()
    file = durable_file(files, "/a", b"o" * 3 * SECTOR)
    files.fail_at(1, Fault.MISDIRECTED_WRITE)
    file.pwrite(b"n" * SECTOR, 0)
    file.fdatasync()
    assert file.pread(3 * SECTOR, 0) == b"n" * SECTOR + b"o" * 2 * SECTOR
    assert left(files, "/a") == b"o" * SECTOR + b"n" * SECTOR + b"o" * SECTOR


def test_unreadable_sector_is_corrupt_until_written() -> None:
    """Reads that touch it name file and offset, others succeed, also after a power cut; a write heals it."""
    files = SimFiles()
    durable_file(files, "/a", bytes(3 * SECTOR))
    files.make_unreadable("/a", SECTOR + 5)
    after = files.power_cut(random.Random(0), "none")
    for disk in (files, after):
        file = disk.open("/a")
        assert file.pread(SECTOR, 0) == file.pread(SECTOR, 2 * SECTOR) == bytes(SECTOR)
        with pytest.raises(Corrupt, match="/a at offset 500"):
            file.pread(20, 500)
    files.open("/a").pwrite(bytes(SECTOR), SECTOR)
    assert len(files.read_file("/a")) == 3 * SECTOR


def test_crash_in_a_write_leaves_a_part() -> None:
    """A kill in the middle of a write finds some first bytes of it in the cache."""
    found = set()
    for seed in SEEDS:
        files = SimFiles(seed)
        file = durable_file(files, "/a")
        files.crash_at(1)
        with pytest.raises(SimCrash):
            file.pwrite(b"n" * 2000, 0)
        found.add(len(files.kill().read_file("/a")))
    assert len(found) > 10
    assert max(found) < 2000
