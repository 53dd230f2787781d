"""Every crash point of the log: create, append, rotate, recycle, seal, close, reopen; also crashes on the way back."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable

import pytest

from cmdlog.wal.errors import WalError, Wedged, WrongDirectory
from tests.wal.logkit import (
    LOG,
    ListSource,
    append,
    at,
    create,
    hard_state,
    numbers_in,
    open_log,
    sim,
)
from tests.wal.sim.simfiles import Fault, SimCrash, SimFiles

Next = Callable[[SimFiles], SimFiles]
STEPS_MAX = 600  # operations of the longest scenario


def story(files: SimFiles, told: list[ListSource]) -> None:
    """Append, seal, fill segments, let old ones go, close, come back and go on."""
    log, source = open_log(files, first_generation=2000)
    told.append(source)
    log.anchors.set("test", at(1))
    log.run_background_work()
    append(log, source, range(1, 4))
    log.run_background_work()
    append(log, source, range(4, 12), size=5000)
    source.put(12)
    source.put(13)
    log.run_turn()
    log.anchors.set("test", at(log.durable_block))
    log.run_background_work()
    append(log, source, range(14, 22), size=5000)
    log.close()
    log, again = open_log(files, first_generation=3000)
    told.append(again)
    log.anchors.set("test", at(log.durable_block))
    log.run_background_work()
    append(log, again, range(22, 26), size=3000)
    log.close()


def acknowledged(told: list[ListSource]) -> list[int]:
    """What any of the openings acknowledged."""
    return [number for source in told for number in source.acknowledged]


def sent(told: list[ListSource]) -> list[int]:
    """What any of the openings took."""
    return [number for source in told for number in source.sent]


def check_kept(found: list[int], told: list[ListSource]) -> None:
    """What is found is a run of what was sent that ends at or after the last acknowledged one."""
    all_sent, acked = sent(told), acknowledged(told)
    if not found:
        assert not acked, f"lost {acked}"
        return
    assert found == all_sent[all_sent.index(found[0]) : all_sent.index(found[-1]) + 1], "a hole, or another order"
    assert not acked or found[-1] >= acked[-1], f"acknowledged up to {acked[-1]}, found up to {found[-1]}"


def reopen(files: SimFiles, told: list[ListSource], generation: int = 5000) -> None:
    """Opens, compares, goes on writing, and finds that too after one more restart."""
    log, source = open_log(files, first_generation=generation)
    check_kept(numbers_in(log), told)
    append(log, source, [1000, 1001])
    assert source.acknowledged == [1000, 1001]
    dark, _ = open_log(files.power_cut(random.Random(0), "none"), first_generation=generation + 250)
    found = numbers_in(dark)
    assert found[-2:] == [1000, 1001], "what the first opening counted was in the page cache alone"
    check_kept(found[:-2], told)
    log.close()
    log, _ = open_log(files, first_generation=generation + 500)
    found = numbers_in(log)
    assert found[-2:] == [1000, 1001]
    check_kept(found[:-2], told)
    log.close()


def endings(seed: int) -> list[tuple[str, Next]]:
    """Ways in which a machine may come back."""
    return [
        ("kill", lambda files: files.kill()),
        ("power cut", lambda files: files.power_cut(random.Random(seed))),
        ("power cut that keeps nothing unsynced", lambda files: files.power_cut(random.Random(seed), "none")),
        ("power cut that keeps everything", lambda files: files.power_cut(random.Random(seed), "all")),
    ]


def operations(run: Callable[[SimFiles, list[ListSource]], None], start: Callable[[], SimFiles]) -> int:
    """How many operations the scenario takes when nothing goes wrong."""
    files = start()
    before = len(files.trace)
    run(files, [])
    return len(files.trace) - before


def test_the_story_rotates_recycles_and_seals() -> None:
    """The scenario that all crash points are taken from does what it is meant to."""
    files = sim()
    told: list[ListSource] = []
    story(files, told)
    assert acknowledged(told) == list(range(1, 26))
    renames = [operation for operation in files.trace if operation.kind == "rename"]
    assert sum("seg-" in operation.target for operation in renames) >= 4
    assert sum("seg-" in operation.path for operation in renames) >= 3
    assert operations(story, sim) < STEPS_MAX


SHARES = [pytest.param(13, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.torture)]
"""Every 13th operation by default, with another start for each way to end; every single one under `-m torture`."""


@pytest.mark.parametrize("stride", SHARES)
@pytest.mark.parametrize("ending", range(4))
def test_every_crash_point_keeps_what_was_acknowledged(ending: int, stride: int) -> None:
    """Whatever operation the process dies in, everything acknowledged is there after it, in order, and nothing was made up."""
    base = sim()
    for n in range(1 + ending % stride, STEPS_MAX, stride):
        files, told = base.kill(), list[ListSource]()
        files.crash_at(n)
        try:
            story(files, told)
        except SimCrash:
            pass
        else:
            assert n > 100
            return
        reopen(endings(n)[ending][1](files), told)
    pytest.fail("the scenario never completed")


@pytest.mark.slow
def test_crashes_on_the_way_back_lose_nothing() -> None:
    """A crash at any operation of the reopening, and again, changes nothing of what is found in the end."""
    base, rng = sim(), random.Random(1)
    for n in range(20, operations(story, sim), 41):
        files, told = base.kill(), list[ListSource]()
        files.crash_at(n)
        with pytest.raises(SimCrash):
            story(files, told)
        fallen = files.kill() if n % 2 else files.power_cut(random.Random(n))
        for m in itertools.count(1):
            back = fallen.kill()
            back.crash_at(m)
            try:
                log, _ = open_log(back)
            except SimCrash:
                reopen(back.power_cut(rng), told)
                reopen(back.kill(), told)
                continue
            check_kept(numbers_in(log), told)
            break


@pytest.mark.parametrize("ending", range(4))
def test_every_crash_point_of_creation(ending: int) -> None:
    """A creation that was broken off is refused by open and swept by the next creation; one that returned is a node."""
    for n in itertools.count(1):
        files = SimFiles()
        files.crash_at(n)
        try:
            create(files, initial=[hard_state(1, 7)])
        except SimCrash:
            back = endings(n)[ending][1](files)
            try:
                log, _ = open_log(back)
            except WrongDirectory:
                create(back, initial=[hard_state(1, 7)])
                log, _ = open_log(back)
            assert log.recovered.groups.votes == {0: (1, 7)}
            continue
        assert n > 10
        return


@pytest.mark.parametrize("stride", SHARES)
@pytest.mark.parametrize("fault", [Fault.IO_ERROR, Fault.NO_SPACE, Fault.SHORT_WRITE])
@pytest.mark.parametrize("repeat", ["once", "forever"])
def test_the_nth_failure_is_never_acknowledged_over(fault: Fault, repeat: str, stride: int) -> None:
    """Whatever operation fails, once or from then on, nothing is acknowledged after it that is not there on disk."""
    base = sim()
    start = 1 + len(fault.value + repeat) % stride
    for n in range(start, STEPS_MAX, stride):
        files, told = base.kill(), list[ListSource]()
        files.fail_at(n, fault, repeat="once" if repeat == "once" else "forever")
        with contextlib.suppress(WalError, OSError):
            story(files, told)
        if not files.hits:
            return
        check_single_failure(told)
        files.heal()
        for back in (files.kill(), files.power_cut(random.Random(n)), files.power_cut(random.Random(n), "none")):
            reopen(back, told)
    pytest.fail("the scenario never completed")


def check_single_failure(told: list[ListSource]) -> None:
    """A failure is told once."""
    for source in told:
        assert len(source.errors) <= 1


def test_a_failed_sync_wedges_for_good() -> None:
    """After a failed sync nothing is accepted any more, though the disk would take it: the page cache cannot be trusted."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1])
    files.fail_at(1, Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))
    source.put(2)
    log.run_turn()
    assert [type(error).__name__ for error in source.errors] == ["WriteFailed"]
    for _ in range(2):
        with pytest.raises(Wedged):
            log.kick()
        with pytest.raises(Wedged):
            log.run_turn()
    with pytest.raises(Wedged):
        log.close()
    assert source.acknowledged == [1]
    assert len(source.errors) == 1


def test_unproved_blocks_are_written_again_before_they_count() -> None:
    """Bytes that a failed sync left in the page cache alone survive a later power cut once an opening has counted them."""
    files = sim()
    log, source = open_log(files)
    append(log, source, [1])
    files.fail_at(1, Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))
    source.put(2)
    log.run_turn()
    back = files.kill()
    log, _ = open_log(back)
    assert log.recovered.verdict.name == "UNSEALED"
    assert numbers_in(log) == [1, 2]
    later, _ = open_log(back.power_cut(random.Random(0), "none"))
    assert numbers_in(later) == [1, 2]


@pytest.mark.slow
def test_a_seal_never_vouches_for_what_is_not_on_disk_yet() -> None:
    """A start syncs the rewritten blocks before it writes their seal: a power cut in between keeps any part of either."""
    files = sim()
    log, source = open_log(files)
    files.fail_at(1, Fault.IO_ERROR, kinds=frozenset({"fdatasync"}))
    append(log, source, [1], size=8000)
    for seed in range(12):
        for n in itertools.count(1):
            back = files.kill()
            back.crash_at(n)
            try:
                open_log(back)
            except SimCrash:
                log, _ = open_log(back.power_cut(random.Random(seed)))
                assert numbers_in(log) in ([], [1])
                continue
            break


def test_evidence_of_cuts_is_kept_and_bounded() -> None:
    """Every cut leaves a copy of what it removed; only the newest few are kept."""
    files = sim()
    for round_number in range(24):
        log, source = open_log(files, first_generation=3000 + round_number)
        append(log, source, [round_number])
        log.anchors.set("test", at(log.durable_block))
        log.run_background_work()
        source.put(999, size=8000)
        files.fail_at(1, Fault.SHORT_WRITE)
        log.run_turn()
        files = files.kill()
    log, _ = open_log(files)
    cuts = [name for name in files.listdir(LOG) if name.startswith("cut-")]
    assert len(cuts) == 8
