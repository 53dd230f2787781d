"""Whoever watches the sockets to the sites sees everything that a site said, and its end."""

from __future__ import annotations

import asyncio
import queue
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Thread

import pytest
import uvloop

from cmdlog.node.sites.channel import Channel, LoopReader, ThreadReader
from cmdlog.node.sites.frames import FrameKind, encode_frame
from tests.waiting import PATIENCE_S

Reader = LoopReader | ThreadReader
MESSAGE = encode_frame(FrameKind.FAULT, b"{}")
WAIT_S = PATIENCE_S


@contextmanager
def thread_reader() -> Iterator[Reader]:
    """The reader without a loop."""
    reader = ThreadReader()
    yield reader
    reader.close()


@contextmanager
def loop_reader(make_loop: Callable[[], asyncio.AbstractEventLoop]) -> Iterator[Reader]:
    """A loop running in a thread of its own, and the reader on it."""
    loop = make_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    reader = LoopReader(loop)
    yield reader
    reader.close()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


READERS = [
    pytest.param(thread_reader, id="thread"),
    pytest.param(lambda: loop_reader(asyncio.new_event_loop), id="asyncio"),
    pytest.param(lambda: loop_reader(uvloop.new_event_loop), id="uvloop"),
]


def watch(reader: Reader, channel: Channel) -> queue.SimpleQueue[object]:
    """What the channel's reader sees: each frame's kind, then None."""
    seen: queue.SimpleQueue[object] = queue.SimpleQueue()

    def readable() -> None:
        frames = channel.receive()
        if frames is None:
            reader.remove(channel)
            seen.put(None)
            return
        for frame in frames:
            seen.put(frame.kind)

    reader.add(channel, readable)
    return seen


@pytest.mark.parametrize("open_reader", READERS)
@pytest.mark.parametrize("unread_bytes", [0, 100, 8 << 20])
def test_a_sites_last_word_and_its_end_are_seen(
    open_reader: Callable[[], AbstractContextManager[Reader]], unread_bytes: int
) -> None:
    """Also both at once, with unread data left: uvloop gives up a socket in error after one call of its reader."""
    with open_reader() as reader:
        for _ in range(3):
            ours, theirs = socket.socketpair()
            channel = Channel(ours)
            channel.send(b"x" * unread_bytes)
            theirs.sendall(MESSAGE)
            theirs.close()
            seen = watch(reader, channel)
            assert seen.get(timeout=WAIT_S) is FrameKind.FAULT
            assert seen.get(timeout=WAIT_S) is None
            channel.close()


@pytest.mark.parametrize("open_reader", READERS)
def test_what_the_socket_does_not_take_at_once_arrives(open_reader: Callable[[], AbstractContextManager[Reader]]) -> None:
    """A channel that asks for it is flushed until everything has left, in order."""
    data = bytes(range(256)) * (1 << 15)
    with open_reader() as reader:
        ours, theirs = socket.socketpair()
        channel = Channel(ours)
        seen = watch(reader, channel)
        channel.send(data[:1000])
        channel.send(data[1000:])
        theirs.settimeout(WAIT_S)
        received = bytearray()
        while len(received) < len(data):
            received += theirs.recv(1 << 20)
        assert received == data
        theirs.close()
        assert seen.get(timeout=WAIT_S) is None
        channel.close()
