"""Tests of calls that a node places itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, NotReady, Reply
from cmdlog.node.placing.local_calls import LocalCalls, LogWakeup, Readiness
from cmdlog.node.placing.router import BoundCode
from cmdlog.node.queries.query import run_query
from cmdlog.node.sequencing.intake import Closed
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.errors import WalError
from tests.node.apps import faulty, newer
from tests.node.pipeline import Pipeline
from tests.node.rig import Pending, open_node, partition, send


class Placed:
    """Everything that is done with calls, in order."""

    def __init__(self) -> None:
        self.done = list[str]()
        place = SimpleNamespace(
            place=lambda *_: self.done.append("placed"),
            place_many=lambda calls: self.done.append(f"placed {len(calls)}"),
            place_encoded=lambda calls: self.done.append(f"placed {len(calls)}"),
        )
        waker = SimpleNamespace(wake=lambda: self.done.append("woken"))
        self.readiness = Readiness()
        self.calls = LocalCalls(
            readiness=self.readiness, bound=cast(Any, None), router=cast(Any, place), waker=cast(Any, waker),
            clock=cast(Any, SimpleNamespace(observe=lambda txn: self.done.append(f"seen {txn}"))),
        )  # fmt: skip


def test_nothing_is_placed_before_the_node_is_ready() -> None:
    """The clock is not moved either."""
    placed = Placed()
    for place in (
        lambda: placed.calls.call(cast(Any, None), [], done=print, txn=7),
        lambda: placed.calls.call_many([]),
        lambda: placed.calls.call_encoded([]),
    ):
        with pytest.raises(NotReady):
            place()
    assert placed.done == []


def test_the_log_is_woken_after_the_call_is_placed() -> None:
    """A read changes nothing, so the log need not know of it; what the caller has seen comes before."""
    placed = Placed()
    placed.readiness.accept_calls()
    placed.calls.call(cast(Any, SimpleNamespace(read_only=False)), [], done=print, txn=7)
    placed.calls.call(cast(Any, SimpleNamespace(read_only=True)), [], done=print)
    placed.calls.call_many([cast(Any, None)])
    placed.calls.call_encoded([cast(Any, None)] * 2)
    assert placed.done == [
        "seen 7", "placed", "woken", "placed", "placed 1", "woken", "placed 2", "woken",
    ]  # fmt: skip


def test_calls_are_bound_to_the_newest_code() -> None:
    """Its routes name the version, so that a call of another one is found out."""
    names = [procedure.name for procedure in faulty.db.procedure_list]
    meter = StageTimings(names, partitions=1)
    bound = BoundCode(faulty.db, meter, catalog=1)
    before = bound.routes
    bound.bind(newer.db, 2)
    assert bound.routes is not before
    assert {route.catalog for route in bound.routes.values()} == {2}


# -- Tests of whether a node takes part in anything


def test_calls_are_accepted_until_the_close_has_come_so_far() -> None:
    """Also while it closes, at first; the refusal says whether it starts or is closed."""
    readiness = Readiness()
    with pytest.raises(NotReady, match="starting"):
        readiness.check_ready()
    readiness.accept_calls()
    assert (readiness.begin_close(), readiness.begin_close()) == (True, False)
    readiness.check_ready()
    readiness.refuse_calls()
    with pytest.raises(NotReady, match="closed"):
        readiness.check_ready()


def test_failure_is_kept_and_told() -> None:
    """Every watcher hears of it, and what needs a node that serves is refused with the reason."""
    readiness, told = Readiness(), list[BaseException]()
    readiness.accept_calls()
    readiness.watch_failure(told.append)
    readiness.check_serving()
    readiness.fail(error := OSError("the disk is gone"))
    assert (told, readiness.error) == ([error], error)
    readiness.check_ready()
    with pytest.raises(NotReady, match="the disk is gone"):
        readiness.check_serving()


# -- The log is woken for whoever places calls, and not more often than it helps


class Kicks:
    """Counts."""

    def __init__(self) -> None:
        self.count = 0
        self.error: Exception | None = None

    def __call__(self) -> None:
        self.count += 1
        if self.error is not None:
            raise self.error


def test_calls_of_one_turn_of_the_loop_wake_the_log_once() -> None:
    """Each turn that placed something wakes it, once, when the turn is over."""
    kicks = Kicks()
    waker = LogWakeup(kicks)

    async def place() -> list[int]:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        seen = []
        for calls in (5, 1, 3):
            for _ in range(calls):
                waker.wake()
            seen.append(kicks.count)
            await asyncio.sleep(0)
        return [*seen, kicks.count]

    assert asyncio.run(place()) == [0, 1, 2, 3]


def test_other_threads_wake_it_at_once() -> None:
    """Beside a loop, and without any."""
    kicks = Kicks()
    waker = LogWakeup(kicks)
    waker.wake()
    assert kicks.count == 1

    async def place() -> None:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        thread = threading.Thread(target=waker.wake)
        thread.start()
        thread.join()

    asyncio.run(place())
    assert kicks.count == 2


def test_a_log_that_has_failed_is_no_error_here() -> None:
    """In the turn that meets it, and in those behind: whoever was placed hears of it from the log."""
    kicks = Kicks()
    kicks.error = WalError("wedged")
    waker = LogWakeup(kicks)
    waker.wake()

    async def place() -> None:
        waker.attach(asyncio.get_running_loop())
        await asyncio.sleep(0)
        for _ in range(2):
            waker.wake()
            await asyncio.sleep(0)

    asyncio.run(place())
    assert kicks.count == 3


# -- Stale reads of a node alone: its own state, read without waiting, and as of what


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    """A node in this process."""
    opened = open_node(tmp_path, inline=True, partitions=2)
    yield opened
    opened.close()


def read(node: Node, name: str, /, **params: Any) -> Pending:
    """Places a stale read."""
    pending, route = Pending(), node.routes[name]
    node.stale.call(route, route.procedure.bind(params), done=pending.done)
    node.help()
    return pending


def written(node: Node, name: str, /, **params: Any) -> int:
    """The transaction of a call."""
    pending = send(node, name, **params)
    node.help()
    reply = pending.wait()
    assert isinstance(reply, CallOutcome)
    return reply.txn_id


def test_read_says_up_to_which_transaction_its_partition_held_all(node: Node) -> None:
    """The last one of that partition; others may be newer."""
    first = written(node, "bump", id=1, amount=3)
    other = next(number for number in range(2, 40) if partition(node, number) != partition(node, 1))
    written(node, "bump", id=other, amount=1)
    reply = read(node, "peek", id=1).wait()
    assert isinstance(reply, CallOutcome)
    assert (reply.body, reply.txn_id, reply.as_of) == (b"3", first, {partition(node, 1): first})


def test_read_of_all_partitions_says_it_of_each(node: Node) -> None:
    """In partition order, as the results are."""
    everywhere = written(node, "set_rate", name="base", value=7)
    last = written(node, "bump", id=1, amount=3)
    reply = read(node, "look_everywhere", name="base").wait()
    assert isinstance(reply, CallOutcome)
    where = partition(node, 1)
    assert reply.as_of == {where: last, 1 - where: everywhere}
    assert orjson.loads(reply.body) == [[7, 3 if p == where else 0] for p in range(2)]


def test_query_reads_the_states_as_they_are(node: Node) -> None:
    """Of all partitions or of one."""
    last = written(node, "bump", id=1, amount=3)
    where = partition(node, 1)
    rows = node.stale.query(run_query, "SELECT n FROM counters", (), where)
    assert (list(rows), rows.as_of) == ([(3,)], {where: last})
    assert set(node.stale.query(run_query, "SELECT n FROM counters", (), None).as_of) == {0, 1}


def test_closed_node_answers_no_stale_read(node: Node) -> None:
    """By name; nothing is left of its sites."""
    written(node, "bump", id=1, amount=3)
    node.close()
    with pytest.raises(NotReady, match="closed"):
        read(node, "peek", id=1)
    with pytest.raises(NotReady, match="closed"):
        node.stale.query(run_query, "SELECT 1", (), None)


def test_node_that_refuses_calls_serves_stale_reads() -> None:
    """As one that does not lead; one that has ended serves nothing."""
    pipe, told = Pipeline(1), list[Reply]()
    place = pipe.sequencer.reads.place
    pipe.sequencer.intake.refuse(Closed.LEADER, NotReady("another node leads"))
    with pytest.raises(NotReady, match="another node"):
        place(0, 1, b"[]", told.append, procedure=0, lax=True)
    place(0, 2, b"[]", told.append, procedure=0, lax=True, stale=True)
    pipe.sequencer.reads.answered(2, CallOutcome(0, 5, b"1"))
    assert told == [CallOutcome(0, 5, b"1")]
    pipe.sequencer.abandon(NotReady("stopped"), "stopped")
    with pytest.raises(NotReady, match="stopped"):
        place(0, 3, b"[]", told.append, procedure=0, lax=True, stale=True)
