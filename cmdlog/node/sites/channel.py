"""The node's end of the socket to a site process: ordered sends that never block, reads by the owner of the descriptor.

One rule: bytes leave in the order of `send`. What the socket does not take at once waits here and is flushed when the socket is
writable again; the pipeline above bounds it (`site_batches_max` batches of a stream).
"""

from __future__ import annotations

import socket
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from cmdlog.node.sites.frames import Frame, FrameReader

SOCKET_BYTES: Final = 4 << 20  # asked of the kernel, which grants what its limits allow
READ_BYTES: Final = 1 << 16  # a longer buffer comes from the system each time, which takes longer than the call


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
            if self._waiting:
                self._waiting.append(memoryview(frame))
                return
            sent = self._try_send(frame)
            if sent == len(frame):
                return
            self._waiting.append(memoryview(frame)[sent:])
            self._want_write(True)

    def flush(self) -> None:
        """Sends what waited, as far as the socket takes it."""
        with self._lock:
            while self._waiting and not self._closed:
                head = self._waiting[0]
                sent = self._try_send(head)
                if sent < len(head):
                    self._waiting[0] = head[sent:]
                    return
                self._waiting.popleft()
            self._want_write(False)

    def receive(self) -> Iterator[Frame] | None:
        """The frames that have arrived; None when the other side is gone. Everything it sent before is delivered first."""
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return iter(())
        except OSError:
            return None
        return self._reader.feed(data) if data else None

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._waiting.clear()
            self._socket.close()

    def _try_send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError:
            return len(data)  # the site is gone; its successor gets the flights again
