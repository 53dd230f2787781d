"""The node's end of a site's socket, and who watches it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

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


def test_a_thread_reads_and_flushes(pair: tuple[Channel, socket.socket]) -> None:
    """With no event loop a thread reads what comes and sends what waited."""
    channel, theirs = pair
    reader, got = ThreadReader(), list[int]()
    echo(reader, channel, got)
    for ident in range(100):
        channel.send(frame(ident, size=1000))
    assert receive_idents(theirs, 100) == list(range(100))
    theirs.sendall(frame(7))
    wait_for(lambda: got == [7])
    reader.close()


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


def test_an_event_loop_reads_flushes_and_forgets(pair: tuple[Channel, socket.socket]) -> None:
    """The loop serves a channel like the thread does, and late word about a removed one touches no descriptor."""
    channel, theirs = pair
    got: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        reader = LoopReader(loop)
        ended = loop.create_future()

        def readable() -> None:
            frames = channel.receive()
            if frames is None:
                reader.remove(channel)
                ended.set_result(None)
                return
            got.extend(f.ident for f in frames)

        reader.add(channel, readable)
        for ident in range(100):
            channel.send(frame(ident, size=1000))
        assert await asyncio.to_thread(receive_idents, theirs, 100) == list(range(100))
        theirs.sendall(frame(7))
        channel.send(frame(8, size=1 << 20))
        theirs.close()
        await asyncio.wait_for(ended, WAIT_S)
        descriptor = channel.fileno()
        channel._want_write(True)
        channel.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert loop.remove_writer(descriptor) is False
        reader.close()
        await asyncio.sleep(0)

    asyncio.run(main())
    assert got == [7]
    channel._want_write(True)  # the loop is closed: nobody hears it
