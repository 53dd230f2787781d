"""What a driver reports of a failed job. No session needed."""

from __future__ import annotations

import signal

import pytest
from pyspark import SparkContext

from cmdlog.signal_handlers import handled
from cmdlog.wal.errors import DiskFull
from replay.errors import Divergence, DivergencePlace, Poison
from replay.spark.jobs.job import SPARK_CONTEXT, TaskError, _raise_errors, cause_of, interruptible, is_interruption
from replay.spark.jobs.task_attempt import _error_json

TRACEBACK = """Job aborted: org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "task_attempt.py", line 130, in carry_out
cmdlog.wal.errors.DiskFull: no space left for the scratch files of p0 in /scratch
hint: free space on that volume

\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:572)
"""


def test_hint_of_a_failed_task_follows_its_message() -> None:
    """Python prints the hint on a line of its own below the error; the driver reports both."""
    said = "cmdlog.wal.errors.DiskFull: no space left for the scratch files of p0 in /scratch (free space on that volume)"
    assert cause_of(RuntimeError(TRACEBACK)) == f"a task failed too often: {said}"
    without = TRACEBACK.replace("hint: free space on that volume\n", "")
    assert cause_of(RuntimeError(without)) == f"a task failed too often: {said.partition(' (')[0]}"


def test_error_of_a_task_keeps_hint_and_exit_code() -> None:
    """The row of a failed task has what the operator needs; the task is named in the message."""
    error = TaskError({**DiskFull("the output is full").to_json(), "task": "p0"})
    assert (error.message, error.hint) == ("the output is full; task p0", DiskFull.hint)
    assert (error.kind, error.exit_code) == ("DiskFull", 14)


def test_calls_that_stop_a_job_are_named_by_their_transactions() -> None:
    """As in `cmdlog recover`: the first one is the error, whatever else failed, and has the others with it."""
    places = [DivergencePlace(part, 7, txn, 0, "drift", "1", "2") for part, txn in enumerate((900, 800))]
    told = [_error_json(error) for error in (DiskFull("full"), Poison(places[0]), Divergence(places[1]))]
    with pytest.raises(Divergence) as stopped:
        _raise_errors(told)
    assert [stop.place for stop in stopped.value.stops] == [places[1], places[0]]
    with pytest.raises(TaskError):
        _raise_errors([{**told[0], "task": "p0"}])


def test_ctrl_c_during_a_job_sends_nothing_over_the_connection_that_waits() -> None:
    """PySpark's handler would, and py4j would print a traceback; a handler of the program's own is called as ever."""
    sent = list[str]()

    def of_spark(*_: object) -> None:
        sent.append("cancelAllJobs")

    assert SparkContext.__module__ == SPARK_CONTEXT
    of_spark.__module__ = SPARK_CONTEXT
    before = signal.signal(signal.SIGINT, of_spark)
    try:
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(signal.SIGINT)
        assert (sent, signal.getsignal(signal.SIGINT)) == ([], of_spark)
        with handled(lambda: sent.append("own"), signal.SIGINT), interruptible():
            signal.raise_signal(signal.SIGINT)
        assert sent == ["own"]
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_error_that_came_while_an_interruption_left_is_one() -> None:
    """py4j closes the connection on it, and PySpark's next question may meet that end."""
    gone = OSError("gone")
    assert not is_interruption(gone)
    gone.__context__ = KeyboardInterrupt()
    assert is_interruption(gone)
    assert is_interruption(KeyboardInterrupt())
