"""Links in an event loop."""

from __future__ import annotations

import asyncio
import threading

from cmdlog.api.processes.link_frames import LinkFrameKind, LinkSession, encode_link_frame
from cmdlog.api.processes.link_sockets import join_link, make_pair, new_connection, next_turn, nothing
from tests.waiting import PATIENCE_S


def test_frames_that_wait_are_taken_when_the_link_is_joined() -> None:
    """The node sends before a process has come up, also what no handshake would have; and each sees the other's end."""
    taken: list[int] = []

    async def scenario() -> None:
        ends, (node, process) = make_pair(), (new_connection(), new_connection())
        node.deliver_to(lambda frame: None, on_writable=nothing, on_closed=nothing)
        await join_link(node, ends[0])
        node.write(encode_link_frame(LinkFrameKind.CODE, b"x" * 100_000, 7))
        over = asyncio.Event()
        process.deliver_to(lambda frame: taken.append(LinkSession().open(frame).count), on_writable=nothing, on_closed=over.set)
        await join_link(process, ends[1])
        node.hang_up()
        await over.wait()
        await node.closed.wait()
        node.end()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    assert taken == [7]


def test_the_next_turn_is_reached_from_any_thread() -> None:
    """Answers come by a thread of the log when it has failed; a loop that has ended takes nothing."""

    async def scenario() -> None:
        soon, called = next_turn(), asyncio.Event()
        soon(called.set)
        assert not called.is_set()
        await called.wait()
        called.clear()
        thread = threading.Thread(target=soon, args=(called.set,))
        thread.start()
        await called.wait()
        thread.join()
        kept.append(soon)

    kept: list[object] = []
    asyncio.run(asyncio.wait_for(scenario(), PATIENCE_S))
    thread = threading.Thread(target=kept[0], args=(nothing,))  # type: ignore[arg-type]  # as above
    thread.start()
    thread.join()
