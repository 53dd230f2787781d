"""Worker processes seen from outside: when one hangs, and what follows when one ends before its work does."""

from __future__ import annotations

import mmap
from typing import Any, cast

import pytest

from cmdlog.child_process import PIPE, ChildProcess
from replay.errors import WorkerFailed
from replay.recover.partition_replay import IDLE, IN_BATCH
from replay.recover.worker_pool import CELL, CLOSER_LOOK_S, DEFECT_CODE, INCIDENTS_MAX, Incident, ReplayWorker, WorkerPool


def worker(*, careful: bool) -> ReplayWorker:
    """A worker without a process."""
    process = cast("ChildProcess", None)
    return ReplayWorker([0], process, mmap.mmap(-1, mmap.PAGESIZE), careful)


def test_long_batch_gets_a_closer_look_long_before_a_call_is_given_up() -> None:
    """A batch may run a minute, then it is run call by call; a call may run as long as the terms say."""
    one = worker(careful=False)
    CELL.pack_into(one.cell, 0, 3, 17, IN_BATCH)
    assert not one.hangs(100.0, 3600.0)
    assert not one.hangs(100.0 + CLOSER_LOOK_S, 3600.0)
    assert one.hangs(101.0 + CLOSER_LOOK_S, 3600.0)
    other = worker(careful=True)
    CELL.pack_into(other.cell, 0, 3, 17, 5)
    assert not other.hangs(100.0, 3600.0)
    assert not other.hangs(101.0 + CLOSER_LOOK_S, 3600.0)
    assert other.hangs(3701.0, 3600.0)


def test_every_new_call_begins_a_new_time() -> None:
    """Many calls that each take less than the limit never add up."""
    one = worker(careful=True)
    for position in range(10):
        CELL.pack_into(one.cell, 0, 3, 17, position)
        assert not one.hangs(100.0 + 9 * position, 10.0)


def test_what_is_not_a_call_may_take_its_time() -> None:
    """Restoring a snapshot, reading the log and looking for live rows are never taken for a hanging call."""
    one = worker(careful=False)
    assert not one.hangs(0.0, 1.0)
    assert not one.hangs(1e6, 1.0)
    CELL.pack_into(one.cell, 0, 3, 17, IDLE)
    assert not one.hangs(2e6, 1.0)
    assert not one.hangs(3e6, 1.0)
    assert one.running() is None
    CELL.pack_into(one.cell, 0, 0, 17, IN_BATCH)
    assert one.running() == (0, 17, IN_BATCH)


def program(code: str) -> ReplayWorker:
    """A worker that runs this program, in the middle of a call."""
    process = ChildProcess("tests.replay.program_process", code, stdin=PIPE, stdout=PIPE)
    cell = mmap.mmap(-1, mmap.PAGESIZE)
    CELL.pack_into(cell, 0, 3, 17, 5)
    return ReplayWorker([3], process, cell, careful=True)


def read_done(worker: ReplayWorker, message: dict[str, Any]) -> None:
    """The only message of these programs."""
    worker.done = message["done"]


@pytest.mark.slow
def test_process_that_ends_within_a_call_is_followed_by_another() -> None:
    """The incident names what ran and how it ended; the follower's messages count like those of the first."""
    incidents: list[Incident] = []

    def follow(_worker: ReplayWorker, incident: Incident | None) -> ReplayWorker:
        assert incident is not None
        incidents.append(incident)
        return program("print('{\"done\": true}')")

    pool = WorkerPool("a test process", 60.0, read_done, follow)
    try:
        pool.add(program("import os; os._exit(3)"))
        pool.listen()
    finally:
        pool.close()
    assert incidents == [Incident(3, 17, 5, "the process ended: exit code 3")]
    assert [(worker.done, worker.incidents) for worker in pool.workers] == [(True, 0), (True, 1)]


@pytest.mark.slow
def test_process_that_fails_by_itself_is_an_error() -> None:
    """A defect of ours, an end outside of any call, and one incident too many are no fault of a call."""

    def follow(_worker: ReplayWorker, _incident: Incident | None) -> ReplayWorker:
        raise AssertionError("no call is to blame")

    defect, outside, often = program(f"import os; os._exit({DEFECT_CODE})"), program(""), program("")
    CELL.pack_into(outside.cell, 0, 3, 17, IDLE)
    often.incidents = INCIDENTS_MAX
    for worker, code in ((defect, DEFECT_CODE), (outside, 0), (often, 0)):
        pool = WorkerPool("a test process", 60.0, read_done, follow)
        pool.add(worker)
        with pytest.raises(WorkerFailed, match=f"a test process ended: exit code {code}"):
            pool.listen()
        pool.close()


@pytest.mark.slow
@pytest.mark.parametrize("kills", [1, 2])
def test_process_that_is_killed_outside_of_calls_has_one_successor(kills: int) -> None:
    """It does the same work. A second kill is an error that names process, signal and what to do."""
    followed: list[tuple[int, Incident | None]] = []

    def started(number: int) -> ReplayWorker:
        one = program("print('{\"done\": true}')" if number == kills else "import os; os.kill(os.getpid(), 9)")
        CELL.pack_into(one.cell, 0, 3, 17, IDLE)
        return one

    def follow(worker: ReplayWorker, incident: Incident | None) -> ReplayWorker:
        followed.append((worker.incidents, incident))
        return started(len(followed))

    pool = WorkerPool("a test process", 60.0, read_done, follow)
    try:
        pool.add(started(0))
        if kills == 1:
            pool.listen()
        else:
            words = r"^a test process ended: killed by signal 9 \(SIGKILL\), as the one before it\n"
            with pytest.raises(WorkerFailed, match=words) as failed:
                pool.listen()
            assert "memory" in failed.value.hint
    finally:
        pool.close()
    assert followed == [(0, None)]
