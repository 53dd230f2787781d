"""The simulated disk: what each fault does, what a power cut may leave, and that it does so again with the same seed."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmdlog.wal.errors import Corrupt, DiskFull, Locked, ShortWrite, WalError, WriteFailed
from cmdlog.wal.files import File, parent
from cmdlog.wal.simdisk import SECTOR, Keep
from cmdlog.wal.simfiles import Fault, Hit, Operation, SimCrash, SimFiles

SEEDS = range(60)
CUTS: tuple[Keep, ...] = ("none", "all", "random")


def durable_file(files: SimFiles, path: str, data: bytes = b"") -> File:
    """A file whose content and name survive a power cut."""
    file = files.open(path, create=True)
    file.pwrite(data, 0)
    file.fsync()
    files.fsync_dir(parent(path))
    return file


def left(files: SimFiles, path: str, keep: Keep = "none", seed: int = 0) -> bytes:
    """Content after a power cut now."""
    return files.power_cut(random.Random(seed), keep).read_file(path)


def cuts(files: SimFiles) -> Iterator[SimFiles]:
    """Many disks that a power cut may leave now."""
    for seed in SEEDS:
        yield files.power_cut(random.Random(seed))


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


def test_sync_by_the_next_process_saves_the_last_ones_writes() -> None:
    """After a kill, opening and syncing makes the cached bytes durable, as on a real kernel."""
    files = SimFiles()
    durable_file(files, "/a", b"old!").pwrite(b"new!", 0)
    after = files.kill()
    after.open("/a").fdatasync()
    assert left(after, "/a") == b"new!"


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


@pytest.mark.slow
@given(st.data())
@settings(max_examples=150, deadline=None)
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


def test_lock_ends_with_its_process() -> None:
    """After kill or power cut the lock is free and the owner record still tells of its last holder."""
    files = SimFiles()
    files.lock("/LOCK").write_owner(b"pid 1")
    files.fsync_dir("/")
    for after in (files.kill(), files.power_cut(random.Random(0), "none")):
        assert after.lock("/LOCK").owner() == b"pid 1"
    with pytest.raises(Locked):
        files.lock("/LOCK")


# Threads, and seeing each operation


def test_syncs_overlap_and_cover_what_they_began_with() -> None:
    """With one sync held open a write and a second sync pass it; the held one makes nothing durable that came after it began."""
    held, entered = threading.Event(), threading.Event()

    def hold_first_sync(operation: Operation) -> None:
        if operation.kind == "fdatasync" and not entered.is_set():
            entered.set()
            assert held.wait(timeout=10)

    files = SimFiles()
    file = durable_file(files, "/a", b"." * 2 * SECTOR)
    files.before = hold_first_sync
    file.pwrite(b"1", 0)
    thread = threading.Thread(target=file.fdatasync)
    thread.start()
    assert entered.wait(timeout=10)
    file.pwrite(b"2", SECTOR)
    assert left(files, "/a") == b"." * 2 * SECTOR
    file.fdatasync()
    file.pwrite(b"3", SECTOR)
    assert left(files, "/a")[SECTOR : SECTOR + 1] == b"2"
    held.set()
    thread.join(timeout=10)
    assert left(files, "/a")[::SECTOR] == b"12"
    assert [operation.kind for operation in files.trace[-5:]] == ["pwrite", "fdatasync", "pwrite", "fdatasync", "pwrite"]


def test_held_sync_covers_no_later_write() -> None:
    """A write during a sync is not made durable by it."""
    files = SimFiles()
    file = durable_file(files, "/a", b"." * 2 * SECTOR)
    file.pwrite(b"1", 0)

    def write_meanwhile(operation: Operation) -> None:
        if operation.kind == "fdatasync":
            file.pwrite(b"2", SECTOR)

    files.before = write_meanwhile
    file.fdatasync()
    assert left(files, "/a")[::SECTOR] == b"1."


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


def run_script(seed: int) -> tuple[list[Operation], bytes, list[str], bytes]:
    """A run with faults, whose every result follows from the seed."""
    rng, files = random.Random(seed), SimFiles(seed)
    file = durable_file(files, "/a")
    files.fail_at(rng.randrange(1, 20), Fault.SHORT_WRITE, repeat="forever")
    for number in range(30):
        with expected_errors():
            file.pwrite(rng.randbytes(rng.randrange(1, 2000)), rng.randrange(4000))
            files.open(f"/{number}", create=True)
    after = files.power_cut(rng)
    return files.trace, after.read_file("/a"), after.listdir("/"), files.kill().read_file("/a")


@contextmanager
def expected_errors() -> Iterator[None]:
    """Lets a planned fault pass."""
    try:
        yield
    except WriteFailed:
        return


def test_same_seed_gives_the_same_run() -> None:
    """Trace, surviving names and surviving bytes repeat with the seed, and differ with another."""
    assert run_script(1) == run_script(1)
    assert run_script(1) != run_script(2)


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
