"""Faults of a read-only call: what is the procedure's own doing is its outcome, what SQLite needs is not.

On a server a read may hang or end its site process. It is answered as failed, since clients repeat what is refused.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

import cmdlog
from cmdlog.errors import ProcedureFailed
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, NotReady, Reply
from cmdlog.wal.format.record import RecordKind
from procedures import Database, Transaction
from procedures.idempotency.known_outcome import Status
from tests.member.members import ask_retried, members
from tests.node.rig import Pending, ask, open_node, partition, send
from tests.waiting import wait_for


def _recurse() -> None:
    _recurse()


def _interrupt() -> None:
    raise KeyboardInterrupt


def _swallow() -> None:
    try:
        _recurse()
    except RecursionError:
        _interrupt()


WRONG: dict[str, Callable[[], object]] = {
    "RecursionError": _recurse,
    "MemoryError": lambda: bytearray(1 << 62),
    "KeyboardInterrupt": _interrupt,
}

db = Database("faults")


@db.procedure(partition_by="item", read_only=True)
def look(tx: Transaction, item: int, wrong: str) -> int:
    """Goes wrong as it is asked to."""
    if wrong == "swallowed":
        _swallow()
    elif wrong:
        WRONG[wrong]()
    return item


@pytest.mark.parametrize("wrong", [*WRONG, "swallowed"])
def test_a_read_that_goes_wrong_is_answered_and_the_node_goes_on(tmp_path: Path, wrong: str) -> None:
    """In this process: the call fails with its error, at once, and calls of every partition are answered after it."""
    with cmdlog.open(tmp_path / "node", db, partitions=2) as opened:
        for _ in range(3):
            with pytest.raises(ProcedureFailed, match="KeyboardInterrupt" if wrong == "swallowed" else wrong):
                opened.call(look, item=1, wrong=wrong)
        assert [opened.call(look, item=item, wrong="") for item in range(4)] == [0, 1, 2, 3]


TIMEOUT_S = 1.0
TOO_LONG = "the read ran longer than call_timeout_s=1"


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """Two partitions on one site process; reads may take a second."""
    opened = open_node(tmp_path / "data", partitions=2, call_timeout_s=TIMEOUT_S)
    yield opened
    opened.close()


def hint_of(reply: Reply) -> str:
    """What the caller of a read that failed is given, beside the failure."""
    assert isinstance(reply, CallOutcome), reply
    assert reply.status == Status.FAILED
    assert reply.trace is not None
    assert orjson.loads(reply.body) == {"type": "SiteEnded", "message": reply.trace.hint}
    return reply.trace.hint


def wait_until_up(node: Node) -> None:
    """A successor serves all partitions."""
    wait_for(lambda: all(stream.up for stream in node.sequencer._streams.values()))


def read_again(node: Node, name: str, **params: Any) -> Pending:
    """The read, as by a client that repeats what was refused."""
    wait_until_up(node)
    return send(node, name, **params)


@pytest.mark.slow
def test_read_that_hangs_fails_by_name_and_others_may_repeat(node: Node) -> None:
    """The first time; those that waited in the same site, of the same partition or another one, are refused."""
    ask(node, "bump", id=1, amount=5)
    hanging = send(node, "hang_reading", id=1)
    waiting = [send(node, "peek", id=number) for number in range(4)]
    assert hint_of(hanging.wait()) == f"hang_reading was stopped: {TOO_LONG}"
    assert {type(read.wait()) for read in waiting} == {NotReady}
    wait_until_up(node)
    assert ask(node, "peek", id=1) == 5


@pytest.mark.slow
def test_read_that_failed_is_as_of_what_it_read(node: Node) -> None:
    """Its outcome has the last transaction of the state that the successor finds, and nothing of it is in the log."""
    ask(node, "bump", id=1, amount=5)
    failed = send(node, "end_reading", id=1, how="exit").wait()
    wait_until_up(node)
    good = send(node, "peek", id=1).wait()
    assert isinstance(failed, CallOutcome)
    assert isinstance(good, CallOutcome)
    assert failed.txn_id == good.txn_id > 0
    assert not [record for _, record in node._wal.read() if record.kind is RecordKind.SKIP]


@pytest.mark.slow
@pytest.mark.parametrize(("how", "why"), [("exit", "exit code 3"), ("SIGSEGV", "killed by signal 11 (SIGSEGV)")])
def test_read_that_ends_its_site_fails_the_first_time(node: Node, how: str, why: str) -> None:
    """By an exit, or by a signal that a process gets for what it does."""
    assert hint_of(send(node, "end_reading", id=1, how=how).wait()) == f"end_reading ended its site process: {why}"


@pytest.mark.slow
def test_read_whose_site_is_killed_each_time_fails_the_second_time(node: Node) -> None:
    """The first signal may have been sent by an operator, or by the out-of-memory killer; other reads in between do not count."""
    assert isinstance(send(node, "end_reading", id=1, how="SIGKILL").wait(), NotReady)
    wait_until_up(node)
    assert ask(node, "peek", id=1) == 0
    for _ in range(2):
        again = read_again(node, "end_reading", id=1, how="SIGKILL")
        assert hint_of(again.wait()) == "end_reading ended its site process: killed by signal 9 (SIGKILL)"


@pytest.mark.slow
def test_read_that_was_answered_since_is_not_blamed_for_a_second_kill(node: Node, tmp_path: Path) -> None:
    """Two operators, an hour apart, happen to kill the site at the same read: both times it is refused."""
    flag = tmp_path / "flag"
    for _ in range(2):
        flag.touch()
        assert isinstance(read_again(node, "end_reading", id=1, how=str(flag)).wait(), NotReady)
        assert ask_again(node, flag) == 1


def ask_again(node: Node, flag: Path) -> int:
    """The read when nobody kills its site."""
    value: int = read_again(node, "end_reading", id=1, how=str(flag)).value()
    return value


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_site_that_is_killed_or_stopped_while_a_read_runs_is_no_failure(tmp_path: Path, number: int) -> None:
    """From outside, before the time is up: the read is refused, and safe to repeat."""
    node = open_node(tmp_path / "data", partitions=2, call_timeout_s=3.0)
    try:
        reading = send(node, "hang_reading", id=1)
        wait_for(node.stalls)
        os.kill(node.status()["sites"][0], number)
        assert isinstance(reading.wait(), NotReady)
    finally:
        node.close()


@pytest.mark.slow
@pytest.mark.parametrize("sites", [1, 2])
def test_read_on_all_partitions_fails_if_one_of_its_parts_hangs(tmp_path: Path, sites: int) -> None:
    """Its other parts are lost with the site, or were answered by theirs."""
    node = open_node(tmp_path / "data", partitions=2, sites=sites, call_timeout_s=TIMEOUT_S)
    try:
        on_second = next(number for number in range(100) if partition(node, number) == 1)
        ask(node, "bump", id=on_second, amount=7)
        for total in (7, 0):
            hanging = read_again(node, "hang_somewhere", total=total)
            assert hint_of(hanging.wait()) == f"hang_somewhere was stopped: {TOO_LONG}"
        assert read_again(node, "hang_somewhere", total=1).value() == [0, 7]
    finally:
        node.close()


@pytest.mark.slow
def test_stale_read_that_hangs_fails_by_name(node: Node) -> None:
    """As members of a cluster serve them: from the state at hand, with or without a leader."""
    for name, params in (("hang_reading", {"id": 1}), ("hang_somewhere", {"total": 0})):
        wait_until_up(node)
        route, pending = node.routes[name], Pending()
        node.stale.call(route, route.procedure.bind(params), done=pending.done)
        assert hint_of(pending.wait()) == f"{name} was stopped: {TOO_LONG}"


@pytest.mark.slow
def test_read_that_is_sent_on_to_the_leader_fails_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of a cluster answer the same, the node that leads and the one that asks it."""
    with members(tmp_path, monkeypatch, count=2) as made:
        leader = made.join_all()
        (follower,) = made.followers()
        assert ask_retried(made.leader, "bump", key="first", id=1, amount=5) == 5
        for asked in (leader, follower):
            wait_until_up(leader)
            failed = send(asked, "end_reading", id=1, how="exit").wait()
            assert hint_of(failed) == "end_reading ended its site process: exit code 3"
