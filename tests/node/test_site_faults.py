"""What is done about a site's end, and when one that cannot run is tried again."""

from __future__ import annotations

import signal

import pytest

from cmdlog.node.sites.site_faults import (
    FULL,
    ROOM_BYTES,
    SUSPECTS_MAX,
    OutageStage,
    ReadSuspects,
    Remedies,
    SiteFault,
    SiteOutage,
)

ROOM = 100 * ROOM_BYTES


def fault(kind: str, *, index: int = 7, position: int = 2) -> SiteFault:
    """A fault of partition 3."""
    return SiteFault(kind, "planted", partition=3, index=index, position=position)


def outage(cause: SiteFault) -> SiteOutage:
    """An outage that begins at 0 s with this fault."""
    made = SiteOutage(cause, 0.0, give_up_after_s=10.0)
    made.fail(cause, 0.0, free_bytes=0)
    return made


@pytest.mark.parametrize(
    ("faults", "remedies"),
    [
        ([fault("io"), fault("io")], ["wait", "wait"]),
        ([SiteFault("died", "idle")], ["restart"]),
        ([fault("died"), fault("died"), fault("died")], ["restart", "skip", "wait"]),
        ([fault("hung"), fault("hung")], ["skip", "wait"]),
        ([fault("hung", position=-1)], ["wait"]),
    ],
)
def test_a_call_is_skipped_once_and_only_where_one_is_to_blame(faults: list[SiteFault], remedies: list[str]) -> None:
    """A fault of the machine waits, a first end is tried again, and a second one at the same call skips it."""
    chosen = Remedies(restarts_max=2)
    assert [chosen.choose(each) for each in faults] == remedies


READ = b"[[4,[1],1]]"


@pytest.mark.parametrize(
    ("kind", "number", "blamed"),
    [
        ("hung", 0, [True, True]),
        ("hung", signal.SIGSTOP, [False, True]),
        ("died", 0, [True, True]),
        ("died", signal.SIGSEGV, [True, True]),
        ("died", signal.SIGABRT, [True, True]),
        ("died", signal.SIGKILL, [False, True]),
        ("died", signal.SIGHUP, [False, True]),
        ("memory", 0, [False, True]),
        (FULL, 0, [False, False]),
        ("io", 0, [False, False]),
        ("refused", 0, [False, False]),
    ],
)
def test_a_read_is_blamed_at_once_a_second_time_or_never(kind: str, number: int, blamed: list[bool]) -> None:
    """As it is certain, may have come from outside, or is met by any other call as well."""
    suspects, cause = ReadSuspects(), SiteFault(kind, "planted", partition=3, read=9, signal=number)
    assert [suspects.is_to_blame(cause, 3, READ) for _ in blamed] == blamed


def test_a_read_that_was_answered_is_no_suspect_any_more() -> None:
    """Nor is another call, the same on another partition, or one from before many others."""
    suspects, cause = ReadSuspects(), SiteFault("died", "planted", partition=3, read=9, signal=signal.SIGKILL)
    for _ in range(2):
        assert not suspects.is_to_blame(cause, 3, READ)
        suspects.acquit(2, READ)
        suspects.acquit(3, READ)
    assert [suspects.is_to_blame(cause, p, calls) for p, calls in ((3, READ), (2, READ), (3, b"[]"))] == [False] * 3
    for number in range(SUSPECTS_MAX):
        suspects.is_to_blame(cause, 3, b"[%d]" % number)
    assert not suspects.is_to_blame(cause, 3, READ)


def test_an_outage_ends_when_its_batch_is_applied() -> None:
    """Entries of other partitions, and earlier ones, end nothing."""
    made = outage(fault("io"))
    assert made.begin_try(0.5, lambda: ROOM) is None
    assert made.begin_try(1.0, lambda: ROOM) is OutageStage.DOWN
    made.start({3: 6}, held=False)
    made.note_applied(2, 9)
    made.note_applied(3, 6)
    assert (made.stage, made.begin_try(99.0, lambda: ROOM)) == (OutageStage.TRYING, None)
    made.note_applied(3, 7)
    assert made.stage is OutageStage.OVER


def test_a_fault_after_the_batch_was_applied_begins_the_waiting_again() -> None:
    """The end that the reader saw is not acted on: the site is down, and is tried again."""
    made = outage(fault("io"))
    made.begin_try(1.0, lambda: ROOM)
    made.start({3: 6}, held=False)
    made.note_applied(3, 7)
    made.fail(fault("io", index=8), 2.0, free_bytes=0)
    assert (made.stage, made.begin_try(3.0, lambda: ROOM)) == (OutageStage.DOWN, None)
    assert made.begin_try(4.0, lambda: ROOM) is OutageStage.DOWN


def test_a_successor_on_a_full_volume_serves_reads_until_room_came() -> None:
    """It gets the batch with the next try, which comes early when the volume has room."""
    made = outage(fault(FULL))
    made.fail(fault(FULL), 0.0, free_bytes=0)
    made.start({3: 6}, held=True)
    assert (made.stage, made.begin_try(1.5, lambda: ROOM_BYTES - 1)) == (OutageStage.READ_ONLY, None)
    assert made.begin_try(1.5, lambda: ROOM_BYTES) is OutageStage.READ_ONLY
    assert made.stage is OutageStage.TRYING


@pytest.mark.parametrize(("index", "position", "stage"), [(0, 5, OutageStage.READ_ONLY), (7, 7, OutageStage.OVER)])
def test_a_held_successor_that_has_the_batch_ends_the_outage(index: int, position: int, stage: OutageStage) -> None:
    """Where no batch was to blame, it first waits for the next try."""
    made = outage(fault(FULL, index=index))
    made.start({3: position}, held=True)
    assert made.stage is stage


def test_callers_are_given_up_once() -> None:
    """They hear it when the time is over, and not again."""
    made = outage(fault("io"))
    assert [made.give_up(now) for now in (10.0, 10.1, 99.0)] == [False, True, False]
