"""The simulated disk: what a power cut may leave, and that it does so again with the same seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.wal.errors import DiskFull, Locked, ShortWrite, WriteFailed
from tests.waiting import PATIENCE_S
from tests.wal.sim.simdisk import SECTOR
from tests.wal.sim.simfiles import Fault, Operation, SimCrash, SimFiles
from tests.wal.simkit import CUTS, cuts, durable_file, left

# Durability


def test_unsynced_write_may_be_lost_or_kept() -> None:
    """What is cached alone is in some cuts and not in others; synced bytes are in all."""
    files = SimFiles()
    file = durable_file(files, "/a", b"old!")
    file.pwrite(b"new!", 0)
    assert file.pread(4, 0) == b"new!"
    assert (left(files, "/a", "none"), left(files, "/a", "all")) == (b"old!", b"new!")
    assert {after.read_file("/a") for after in cuts(files)} == {b"old!", b"new!"}
    file.fdatasync()
    assert {after.read_file("/a") for after in cuts(files)} == {b"new!"}


def test_kill_keeps_the_cache_and_makes_nothing_durable() -> None:
    """The next process reads what was cached, and a power cut after that may still take it."""
    files = SimFiles()
    file = durable_file(files, "/a", b"old!")
    file.pwrite(b"new!", 0)
    files.open("/unsynced name", create=True)
    after = files.kill()
    assert after.read_file("/a") == b"new!"
    assert after.listdir("/") == ["a", "unsynced name"]
    assert after.boot_id() == files.boot_id()
    again = after.power_cut(random.Random(1), "none")
    assert again.read_file("/a") == b"old!"
    assert again.listdir("/") == ["a"]
    assert again.boot_id() != files.boot_id()


def test_write_is_torn_at_sectors_only() -> None:
    """A cut leaves any mix of old and new sectors, none of them mixed within; some mix is not a prefix."""
    files = SimFiles()
    file = durable_file(files, "/a", b"o" * 4 * SECTOR)
    file.pwrite(b"n" * 4 * SECTOR, 0)
    seen = set()
    for after in cuts(files):
        content = after.read_file("/a")
        sectors = [content[at : at + SECTOR] for at in range(0, len(content), SECTOR)]
        assert all(sector in {b"o" * SECTOR, b"n" * SECTOR} for sector in sectors)
        seen.add("".join(sector[:1].decode() for sector in sectors))
    assert {"oooo", "nnnn"} < seen
    assert any("on" in mix for mix in seen)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=50, deadline=None)
def test_power_cut_leaves_only_what_was_there(data: st.DataObject) -> None:
    """Each sector and the size are those of some moment since the last sync; what was synced is never older than that."""
    files = SimFiles()
    file = durable_file(files, "/a")
    history = [b""]
    for step in range(data.draw(st.integers(1, 8))):
        match data.draw(st.sampled_from(("write", "write", "truncate", "sync"))):
            case "write":
                size = data.draw(st.integers(1, 3 * SECTOR))
                file.pwrite(bytes([step + 1]) * size, data.draw(st.integers(0, 3 * SECTOR)))
            case "truncate":
                file.truncate(data.draw(st.integers(0, 5 * SECTOR)))
            case _:
                file.fdatasync()
                history.clear()
        history.append(file.pread(1 << 20, 0))
    content = left(files, "/a", "random", seed=data.draw(st.integers(0, 1 << 20)))
    assert len(content) in {len(old) for old in history}
    for at in range(0, len(content), SECTOR):
        sector = content[at : at + SECTOR]
        assert sector in {old[at : at + SECTOR].ljust(SECTOR, b"\0")[: len(sector)] for old in history}
    assert left(files, "/a", "all") == history[-1]
    assert left(files, "/a", "none") == history[0]


# Names


def test_new_name_is_durable_after_its_folders_sync() -> None:
    """Syncing the file does not save its name; syncing the folder does."""
    files = SimFiles()
    files.open("/a", create=True).fsync()
    assert {tuple(after.listdir("/")) for after in cuts(files)} == {(), ("a",)}
    files.fsync_dir("/")
    assert files.power_cut(random.Random(0), "none").listdir("/") == ["a"]


def test_folder_changes_survive_as_a_prefix() -> None:
    """Of three creations a cut keeps the first ones, never a later one without an earlier."""
    files = SimFiles()
    for name in "abc":
        files.open(f"/{name}", create=True)
    kept = {"".join(after.listdir("/")) for after in cuts(files)}
    assert kept == {"", "a", "ab", "abc"}


# Threads, and seeing each operation


def test_syncs_overlap_and_cover_what_they_began_with() -> None:
    """With one sync held open a write and a second sync pass it; the held one makes nothing durable that came after it began."""
    held, entered = threading.Event(), threading.Event()

    def hold_first_sync(operation: Operation) -> None:
        if operation.kind == "fdatasync" and not entered.is_set():
            entered.set()
            assert held.wait(timeout=PATIENCE_S)

    files = SimFiles()
    file = durable_file(files, "/a", b"." * 2 * SECTOR)
    files.before = hold_first_sync
    file.pwrite(b"1", 0)
    thread = threading.Thread(target=file.fdatasync)
    thread.start()
    assert entered.wait(timeout=PATIENCE_S)
    file.pwrite(b"2", SECTOR)
    assert left(files, "/a") == b"." * 2 * SECTOR
    file.fdatasync()
    file.pwrite(b"3", SECTOR)
    assert left(files, "/a")[SECTOR : SECTOR + 1] == b"2"
    held.set()
    thread.join(timeout=PATIENCE_S)
    assert left(files, "/a")[::SECTOR] == b"12"
    assert [operation.kind for operation in files.trace[-5:]] == ["pwrite", "fdatasync", "pwrite", "fdatasync", "pwrite"]


def test_power_cut_can_be_taken_at_every_operation_of_one_run() -> None:
    """The hook may cut and go on; the run ends as if nobody had looked."""
    states: list[tuple[bytes, ...]] = []

    def look(operation: Operation) -> None:
        states.append(tuple(left(files, "/a", keep) for keep in CUTS))

    files, alone = SimFiles(3), SimFiles(3)
    for disk in (files, alone):
        durable_file(disk, "/a", b"old")
        disk.before = look if disk is files else None
        disk.write_file_atomic("/a", b"new")
        disk.fail_at(1, Fault.SHORT_WRITE)
        with pytest.raises(ShortWrite):
            disk.open("/a").pwrite(bytes(100), 0)
    assert states[0] == (b"old",) * 3
    assert states[-1] == (b"new",) * 3
    assert files.trace == alone.trace
    assert files.read_file("/a") == alone.read_file("/a")


# The composed operations under every crash


def atomic_outcomes(write: Callable[[SimFiles, bytes], None]) -> tuple[set[bytes], set[bytes]]:
    """Contents found after a crash at each operation of `write`, and those found after it returned."""
    broken, done = set[bytes](), set[bytes]()
    for number in count(1):
        files = SimFiles(number)
        durable_file(files, "/a", b"old")
        files.crash_at(number)
        try:
            write(files, b"new" * 1000)
        except SimCrash:
            broken |= {after.read_file("/a") for after in (files.kill(), *cuts(files))}
            continue
        assert files.hits == []
        assert number > 3
        done |= {after.read_file("/a") for after in (files.kill(), *cuts(files))}
        return broken, done
    raise AssertionError("unreachable")


def test_atomic_write_is_old_or_new_at_every_crash() -> None:
    """Killed or powered off at any operation it leaves one whole version, and once it has returned the new one."""
    broken, done = atomic_outcomes(lambda files, data: files.write_file_atomic("/a", data))
    assert broken == {b"old", b"new" * 1000}
    assert done == {b"new" * 1000}


def test_simulation_catches_a_missing_sync() -> None:
    """Without the file's sync a cut finds neither version; without the folder's, the old one after success."""

    def without_file_sync(files: SimFiles, data: bytes) -> None:
        files.open("/a.tmp", create=True).pwrite(data, 0)
        files.rename("/a.tmp", "/a")
        files.fsync_dir("/")

    def without_folder_sync(files: SimFiles, data: bytes) -> None:
        file = files.open("/a.tmp", create=True)
        file.pwrite(data, 0)
        file.fsync()
        files.rename("/a.tmp", "/a")

    assert atomic_outcomes(without_file_sync)[1] - {b"old", b"new" * 1000}
    assert b"old" in atomic_outcomes(without_folder_sync)[1]


def test_evidence_is_durable_and_so_is_its_clearing() -> None:
    """What `quarantine` kept survives a power cut on return; what `clear_temporaries` removed does not come back."""
    files = SimFiles()
    durable_file(files, "/a.tmp")
    files.quarantine("/torn", b"evidence")
    assert left(files, "/torn") == b"evidence"
    files.clear_temporaries("/")
    assert files.power_cut(random.Random(0), "none").listdir("/") == ["torn"]


@pytest.mark.parametrize("fault", [Fault.IO_ERROR, Fault.NO_SPACE, Fault.SHORT_WRITE])
@pytest.mark.parametrize("compose", ["write_file_atomic", "quarantine"])
def test_composed_write_leaves_no_half_file_at_any_fault(fault: Fault, compose: str) -> None:
    """Whatever operation fails, the error is told, what was there stays whole, and the next attempt succeeds."""
    for number in count(1):
        files = SimFiles(number)
        durable_file(files, "/a", b"old")
        files.fail_at(number, fault)
        try:
            getattr(files, compose)("/a", b"new")
        except (WriteFailed, DiskFull):
            assert {files.read_file(f"/{name}") for name in files.listdir("/")} <= {b"old", b"new"}
            assert not [name for name in files.listdir("/") if name.endswith(".tmp")]
            getattr(files, compose)("/a", b"new")
            continue
        assert files.hits == []
        assert number > 1
        return


def test_sync_by_the_next_process_saves_the_last_ones_writes() -> None:
    """After a kill, opening and syncing makes the cached bytes durable, as on a real kernel."""
    files = SimFiles()
    durable_file(files, "/a", b"old!").pwrite(b"new!", 0)
    after = files.kill()
    after.open("/a").fdatasync()
    assert left(after, "/a") == b"new!"


def test_later_write_may_survive_an_earlier_one() -> None:
    """Writes to two files are reordered: the second alone may be on the disk."""
    files = SimFiles()
    one, two = durable_file(files, "/a", b"old"), durable_file(files, "/b", b"old")
    one.pwrite(b"new", 0)
    two.pwrite(b"new", 0)
    pairs = {(after.read_file("/a"), after.read_file("/b")) for after in cuts(files)}
    assert pairs == {(b"old", b"old"), (b"old", b"new"), (b"new", b"old"), (b"new", b"new")}


def test_truncation_never_brings_old_bytes_back() -> None:
    """Bytes cut off and grown over by zeros are there with the old size only."""
    files = SimFiles()
    file = durable_file(files, "/a", b"x" * 2000)
    file.truncate(100)
    file.truncate(1500)
    allowed = {b"x" * 2000, b"x" * 100, b"x" * 100 + bytes(1400)}
    assert {after.read_file("/a") for after in cuts(files)} <= allowed


def test_removal_and_rename_may_be_undone() -> None:
    """Before the folder's sync a cut shows the old names with the old files."""
    files = SimFiles()
    durable_file(files, "/a", b"A")
    durable_file(files, "/b", b"B")
    files.rename("/a", "/b")
    assert {tuple(after.listdir("/")) for after in cuts(files)} == {("a", "b"), ("b",)}
    assert left(files, "/b") == b"B"
    files.fsync_dir("/")
    assert left(files, "/b") == b"A"
    files.unlink("/b")
    assert left(files, "/b") == b"A"
    files.fsync_dir("/")
    assert not files.power_cut(random.Random(0), "none").exists("/b")


def test_rename_between_folders_is_one_event() -> None:
    """A cut finds the file in one of the two folders, never in both or none; syncing either settles it."""
    files = SimFiles()
    for name in ("/x", "/y"):
        files.mkdir(name)
    files.fsync_dir("/")
    durable_file(files, "/x/a", b"A")
    files.open("/y/a", create=True)  # an earlier event of the other folder, which must not undo the rename later
    files.rename("/x/a", "/y/a")
    for after in cuts(files):
        assert after.exists("/x/a") or after.read_file("/y/a") == b"A"
        assert not (after.exists("/x/a") and after.exists("/y/a") and after.read_file("/y/a") == b"A")
    files.fsync_dir("/x")
    assert left(files, "/y/a") == b"A"
    files.fsync_dir("/y")
    assert left(files, "/y/a") == b"A"


def test_file_in_a_lost_folder_is_lost() -> None:
    """Syncing a new folder does not save the folder's own name."""
    files = SimFiles()
    files.mkdir("/d")
    durable_file(files, "/d/a", b"A")
    assert files.power_cut(random.Random(0), "none").listdir("/") == []


def test_lock_ends_with_its_process() -> None:
    """After kill or power cut the lock is free and the owner record still names its last holder."""
    files = SimFiles()
    files.lock("/LOCK").write_owner(b"pid 1")
    files.fsync_dir("/")
    for after in (files.kill(), files.power_cut(random.Random(0), "none")):
        assert after.lock("/LOCK").owner() == b"pid 1"
    with pytest.raises(Locked):
        files.lock("/LOCK")


def test_held_folder_sync_covers_no_later_name() -> None:
    """A name made during the sync of its folder is not made durable by it."""
    files = SimFiles()
    files.open("/a", create=True)

    def create_meanwhile(operation: Operation) -> None:
        if operation.kind == "fsync_dir":
            files.open("/b", create=True)

    files.before = create_meanwhile
    files.fsync_dir("/")
    assert files.power_cut(random.Random(0), "none").listdir("/") == ["a"]
