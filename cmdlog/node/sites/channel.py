"""The node's end of the socket to a site process: ordered sends that never block; and who watches these sockets, an asyncio event
loop, or a thread where there is none.

Two rules. Bytes leave in the order of `send`: what the socket does not take at once waits here and is flushed when the socket is
writable again; the pipeline above bounds it (`site_batches_max` batches of a stream). And interest in a channel is changed by the
watching thread alone, others leave word: so word about a channel that was removed meanwhile finds it gone and does nothing,
whatever has become of its descriptor's number.
"""

from __future__ import annotations

import contextlib
import queue
import select
import socket
import threading
from asyncio import AbstractEventLoop
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from cmdlog.node.sites.frames import Frame, FrameReader

SOCKET_BYTES: Final = 4 << 20  # asked of the kernel, which grants what its limits allow
READ_BYTES: Final = 1 << 16  # a longer buffer comes from the system each time, which takes longer than the call
READ_WRITE: Final = select.EPOLLIN | select.EPOLLOUT


class Channel:
    """`want_write(True)` asks who watches the descriptor to call `flush` when it is writable.

    It is called under the channel's lock, so that a wish of a sender cannot be overtaken by the end of a flush; it must not wait.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, SOCKET_BYTES)
        self._socket = sock
        self._reader = FrameReader()
        self._waiting: deque[memoryview] = deque()
        self._lock = threading.Lock()
        self._closed = False
        self.frames_sent = 0  # or queued to be
        self._want_write: Callable[[bool], None] = lambda _wanted: None

    def watch(self, want_write: Callable[[bool], None]) -> None:
        """From now on `want_write` asks the watcher of the descriptor to wait until it is writable, or to stop that."""
        self._want_write = want_write

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, frame: bytes) -> None:
        """Sends, or queues after what is queued. A broken socket is noticed by the reader alone."""
        with self._lock:
            if self._closed:
                return
            self.frames_sent += 1
            self._waiting.append(memoryview(frame))
            if len(self._waiting) == 1 and not self._send_waiting():
                self._want_write(True)

    def flush(self) -> None:
        """Sends what waited, as far as the socket takes it."""
        with self._lock:
            if self._send_waiting():
                self._want_write(False)

    def receive(self) -> Sequence[Frame] | None:
        """The frames that have arrived; None when the other side is gone. Everything it sent before is delivered first."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return ()
        except OSError:
            return None
        return self._reader.feed(data) if data else None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._socket.close()

    def _send_waiting(self) -> bool:
        """Under the lock: whether nothing waits any more."""
        while self._waiting:
            try:
                sent = self._socket.send(self._waiting[0])
            except (BlockingIOError, InterruptedError):
                return False
            except OSError:
                sent = len(self._waiting[0])  # the site is gone; its successor gets the flights again
            self._waiting[0] = self._waiting[0][sent:]
            if not self._waiting[0]:
                self._waiting.popleft()
        return True


class ChannelReader:
    """Channels that one thread reads and flushes; others wake it to leave word."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._channels: dict[int, tuple[Channel, Callable[[], None]]] = {}  # by descriptor
        self._todo: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._wake_r, self._wake_w = socket.socketpair()
        for end in (self._wake_r, self._wake_w):
            end.setblocking(False)  # a full one wakes as well, and who leaves word must not wait for the reader
        self._epoll.register(self._wake_r, select.EPOLLIN)

    def add(self, channel: Channel, readable: Callable[[], None]) -> None:
        """From now on `readable` is called when something has arrived, and the channel flushed when it asks for it."""
        channel.watch(lambda wanted: self._soon(self._write_interest, channel, wanted))
        self._soon(self._add, channel, readable)

    def remove(self, channel: Channel) -> None:
        """Only in the watching thread, before the channel is closed."""
        if self._channels.pop(channel.fileno(), None) is not None:
            self._epoll.unregister(channel)

    def _soon(self, work: Callable[..., object], *args: Any) -> None:
        self._todo.put(partial(work, *args))
        with contextlib.suppress(OSError):  # it is full, and wakes all the same; or nothing is read any more
            self._wake_w.send(b"x")

    def _add(self, channel: Channel, readable: Callable[[], None]) -> None:
        if channel.fileno() >= 0:
            self._channels[channel.fileno()] = channel, readable
            self._epoll.register(channel, select.EPOLLIN)

    def _write_interest(self, channel: Channel, wanted: bool) -> None:
        if channel.fileno() in self._channels:
            self._epoll.modify(channel, READ_WRITE if wanted else select.EPOLLIN)

    def _serve(self, timeout_s: float | None = None) -> None:
        for descriptor, events in self._epoll.poll(timeout_s):
            found = self._channels.get(descriptor)
            if found is None:
                self._heed_words()
                continue
            channel, readable = found
            if events & ~select.EPOLLIN:  # also the end and an error, which the reading finds out
                channel.flush()
            if events & ~select.EPOLLOUT:
                readable()

    def _heed_words(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it was about a channel that is gone
            self._wake_r.recv(4096)
        while not self._todo.empty():
            self._todo.get()()

    def _release(self) -> None:
        self._channels.clear()
        self._epoll.close()
        self._wake_r.close()
        self._wake_w.close()


class LoopReader(ChannelReader):
    """An asyncio event loop, in its thread. The loop is its owner's to close.

    The loop watches one descriptor, that of epoll, and not the sockets: a site that ends with unread data resets its socket, and
    uvloop drops the reader of a socket in error without a word. Nobody would notice that the site is gone.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        super().__init__()
        self._loop = loop
        with contextlib.suppress(RuntimeError):  # the loop is closed, and reads nothing
            loop.call_soon_threadsafe(loop.add_reader, self._epoll, self._serve, 0)

    def close(self) -> None:
        """Soon nothing is read."""
        self._soon(self._end)

    def _end(self) -> None:
        self._loop.remove_reader(self._epoll)
        self._release()


class ThreadReader(ChannelReader):
    """A thread of this process."""

    def __init__(self) -> None:
        super().__init__()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sites-reader", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Ends the thread."""
        self._stopping = True
        self._soon(self._channels.clear)
        self._thread.join()
        self._release()

    def _run(self) -> None:
        while not self._stopping:
            self._serve()
