"""Calls of an HTTP process, placed by its node."""

from __future__ import annotations

from cmdlog.cluster.forwarding.call_rows import CallWindow
from cmdlog.node.outcome import LogFullRefusal, Reply
from tests.api.linked_node import AHEAD, LinkPair
from tests.api.test_node_link import ROOM, answers, run


def test_calls_of_one_frame_keep_their_order() -> None:
    """Reads among them: a read that was asked for after a write sees it, as in the node's own process."""

    async def work(pair: LinkPair) -> None:
        routes = pair.near.routes
        read = next(route for route in routes.values() if route.read_only and not route.everywhere)
        order = [routes["bump"], read, routes["bump"], read]
        for route in order:
            pair.near.call(route, [1, 1][: len(route.procedure.parameter_names)], done=lambda reply: None)
        await pair.reached(4)
        assert [call[0].name for call in pair.node.placed] == [route.name for route in order]

    run(work)


def test_a_refusal_of_the_node_keeps_its_kind() -> None:
    """Its caller sees the same code as without a process between."""

    async def work(pair: LinkPair) -> None:
        replies: list[Reply] = []
        pair.node.refusal = LogFullRefusal("no room")
        pair.near.call(pair.near.routes["bump"], [1, 1], done=replies.append)
        (refusal,) = await answers(replies)
        assert (type(refusal), str(refusal)) == (LogFullRefusal, "no room")

    run(work)


def test_a_transaction_ahead_refuses_its_own_call_alone() -> None:
    """Others of the frame are placed."""

    async def work(pair: LinkPair) -> None:
        replies: list[Reply] = []
        pair.near.call(pair.near.routes["bump"], [1, 1], done=replies.append, txn=AHEAD)
        pair.near.call(pair.near.routes["bump"], [2, 1], done=replies.append)
        await pair.reached(1)
        (refusal,) = await answers(replies)
        assert not isinstance(refusal, tuple)
        assert refusal.code == "invalid_parameters"

    run(work, CallWindow(calls=ROOM.calls, params_bytes=ROOM.params_bytes))
