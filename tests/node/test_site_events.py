"""The desk: what it must have seen durable before it lets a site go on, and whom it must tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cmdlog.node import site_events as module
from cmdlog.node.outcome import CallOutcome, Done, Reply, UnknownOutcome
from cmdlog.node.site_events import TRACES_KEPT, RecentFailures, SiteEvents, SkipNotLogged
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.sites.site_faults import SiteFault
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.skips import VOID
from procedures.execution.failure_trace import FailureTrace
from procedures.execution.outcome_bodies import SKIPPED
from procedures.idempotency.known_outcome import Status
from procedures.storage.state import PartitionState
from replay.state.trust import state_path

HUNG = SiteFault("hung", "planted", partition=0, index=1, position=3)


class Log:
    """Stands for sequencer and snapshot thread; answers control entries with `reply`, or never."""

    def __init__(self, reply: Reply | None = None) -> None:
        self.reply = reply
        self.entries: list[dict[str, Any]] = []
        self.events: list[tuple[str, Any]] = []

    @property
    def site_feed(self) -> Log:
        return self

    @property
    def intake(self) -> Log:
        return self

    def places_of(self, partition: int, index: int) -> list[tuple[int, int]]:
        return [(partition, index)]

    def call_at(self, partition: int, index: int, position: int) -> tuple[int, int] | None:
        return (1, 700 + position) if index == 1 else None

    @property
    def meter(self) -> SimpleNamespace:
        return SimpleNamespace(names=["begin", "deposit"])

    def add_entries(self, entries: Sequence[tuple[int, RecordKind, dict[str, Any]]], done: Done) -> None:
        self.entries += [value for _, _, value in entries]
        if self.reply is not None:
            done(self.reply)

    def site_up(self, partition: int, position: int) -> None:
        self.events.append(("up", partition))

    def lost(self, partitions: Sequence[int]) -> None:
        self.events.append(("lost", list(partitions)))


def make_desk(folder: Path, log: Log) -> SiteEvents:
    """A desk over one partition that has applied nothing."""
    (folder / "state").mkdir()
    PartitionState.open(state_path(str(folder), 0), partition=0).close()
    unused: Any = None
    standing: Any = log
    boot: Any = SimpleNamespace(code=SimpleNamespace(newest=1))
    return SiteEvents(str(folder), unused, unused, boot, sequencer=standing, snapshots=standing, leave_out=lambda *_: None)


def test_a_durable_skip_is_given_to_the_next_site(tmp_path: Path) -> None:
    """The log has it first."""
    log = Log(CallOutcome(0, 1, b""))
    made = make_desk(tmp_path, log)
    made.skip(HUNG)
    assert log.entries == [{"index": 1, "position": 3, "reason": "planted"}]
    assert made._skips == [(0, 1, 3)]


def test_a_call_on_all_partitions_is_skipped_on_all(tmp_path: Path) -> None:
    """In one statement: the copies of a replicated table stay equal, also when they are rebuilt."""
    log = Log(CallOutcome(0, 1, b""))
    made = make_desk(tmp_path, log)
    made.skip(HUNG, [(0, 1), (1, 4)])
    assert [entry["index"] for entry in log.entries] == [1, 4]
    assert made._skips == [(0, 1, 3), (1, 4, 3)]


@pytest.mark.parametrize(
    ("kind", "attempts", "why"),
    [
        ("hung", 1, "deposit was left out after 1 attempt: planted"),
        ("recursion", 3, "deposit was left out after 3 attempts: planted"),
        ("died", 2, "deposit was left out after 2 attempts: its site process ended, planted"),
    ],
)
def test_caller_of_a_skipped_call_learns_why(tmp_path: Path, kind: str, attempts: int, why: str) -> None:
    """Beside the outcome, whose bytes every replay repeats; the log of the node has it with procedure and transaction."""
    made = make_desk(tmp_path, Log(CallOutcome(0, 1, b"")))
    with capture_logs() as logged:
        made.skip(replace(HUNG, kind=kind, attempts=attempts))
    trace = made.failures.trace_of(CallOutcome(Status.FAILED, 703, SKIPPED))
    assert trace is not None
    assert (trace.procedure, trace.hint) == ("deposit", why)
    [line] = logged
    assert (line["event"], line["procedure"], line["txn_id"], line["attempts"]) == ("call_skipped", "deposit", "703", attempts)


@pytest.mark.parametrize("reply", [None, UnknownOutcome("the log has failed")], ids=["log full", "log failed"])
def test_a_skip_that_is_not_durable_lets_no_site_leave_the_call_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: Reply | None
) -> None:
    """A state without the call, before a log that does not say so, is one that no replay comes to."""
    monkeypatch.setattr(module, "SKIP_TIMEOUT_S", 0.01)
    made = make_desk(tmp_path, Log(reply))
    with pytest.raises(SkipNotLogged, match="call 3 of batch 1 of partition 0"):
        made.skip(HUNG)
    assert made._skips == []


def test_a_capture_asked_for_while_a_site_was_away_is_told_lost(tmp_path: Path) -> None:
    """The request went to the dead site's socket: nobody else would ever answer it, and no snapshot would be taken again."""
    log = Log()
    make_desk(tmp_path, log).site_up({0: 5, 2: 7})
    assert log.events == [("lost", [0, 2]), ("up", 0), ("up", 2)]


def test_void_call_is_logged_and_told_to_the_site(tmp_path: Path) -> None:
    """Every node says which call a change of leader took out; a skip was said by the node that decided it."""
    made, told = make_desk(tmp_path, Log()), list[tuple[int, int, int]]()
    made._leave_out = lambda partition, index, position: told.append((partition, index, position))
    with capture_logs() as logs:
        made.leave_out(0, 7, VOID)
        made.leave_out(0, 8, 0)
    assert told == [(0, 7, VOID), (0, 8, 0)]
    assert [(line["event"], line["partition"], line["index"]) for line in logs] == [("call_voided", 0, 7)]


class OneOfSeveral:
    """A node that may decide about calls of its own alone."""

    def __init__(self, own: int) -> None:
        self.own = own
        self.told: list[tuple[int, int]] = []

    def may_skip(self, partition: int, index: int) -> bool:
        return index == self.own

    def executed(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        self.told.append((partition, index))


@pytest.mark.parametrize(("own", "skips"), [(1, 1), (2, 0)])
def test_one_of_several_nodes_skips_what_it_proposed_alone(tmp_path: Path, own: int, skips: int) -> None:
    """Whoever proposed the call may have run it already: it is tried again, and that is said."""
    log = Log(CallOutcome(0, 1, b""))
    desk = make_desk(tmp_path, log)
    desk.serve_replica(OneOfSeveral(own))
    with capture_logs() as logs:
        desk.skip(HUNG)
    assert len(log.entries) == skips
    assert [(line["event"], line["index"]) for line in logs] == [("call_skipped" if skips else "call_retried", HUNG.index)]


# -- Traces of procedures that raised, as the node keeps them


def trace(txn_id: int, raised: BaseException | None = None) -> FailureTrace:
    """One call's."""
    return FailureTrace(txn_id, "reserve", "shop.py", 7, "reserve", "KeyError: 'x'", raised=raised)


def failed(txn_id: int, own: FailureTrace | None = None) -> CallOutcome:
    """The outcome of a call that raised."""
    return CallOutcome(Status.FAILED, txn_id, b"{}", own)


def test_outcome_of_a_failure_finds_its_trace_by_transaction() -> None:
    """A repeated outcome has the first one's transaction, and so its trace; other outcomes have none."""
    failures = RecentFailures()
    failures.add([trace(1), trace(2)])
    assert failures.trace_of(failed(2)) == failures.trace_of(failed(2)) == trace(2)
    assert failures.trace_of(failed(3)) is None
    assert failures.trace_of(CallOutcome(Status.ABORTED, 2, b"{}")) is None


def test_read_brings_its_own_trace() -> None:
    """Reads share the transaction as of which they read, so theirs is not looked up."""
    failures = RecentFailures()
    failures.add([trace(1)])
    own = trace(9)
    assert failures.trace_of(failed(1, own)) is own


def test_the_newest_traces_are_kept() -> None:
    """Their number is bounded; the oldest go first."""
    failures = RecentFailures()
    failures.add([trace(n) for n in range(TRACES_KEPT + 1)])
    assert failures.trace_of(failed(0)) is None
    assert failures.trace_of(failed(TRACES_KEPT)) is not None


def test_exception_is_given_away_once() -> None:
    """The caller gets the exception itself; a repetition finds the text alone, so nothing keeps its frames alive."""
    failures, error = RecentFailures(), KeyError("x")
    failures.add([trace(1, error)])
    first, second = failures.trace_of(failed(1)), failures.trace_of(failed(1))
    assert first is not None
    assert second is not None
    assert (first.raised, second.raised) == (error, None)
