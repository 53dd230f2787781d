"""Which requests an HTTP process answers itself."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any, ClassVar

import pytest
from starlette.types import Receive, Scope, Send

from cmdlog.api.app import create_app
from cmdlog.api.processes.process_main import NearApp
from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.node.outcome import CallOutcome, CallTooLarge, CodeChanged, NotReady, Overloaded, Reply, UnknownOutcome
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import SlotMap
from tests.api.linked_node import PARTITIONS, LinkPair
from tests.api.relay_pair import happened
from tests.node.test_forwarded_calls import TRACE

ROOM = CallWindow(calls=100, params_bytes=1 << 20)


@contextlib.asynccontextmanager
async def linked(window: CallWindow = ROOM) -> AsyncIterator[LinkPair]:
    """A pair."""
    pair = LinkPair(window)
    await pair.open()
    try:
        yield pair
    finally:
        await pair.close()


async def answers(replies: list[Reply], count: int = 1) -> list[Reply]:
    """So many, when they have come."""
    await happened(lambda: len(replies) >= count)
    return replies


async def test_a_call_is_placed_as_it_will_be_logged() -> None:
    """Bound, on its partition, with its key and its promise; its outcome comes back as it is."""

    async with linked() as pair:
        route, replies = pair.near.routes["bump"], list[Reply]()
        partition = pair.near.call(route, [5, 1], key=b"k" * 16, done=replies.append, txn=3, durability="async")
        assert partition == SlotMap(PARTITIONS).partition_of(route.procedure, [5, 1])
        await pair.reached(1)
        (placed,) = pair.node.placed
        assert placed[:4] == (pair.node.routes["bump"], partition, b"[5,1]", b"k" * 16)
        assert placed[5] == "async"
        assert pair.node.observed == [3]
        pair.answer(0, CallOutcome(0, 77, b"[1]"))
        assert await answers(replies) == [CallOutcome(0, 77, b"[1]")]


async def test_a_failure_brings_its_place_and_its_stages() -> None:
    """What the log says about a slow call is known to the node alone."""

    async with linked() as pair:
        pair.node.trace = TRACE
        pair.node.stages["log_ms"] = 1.5
        replies: list[Reply] = []
        pair.near.call(pair.near.routes["bump"], [5, 1], done=replies.append)
        await pair.reached(1)
        pair.answer(0, CallOutcome(2, 78, b"{}"))
        (outcome,) = await answers(replies)
        assert isinstance(outcome, CallOutcome)
        assert pair.near.trace_of(outcome) == replace(TRACE, raised=None)
        assert pair.near.stages_of(78) == {"log_ms": 1.5}
        assert pair.near.stages_of(79) == {}


async def test_a_call_beyond_the_window_is_refused_at_once() -> None:
    """As beyond `inflight_calls_max`: nothing of it reaches the node."""

    async with linked(CallWindow(calls=2, params_bytes=1 << 20)) as pair:
        route = pair.near.routes["bump"]
        for item in range(2):
            pair.near.call(route, [item, 1], done=lambda reply: None)
        with pytest.raises(Overloaded, match="the node"):
            pair.near.call(route, [3, 1], done=lambda reply: None)
        with pytest.raises(CallTooLarge):
            pair.near.call(route, [1, "x" * (1 << 17)], done=lambda reply: None)


async def test_a_link_that_is_over_leaves_no_caller_waiting() -> None:
    """A call may have been placed, a read changes nothing, and what comes later is refused."""

    async with linked() as pair:
        replies: list[Reply] = []
        routes = pair.near.routes
        read = next(route for route in routes.values() if route.read_only and not route.everywhere)
        pair.near.call(routes["bump"], [1, 1], done=replies.append)
        pair.near.call(read, [1], done=replies.append)
        await pair.reached(2)
        pair.far.end()
        await answers(replies, 2)
        assert [type(reply) for reply in replies] == [UnknownOutcome, NotReady]
        with pytest.raises(NotReady):
            pair.near.call(routes["bump"], [1, 1], done=replies.append)


async def test_replaced_code_is_told_by_its_declaration() -> None:
    """A call that was bound before a deploy is placed, unless the new code declares it differently."""

    async with linked() as pair:
        replies: list[Reply] = []
        bump = pair.node.routes["bump"]
        pair.node.routes = {name: replace(route, catalog=2) for name, route in pair.node.routes.items()}
        pair.near.call(pair.near.routes["bump"], [1, 1], done=replies.append)
        await pair.reached(1)
        assert pair.node.placed[0][0].catalog == 2
        pair.node.routes = {"bump": replace(pair.node.routes["set_rate"], name="bump")}
        pair.near.call(bump, [1, 1], done=replies.append)
        (refusal,) = await answers(replies)
        assert type(refusal) is CodeChanged


async def echo(_scope: Scope, _receive: Receive, _send: Send) -> None:
    """Stands in for the relay."""


HERE = ("POST", "/v1/procedures/bump", b"", [(b"prefer", b"durability=async")])


class KnownProcedures:
    """A link to a node."""

    routes: ClassVar[dict[str, object]] = {"bump": object()}


@pytest.mark.parametrize(
    ("request_", "near"),
    [
        (HERE, True),
        (("POST", "/v1/batch", b"", []), True),
        (("POST", "/v1/procedures/nope", b"", []), False),
        (("POST", "/v1/procedures/bump", b"consistency=stale", []), False),
        (("POST", "/v1/procedures/bump", b"", [(b"prefer", b"Redirect=leader")]), False),
        (("POST", "/v1/batch", b"", [(b"prefer", b"durability=sync, redirect=leader")]), False),
        (("GET", "/v1/procedures/bump", b"", []), False),
        (("POST", "/v1/query", b"", []), False),
        (("GET", "/v1/status", b"", []), False),
    ],
)
def test_calls_alone_are_answered_here(request_: Any, near: bool) -> None:
    """What needs the node's state, leader or replica goes there, and all of it while there is no code."""
    link: Any = KnownProcedures()
    near_app = NearApp(create_app(None, Settings()), echo)
    assert not near_app.answers(*request_)
    near_app.answer_by(link)
    assert near_app.answers(*request_) is near
    near_app.answer_by(None)
    assert not near_app.answers(*request_)
