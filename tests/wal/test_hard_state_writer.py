"""Votes in their two places: how long a vote takes, and what is left of it when one place is damaged."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from cmdlog.wal.errors import WriteFailed
from cmdlog.wal.hard_state import COPY_BYTES, HardStateCopies, read_hardstate
from tests.waiting import wait_for
from tests.wal.logkit import LOG, hard_state, open_log, sim
from tests.wal.sim.simfiles import Operation, SimCrash, SimFiles
from tests.wal.threadkit import WAIT_S, threaded


def voted(*votes: int) -> SimFiles:
    """The disk after votes in terms 2, 3, …, each acknowledged, and a power cut that takes what nobody synced."""
    files = sim()
    log, source = open_log(files)
    for term, vote in enumerate(votes, 2):
        source.waiting.append((term, hard_state(term, vote)))
        log.run_turn()
    assert source.acknowledged == list(range(2, 2 + len(votes)))
    return files.power_cut(random.Random(0), "none")


def newest_block(files: SimFiles) -> None:
    """Damages the block of the last vote."""
    data = files.read_file(f"{LOG}/seg-0000000000000001.wal")
    files.flip_bit(f"{LOG}/seg-0000000000000001.wal", 8 * (data.rindex(b'"vote"') + 2))


def copy_of_file(number: int) -> Callable[[SimFiles], None]:
    """Damages a copy of the hard state."""
    return lambda files: files.flip_bit(f"{LOG}/hardstate", 8 * (number * COPY_BYTES + 40))


@pytest.mark.parametrize("votes", [(9,), (9, 8), (9, 8, 9)])
@pytest.mark.parametrize("damage", [copy_of_file(0), copy_of_file(1), newest_block], ids=["copy 0", "copy 1", "block"])
def test_a_vote_outlives_damage_to_any_one_of_its_places(votes: tuple[int, ...], damage: Callable[[SimFiles], None]) -> None:
    """Whichever place is damaged right after the vote was acknowledged, the node knows its term and vote at the next start."""
    files = voted(*votes)
    damage(files)
    log, _ = open_log(files)
    assert log.recovered.groups.votes == {0: (1 + len(votes), votes[-1])}
    assert read_hardstate(files, LOG)[2] is HardStateCopies.EQUAL


def test_a_copy_that_is_behind_is_no_damage() -> None:
    """A start after a vote and a kill says nothing of a damaged copy."""
    files = voted(9)
    assert read_hardstate(files, LOG)[2] is HardStateCopies.BEHIND
    log, _ = open_log(files)
    assert not any("hard state" in note for note in log.recovered.notes)


def test_the_other_copy_follows() -> None:
    """Work in the background brings both copies to the same votes."""
    files = sim()
    log, source = open_log(files)
    source.waiting.append((2, hard_state(2, 9)))
    log.run_turn()
    log.run_background_work()
    assert read_hardstate(files, LOG)[2] is HardStateCopies.EQUAL
    assert read_hardstate(files, LOG)[0].votes == {0: (2, 9)}


def test_a_vote_takes_one_sync() -> None:
    """Block and hard state are on their way to the disk at the same moment, and the vote counts when both are there."""
    files = sim()
    log, source = threaded(files)
    begun = {"hardstate": threading.Event(), "block": threading.Event()}

    def meet(operation: Operation) -> None:
        if operation.kind != "fdatasync":
            return
        mine, other = ("hardstate", "block") if operation.path.endswith("hardstate") else ("block", "hardstate")
        begun[mine].set()
        assert begun[other].wait(WAIT_S)

    wait_for(lambda: log._space.ready > 0)
    files.before = meet
    source.waiting.append((2, hard_state(2, 9)))
    log.kick()
    source.wait(lambda: source.acknowledged == [2])
    assert read_hardstate(files, LOG)[0].votes == {0: (2, 9)}
    log.close()


def test_a_vote_whose_second_place_fails_is_never_acknowledged() -> None:
    """The log stops when the hard state cannot be written, although the vote's block could."""
    files = sim()
    log, source = threaded(files)
    wait_for(lambda: log._space.ready > 0)

    def fail(operation: Operation) -> None:
        if operation.kind == "fdatasync" and operation.path.endswith("hardstate"):
            raise WriteFailed("the disk of the hard state is gone")

    files.before = fail
    source.waiting.append((2, hard_state(2, 9)))
    log.kick()
    source.wait(lambda: bool(source.errors))
    assert source.acknowledged == []


def test_one_copy_is_whole_at_every_moment() -> None:
    """With one copy damaged, a power cut at any moment while it is healed leaves the other one."""
    files, at = voted(), 1
    copy_of_file(1)(files)
    while True:
        dying = files.power_cut(random.Random(at), "none")
        dying.crash_at(at)
        try:
            open_log(dying)
        except SimCrash:
            dark = dying.power_cut(random.Random(at), "random")
            assert read_hardstate(dark, LOG)[0].votes == {0: (1, 7)}
            at += 1
        else:
            break
    assert at > 4
