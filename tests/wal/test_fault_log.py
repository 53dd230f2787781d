"""The fault log: what it promises about its chain, its two copies, and about others' records."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import google_crc32c
import pytest

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt, Foreign, NewerFormat, RecordsTooLarge, WalError, Wedged, WriteFailed
from cmdlog.wal.fault_log import (
    COPY_BYTES,
    COPY_NAMES,
    RECORDS_KEPT_MAX,
    FaultLog,
    FaultLogForked,
    FaultRecord,
    make_record,
    read_faults,
)
from cmdlog.wal.fault_record import DEMOTIONS_MAX, FAULT_COPY
from cmdlog.wal.files import RealFiles
from tests.wal.faultkit import CLUSTER, chain, node
from tests.wal.sim.simfiles import Fault, SimCrash, SimFiles

NODE = "/node"
FILES = RealFiles()


def log_of(folder: Path, number: int, cluster: bytes = CLUSTER) -> FaultLog:
    """The opened fault log of a node in its own directory."""
    directory = folder / f"n{number}"
    directory.mkdir(exist_ok=True)
    return FaultLog.open(FILES, str(directory), node(number, cluster))


def machine(seed: int = 0) -> SimFiles:
    """A simulated disk with a node's directory."""
    files = SimFiles(seed)
    files.mkdir(NODE)
    files.fsync_dir("/")
    return files


def paths(folder: Path, number: int) -> list[Path]:
    """The node's two files."""
    return [folder / f"n{number}" / "faults" / name for name in COPY_NAMES]


def test_record_holds_all_that_was_said(tmp_path: Path) -> None:
    """What was appended is read back whole, chained, and from another opening."""
    log = log_of(tmp_path, 1)
    assert (log.records, log.newest, log.failed) == ((), None, frozenset())
    one = log.append(failed={3, 2}, epoch=7, term=9, demotions=((1022, 5, 9), (0, 41, 9)), reason="no answer: \N{SNOWMAN}")
    other = log.append(failed=(), epoch=8, term=10)
    assert (one.sequence, one.failed, one.previous_checksum, one.epoch, one.term, one.author) == (
        1,
        frozenset({2, 3}),
        0,
        7,
        9,
        1,
    )
    assert (one.demotions, one.reason) == (((0, 41, 9), (1022, 5, 9)), "no answer: \N{SNOWMAN}")
    assert (other.sequence, other.previous_checksum, other.author) == (2, one.checksum, 1)
    assert log_of(tmp_path, 1).records == read_faults(FILES, str(tmp_path / "n1")) == (one, other)


def test_node_without_declarations_has_an_empty_log(tmp_path: Path) -> None:
    """Reading makes no files, also where there is no folder."""
    assert read_faults(FILES, str(tmp_path)) == ()
    assert not list(tmp_path.iterdir())


def test_sequence_numbers_never_restart(tmp_path: Path) -> None:
    """Old records fall off the front; numbers go on through openings, and the log stays as long as it was made."""
    log = log_of(tmp_path, 1)
    assert log.adopt(chain(RECORDS_KEPT_MAX + 9)) == RECORDS_KEPT_MAX + 9
    assert len(log.records) == RECORDS_KEPT_MAX
    assert log_of(tmp_path, 1).append(failed=(), term=1).sequence == RECORDS_KEPT_MAX + 10
    assert {path.stat().st_size for path in paths(tmp_path, 1)} == {COPY_BYTES}


def test_largest_records_fit_the_file(tmp_path: Path) -> None:
    """What does not fit beside the newest record falls off; the newest stays whole; a larger one is refused."""
    log = log_of(tmp_path, 1)
    demotions = tuple((group, 1, 1) for group in range(DEMOTIONS_MAX))
    for _ in range(14):
        log.append(failed=range(1000), term=1, demotions=demotions, reason="x" * 9999)
    assert 5 < len(log.records) < 14
    assert log_of(tmp_path, 1).records == log.records
    with pytest.raises(RecordsTooLarge):
        log.append(failed=(), term=1, demotions=(*demotions, (1, 1, 1)))


# -- copies --------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("how", ["flip", "cut", "empty", "gone", "old"])
def test_bad_copy_is_healed_from_the_other(tmp_path: Path, which: int, how: str) -> None:
    """Damaged, cut, emptied, lost or behind: the other copy counts, and after an opening both are equal and whole."""
    log = log_of(tmp_path, 1)
    log.append(failed={2}, term=1)
    old = paths(tmp_path, 1)[which].read_bytes()
    log.append(failed={2, 3}, term=2)
    damage(paths(tmp_path, 1)[which], how, old)
    assert read_faults(FILES, str(tmp_path / "n1")) == log.records
    assert log_of(tmp_path, 1).records == log.records
    one, other = (path.read_bytes() for path in paths(tmp_path, 1))
    assert one == other
    assert len(one) == COPY_BYTES


def damage(path: Path, how: str, old: bytes) -> None:
    """Does this to the file."""
    data = bytearray(path.read_bytes())
    if how == "flip":
        data[FAULT_COPY.bytes + 3] ^= 4
    if how == "gone":
        path.unlink()
    else:
        path.write_bytes({"flip": bytes(data), "cut": bytes(data[:100]), "empty": b"", "old": old}[how])


def test_two_bad_copies_are_corrupt(tmp_path: Path) -> None:
    """The error names the file, and nothing is changed."""
    log_of(tmp_path, 1).append(failed={2}, term=1)
    for path, how in zip(paths(tmp_path, 1), ("flip", "cut"), strict=True):
        damage(path, how, b"")
    before = [path.read_bytes() for path in paths(tmp_path, 1)]
    looks: list[Callable[[], object]] = [lambda: log_of(tmp_path, 1), lambda: read_faults(FILES, str(tmp_path / "n1"))]
    for look in looks:
        with pytest.raises(Corrupt, match="copy-"):
            look()
    assert [path.read_bytes() for path in paths(tmp_path, 1)] == before


def test_one_lost_and_one_bad_copy_are_corrupt(tmp_path: Path) -> None:
    """A lost file beside a damaged one never looks like a log that was not begun."""
    log_of(tmp_path, 1).append(failed={2}, term=1)
    damage(paths(tmp_path, 1)[0], "gone", b"")
    damage(paths(tmp_path, 1)[1], "flip", b"")
    with pytest.raises(Corrupt):
        log_of(tmp_path, 1)


def test_file_of_another_node_is_refused(tmp_path: Path) -> None:
    """Also of another life of the same disk, and also when only one copy was swapped."""
    log_of(tmp_path, 1).append(failed={2}, term=1)
    log_of(tmp_path, 2).append(failed={2}, term=1)
    with pytest.raises(Foreign):
        FaultLog.open(FILES, str(tmp_path / "n1"), Identity(CLUSTER, 1, b"life-xyz"))
    paths(tmp_path, 1)[1].write_bytes(paths(tmp_path, 2)[1].read_bytes())
    with pytest.raises(Foreign):
        read_faults(FILES, str(tmp_path / "n1"), node(1))


def test_newer_format_is_named(tmp_path: Path) -> None:
    """A higher version under a good checksum is not damage."""
    log_of(tmp_path, 1)
    for path in paths(tmp_path, 1):
        path.write_bytes(forged(path.read_bytes()[: FAULT_COPY.bytes], version=2))
    with pytest.raises(NewerFormat):
        log_of(tmp_path, 1)


def forged(head: bytes, *, version: int) -> bytes:
    """An empty copy of another version, with a checksum that holds."""
    data = bytearray(head)
    data[4:6] = version.to_bytes(2, "little")
    data[-4:] = google_crc32c.value(bytes(data[:-4])).to_bytes(4, "little")
    return bytes(data)


# -- crashes and full disks ----------------------------------------------------------------------------------------------------


MANY = tuple((group, 1, 1) for group in range(60))  # makes a record of more than a sector, which can be torn


def story(files: SimFiles, acknowledged: list[FaultRecord]) -> None:
    """Opens, appends, takes over another's records, marks itself, comes back."""
    log = FaultLog.open(files, NODE, node(1))
    acknowledged.append(log.append(failed={2}, term=1, demotions=MANY))
    acknowledged.append(log.append(failed={2, 3}, term=1, demotions=MANY))
    log = FaultLog.open(files, NODE, node(1))
    others = [*log.records, make_record(CLUSTER, log.newest, failed={2}, epoch=0, term=2, author=2, demotions=MANY)]
    log.adopt(others)
    acknowledged.append(others[-1])
    acknowledged.append(log.mark_rejoining(term=3))
    acknowledged.append(log.append(failed=(), term=4, demotions=MANY))


def endings(seed: int) -> list[Callable[[SimFiles], SimFiles]]:
    """Ways in which a machine may come back."""
    return [
        lambda files: files.kill(),
        lambda files: files.power_cut(random.Random(seed)),
        lambda files: files.power_cut(random.Random(seed), "none"),
        lambda files: files.power_cut(random.Random(seed), "all"),
    ]


def check_kept(files: SimFiles, acknowledged: list[FaultRecord]) -> tuple[FaultRecord, ...]:
    """All that was acknowledged is there, and at most what was under way twice."""
    found = read_faults(files, NODE, node(1))
    assert list(found[: len(acknowledged)]) == acknowledged
    assert len(found) <= len(acknowledged) + 2
    return found


def check_after(files: SimFiles, acknowledged: list[FaultRecord]) -> None:
    """All that was acknowledged is there, and appending goes on, also through a power cut."""
    found = check_kept(files, acknowledged)
    log = FaultLog.open(files, NODE, node(1))
    assert log.records == found
    record = log.append(failed={9}, term=99)
    assert record.sequence == len(found) + 1
    dark = files.power_cut(random.Random(0), "none")
    assert read_faults(dark, NODE, node(1)) == (*found, record)


def operations() -> int:
    """How many operations the story takes."""
    files = machine()
    before = len(files.trace)
    story(files, [])
    return len(files.trace) - before


def crashed_at(stop: int) -> tuple[SimFiles, list[FaultRecord]]:
    """The machine after a crash in the n-th operation of the story, and what had been acknowledged."""
    files, acknowledged = machine(stop), list[FaultRecord]()
    files.crash_at(stop)
    with contextlib.suppress(SimCrash):
        story(files, acknowledged)
    return files, acknowledged


@pytest.mark.slow
@pytest.mark.parametrize("ending", range(4))
def test_every_crash_point_keeps_what_was_acknowledged(ending: int) -> None:
    """A crash in any operation, whatever the machine then keeps of what was not synced."""
    assert operations() > 30
    for stop in range(1, operations() + 1):
        files, acknowledged = crashed_at(stop)
        check_after(endings(stop)[ending](files), acknowledged)


@pytest.mark.slow
def test_crash_on_the_way_back_loses_nothing() -> None:
    """The opening that heals, or the append after it, is interrupted anywhere, and the power goes, each time in another way."""
    for stop in range(1, operations() + 1):
        files, acknowledged = crashed_at(stop)
        for again in itertools.count(1):
            back = files.kill()
            back.crash_at(again)
            try:
                FaultLog.open(back, NODE, node(1)).append(failed={9}, term=9, demotions=MANY)
            except SimCrash:
                check_kept(back.power_cut(random.Random(f"{stop} {again}")), acknowledged)
                continue
            break


@pytest.mark.slow
@pytest.mark.parametrize("repeat", ["once", "forever"])
@pytest.mark.parametrize("fault", [Fault.IO_ERROR, Fault.NO_SPACE, Fault.SHORT_WRITE])
def test_failure_reaches_the_caller_and_nothing_goes_on_over_it(fault: Fault, repeat: str) -> None:
    """Any operation fails: the declaration is not acknowledged, no later one either, and what was acknowledged is there."""
    for number in range(1, operations() + 1):
        files, acknowledged = machine(number), list[FaultRecord]()
        files.fail_at(number, fault, repeat="once" if repeat == "once" else "forever")
        with contextlib.suppress(WalError, OSError):
            story(files, acknowledged)
            assert not files.hits, "a failure that nobody was told of"
        files.heal()
        check_after(endings(number)[number % 4](files), acknowledged)


def test_failed_sync_wedges() -> None:
    """After a failed write the page cache cannot be trusted: nothing more is taken until the next opening."""
    files = machine()
    log = FaultLog.open(files, NODE, node(1))
    files.fail_at(1, Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))
    with pytest.raises(WriteFailed):
        log.append(failed={2}, term=1)
    assert log.newest is None
    with pytest.raises(Wedged):
        log.append(failed={2}, term=1)


def test_writing_takes_no_space(tmp_path: Path) -> None:
    """The files have their full length, of real bytes, before the first record: a volume that fills up does not stop it."""
    log = log_of(tmp_path, 1)
    before = [(path.stat().st_size, path.stat().st_blocks) for path in paths(tmp_path, 1)]
    assert all(blocks * 512 >= COPY_BYTES for _, blocks in before)
    for number in range(20):
        log.append(failed={2}, term=number, reason="x" * 400)
    assert [(path.stat().st_size, path.stat().st_blocks) for path in paths(tmp_path, 1)] == before


# -- records of others ---------------------------------------------------------------------------------------------------------


def test_records_of_others_are_taken_over(tmp_path: Path) -> None:
    """Equal to the last bit, only what is new, and never back."""
    one, other = log_of(tmp_path, 1), log_of(tmp_path, 2)
    for number in range(5):
        one.append(failed={3}, term=number)
    assert other.adopt(one.records[:3]) == 3
    assert other.adopt(one.records[1:]) == 2
    assert other.adopt(one.records) == other.adopt(one.records[:2]) == other.adopt(()) == 0
    assert log_of(tmp_path, 2).records == one.records


@pytest.mark.parametrize("ahead", [1, 2])
def test_forks_are_refused_naming_both(tmp_path: Path, ahead: int) -> None:
    """Two records that follow the same one differently, also when only the record behind the fork is shown."""
    one, other = log_of(tmp_path, 1), log_of(tmp_path, 2)
    other.adopt([one.append(failed={3}, term=1)])
    other.append(failed={4}, term=2)
    for number in range(ahead):
        one.append(failed={5}, term=3 + number)
    assert one.newest is not None
    with pytest.raises(FaultLogForked, match=f"record 2 .* and record {one.newest.sequence}"):
        other.adopt(one.records[-1:])
    assert [record.failed for record in log_of(tmp_path, 2).records] == [{3}, {4}]


def test_lineage_that_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    """Who missed more records than are kept cannot tell a fork: the node has to be filled again."""
    one, other = log_of(tmp_path, 1), log_of(tmp_path, 2)
    records = chain(RECORDS_KEPT_MAX + 6)
    one.adopt(records)
    other.adopt(records[:1])
    with pytest.raises(FaultLogForked):
        other.adopt(one.records)


def test_records_of_another_cluster_or_changed_ones_are_refused(tmp_path: Path) -> None:
    """The cluster's id is part of the checksum; gaps within what is given are refused too."""
    one, foreign = log_of(tmp_path, 1), log_of(tmp_path, 2, b"cluster-number-2")
    for number in range(3):
        one.append(failed={number + 2}, term=1)
    with pytest.raises(Foreign):
        foreign.adopt(one.records)
    with pytest.raises(FaultLogForked):
        log_of(tmp_path, 3).adopt([one.records[0], one.records[2]])


def test_rejoining_node_marks_itself_once(tmp_path: Path) -> None:
    """The mark lists it beside the newest set that it knows; interrupted and called again, it stands."""
    cluster, back = log_of(tmp_path, 1), log_of(tmp_path, 3)
    for number in range(3):
        cluster.append(failed={2}, term=number)
    back.adopt(cluster.records)
    mark = back.mark_rejoining(term=7)
    assert (mark.sequence, mark.failed, mark.author, mark.is_self_mark) == (4, frozenset({2, 3}), 3, True)
    assert back.mark_rejoining(term=8) == mark
    assert cluster.adopt(back.records) == 1
    cluster.append(failed={2}, term=9)
    assert back.adopt(cluster.records) == 1
    assert back.failed == {2}


def test_mark_that_nobody_took_over_gives_way_only_to_a_set_with_the_node(tmp_path: Path) -> None:
    """The others went on without it. A set that does not list the node would make its half-filled log count: it is refused."""
    cluster, back = log_of(tmp_path, 1), log_of(tmp_path, 3)
    back.adopt([cluster.append(failed={3}, term=1)])
    back.mark_rejoining(term=2)
    cluster.append(failed={2}, term=3)
    with pytest.raises(FaultLogForked):
        back.adopt(cluster.records)
    assert back.failed == {3}
    cluster.append(failed={2, 3}, term=3)
    assert back.adopt(cluster.records) == 2
    assert log_of(tmp_path, 3).records == cluster.records
