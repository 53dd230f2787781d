"""Stale reads of a node alone: its own state, read without waiting, and as of what."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, NotReady, Reply
from cmdlog.node.queries.query import run_query
from cmdlog.node.sequencing.admission import Closed
from tests.node.pipeline import Pipeline
from tests.node.rig import Pending, open_node, partition, send


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
