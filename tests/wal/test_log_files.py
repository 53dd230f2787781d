"""The files of a new log."""

from __future__ import annotations

import pytest

from cmdlog.wal.directory.instance import Instance
from cmdlog.wal.errors import DiskFull, RecordsTooLarge
from cmdlog.wal.hard_state import open_hardstate
from cmdlog.wal.opening.survey import identity_text
from cmdlog.wal.writing.log_files import create_log_files
from tests.wal.logkit import IDENTITY, LOG, NODE, RESERVE_BYTES, SEGMENT_BYTES, SEGMENTS, hard_state
from tests.wal.sim.simfiles import SimFiles

INSTANCE = Instance(IDENTITY, SEGMENT_BYTES, SEGMENTS, RESERVE_BYTES, None)


def folder() -> SimFiles:
    """A disk with an empty folder for the log."""
    files = SimFiles()
    files.mkdir(NODE)
    files.mkdir(LOG)
    return files


def test_vote_of_the_initial_records_is_in_the_hard_state() -> None:
    """A node that begins with a vote never forgets it, and its first durable block is the one that holds the vote."""
    files = folder()
    create_log_files(files, LOG, INSTANCE, [hard_state(1, 7)], generation=1000, whole_ring=False)
    hard = open_hardstate(files, LOG)
    assert (hard.state.identity, hard.state.durable) == (identity_text(IDENTITY), 2)
    assert {group: tuple(vote)[:2] for group, vote in hard.state.votes.items()} == {0: (1, 7)}


def test_one_segment_is_made_or_the_space_of_all() -> None:
    """What is not in use yet waits under a temporary name, since it holds no zeros."""
    for whole_ring, count in ((False, 1), (True, SEGMENTS)):
        files = folder()
        create_log_files(files, LOG, INSTANCE, [], generation=1000, whole_ring=whole_ring)
        assert sum(name.startswith(("seg-", "free-")) for name in files.listdir(LOG)) == count


def test_ring_that_does_not_fit_leaves_nothing() -> None:
    """A volume that is too small is as it was, and the error says what the log takes."""
    files = folder()
    files.capacity_bytes = files.disk.used_bytes() + 3 * SEGMENT_BYTES
    with pytest.raises(DiskFull, match=f"the log takes {SEGMENTS * SEGMENT_BYTES} bytes"):
        create_log_files(files, LOG, INSTANCE, [], generation=1000, whole_ring=True)
    assert files.listdir(LOG) == []


def test_initial_records_leave_half_of_the_first_segment() -> None:
    """More than that is refused before a file is made: the segment must still hold calls."""
    files = folder()
    with pytest.raises(RecordsTooLarge, match=f"half a segment is {SEGMENT_BYTES // 2}"):
        create_log_files(files, LOG, INSTANCE, [bytes(SEGMENT_BYTES // 2)], generation=1000, whole_ring=False)
    assert files.listdir(LOG) == []
