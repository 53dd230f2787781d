"""The node's end of a site's socket, and who watches it."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from threading import Thread

import pytest
import uvloop

from cmdlog.node.sites import channel as channel_module
from cmdlog.node.sites.channel import Channel, LoopReader, ThreadReader
from cmdlog.node.sites.frames import FrameKind, FrameReader, encode_frame
from tests.waiting import PATIENCE_S, wait_for

WAIT_S = PATIENCE_S


def frame(ident: int, size: int = 0) -> bytes:
    """An encoded frame."""
    return encode_frame(FrameKind.ENTRY, bytes(size), ident=ident)


@pytest.fixture
def pair(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Channel, socket.socket]]:
    """A channel with a small socket buffer, and the far end."""
    monkeypatch.setattr(channel_module, "SOCKET_BYTES", 4096)
    ours, theirs = socket.socketpair()
    theirs.settimeout(WAIT_S)
    channel = Channel(ours)
    yield channel, theirs
    channel.close()
    theirs.close()


def receive_idents(theirs: socket.socket, count: int) -> list[int]:
    """Idents of the next frames, as the site sees them."""
    reader, idents = FrameReader(), list[int]()
    while len(idents) < count:
        data = theirs.recv(1 << 16)
        assert data
        idents += [f.ident for f in reader.feed(data)]
    return idents


def test_what_the_socket_does_not_take_leaves_later_in_order(pair: tuple[Channel, socket.socket]) -> None:
    """Sends beyond the socket's buffer wait, whole and in order, and the owner is asked once to flush."""
    channel, theirs = pair
    wishes: list[bool] = []
    channel.watch(wishes.append)
    for ident in range(300):
        channel.send(frame(ident, size=ident * 7))
    assert wishes == [True]
    found: list[int] = []
    reader = FrameReader()
    for _ in range(10_000):
        with contextlib.suppress(BlockingIOError):
            theirs.setblocking(False)
            found += [f.ident for f in reader.feed(theirs.recv(1 << 16))]
        channel.flush()
        if len(found) == 300:
            break
    assert found == list(range(300))
    assert wishes[-1] is False


def test_the_wish_of_a_send_outlives_a_flush_that_ends(pair: tuple[Channel, socket.socket]) -> None:
    """A send that comes while a flush empties the queue cannot have its wish to write cancelled by that flush."""
    channel, theirs = pair
    state = {"wanted": False}
    channel.watch(lambda wanted: state.__setitem__("wanted", wanted))
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            if state["wanted"]:
                channel.flush()

    flusher = threading.Thread(target=flush)
    got: list[int] = []
    taker = threading.Thread(target=lambda: got.extend(receive_idents(theirs, 3000)))
    flusher.start()
    taker.start()
    for ident in range(3000):
        channel.send(frame(ident, size=500))
    taker.join(WAIT_S)
    stop.set()
    flusher.join()
    assert got == list(range(3000))


def test_the_wish_is_uttered_under_the_lock(pair: tuple[Channel, socket.socket]) -> None:
    """Both wishes are uttered while nobody else can send or flush, so they stand in the order of what happened."""
    channel, theirs = pair
    locked: list[bool] = []
    channel.watch(lambda _wanted: locked.append(channel._lock.locked()))
    channel.send(frame(1, size=1 << 20))
    reader = FrameReader()
    while not list(reader.feed(theirs.recv(1 << 16))):
        channel.flush()
    channel.flush()
    assert locked[0]
    assert all(locked)


def test_a_dead_peer_is_noticed_by_the_reader_alone(pair: tuple[Channel, socket.socket]) -> None:
    """Frames that were sent before the end are delivered, then None; sending into the void is silent."""
    channel, theirs = pair
    theirs.sendall(frame(5))
    theirs.close()
    channel.send(frame(1, size=1 << 20))
    channel.send(frame(2))
    frames = channel.receive()
    assert frames is not None
    assert [f.ident for f in frames] == [5]
    assert channel.receive() is None
    channel.flush()
    channel.close()
    channel.send(frame(3))
    channel.flush()


def test_nothing_to_read_is_no_end(pair: tuple[Channel, socket.socket]) -> None:
    """An empty socket gives no frames, not None."""
    frames = pair[0].receive()
    assert frames is not None
    assert list(frames) == []


def echo(reader: ThreadReader, channel: Channel, got: list[int]) -> None:
    """Notes idents as they arrive, and -1 for the end."""

    def readable() -> None:
        frames = channel.receive()
        if frames is None:
            got.append(-1)
            reader.remove(channel)
            return
        got.extend(f.ident for f in frames)

    reader.add(channel, readable)


def test_the_reading_thread_survives_word_about_a_lost_channel(pair: tuple[Channel, socket.socket]) -> None:
    """A peer that dies with data waiting for it does not take the thread, which still serves the others, along."""
    channel, theirs = pair
    reader, got, other = ThreadReader(), list[int](), list[int]()
    echo(reader, channel, got)
    channel.send(frame(1, size=1 << 20))
    theirs.close()
    wait_for(lambda: got == [-1])
    channel._want_write(True)
    channel._want_write(False)
    ours, far = socket.socketpair()
    successor = Channel(ours)
    echo(reader, successor, other)
    far.sendall(frame(9))
    wait_for(lambda: other == [9])
    reader.close()
    successor.close()
    far.close()


def test_word_left_by_many_never_blocks_the_reader() -> None:
    """More wishes than the wake-up socket holds are all taken, also when the reading thread itself utters them."""
    reader, seen = ThreadReader(), list[int]()

    def flood() -> None:
        for n in range(5000):
            reader._soon(seen.append, n)

    reader._soon(flood)
    wait_for(lambda: len(seen) == 5000)
    assert seen == list(range(5000))
    reader.close()


# -- who watches sees everything that a site said, and its end ------------------------------------------------------------

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


@pytest.mark.parametrize("open_reader", READERS)
def test_late_word_is_heard_by_nobody(
    open_reader: Callable[[], AbstractContextManager[Reader]], pair: tuple[Channel, socket.socket]
) -> None:
    """A channel may ask for its flush after its reader, or the loop of that, has ended."""
    channel, theirs = pair
    with open_reader() as reader:
        seen = watch(reader, channel)
        theirs.close()
        assert seen.get(timeout=WAIT_S) is None
    channel._want_write(True)
