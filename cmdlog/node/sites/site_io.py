"""Who watches the sockets to the sites: an asyncio event loop, or a thread where there is none.

One rule: interest in a channel is changed by the watching thread alone; others leave word. So word about a channel that was
removed meanwhile finds it gone and does nothing, whatever has become of its descriptor's number.
"""

from __future__ import annotations

import contextlib
import queue
import selectors
import socket
import threading
from asyncio import AbstractEventLoop
from collections.abc import Callable
from typing import Any, Final

from cmdlog.node.sites.channel import Channel

READ_WRITE: Final = selectors.EVENT_READ | selectors.EVENT_WRITE


class LoopReader:
    """Channels read and flushed by an asyncio event loop, in its thread. The loop is its owner's to close.

    The loop watches one descriptor, the selector's, and not the sockets: a site that ends with unread data resets its socket, and
    uvloop drops the reader of a socket in error without a word. Nobody would notice that the site is gone.
    """

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._selector = selectors.DefaultSelector()
        self._channels: dict[Channel, Callable[[], None]] = {}
        self._soon(lambda: loop.add_reader(self._selector, self._ready))

    def add(self, channel: Channel, readable: Callable[[], None]) -> None:
        """From now on `readable` is called when something has arrived, and the channel flushed when it asks for it."""
        channel.watch(lambda wanted: self._soon(self._write_interest, channel, wanted))
        self._soon(self._add, channel, readable)

    def remove(self, channel: Channel) -> None:
        """Only in the loop's thread, before the channel is closed."""
        if self._channels.pop(channel, None) is not None:
            self._selector.unregister(channel)

    def close(self) -> None:
        self._soon(self._end)

    def _soon(self, work: Callable[..., object], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, and reads nothing
            self._loop.call_soon_threadsafe(work, *args)

    def _add(self, channel: Channel, readable: Callable[[], None]) -> None:
        if channel.fileno() >= 0:
            self._channels[channel] = readable
            self._selector.register(channel, selectors.EVENT_READ, channel)

    def _write_interest(self, channel: Channel, wanted: bool) -> None:
        if channel in self._channels:
            self._selector.modify(channel, READ_WRITE if wanted else selectors.EVENT_READ, channel)

    def _ready(self) -> None:
        for key, events in self._selector.select(0):
            if events & selectors.EVENT_WRITE:
                key.data.flush()
            if events & selectors.EVENT_READ and key.data in self._channels:
                self._channels[key.data]()

    def _end(self) -> None:
        self._loop.remove_reader(self._selector)
        self._channels.clear()
        self._selector.close()


class ThreadReader:
    """Channels read and flushed by one thread of this process."""

    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._channels: dict[Channel, Callable[[], None]] = {}
        self._wake_r, self._wake_w = socket.socketpair()
        for end in (self._wake_r, self._wake_w):
            end.setblocking(False)  # a full one wakes as well, and who leaves word must not wait for the reader
        self._selector.register(self._wake_r, selectors.EVENT_READ)
        self._todo: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="sites-reader", daemon=True)
        self._thread.start()

    def add(self, channel: Channel, readable: Callable[[], None]) -> None:
        """See `LoopReader.add`."""
        channel.watch(lambda wanted: self._soon(lambda: self._write_interest(channel, wanted)))
        self._soon(lambda: self._add(channel, readable))

    def remove(self, channel: Channel) -> None:
        """Only in this reader's thread, before the channel is closed."""
        if self._channels.pop(channel, None) is not None:
            self._selector.unregister(channel)

    def close(self) -> None:
        """Ends the thread."""
        self._stopping = True
        self._soon(lambda: None)
        self._thread.join()
        self._selector.close()
        self._wake_r.close()
        self._wake_w.close()

    def _soon(self, work: Callable[[], None]) -> None:
        self._todo.put(work)
        with contextlib.suppress(BlockingIOError):
            self._wake_w.send(b"x")

    def _add(self, channel: Channel, readable: Callable[[], None]) -> None:
        self._channels[channel] = readable
        self._selector.register(channel, selectors.EVENT_READ, channel)

    def _write_interest(self, channel: Channel, wanted: bool) -> None:
        if channel in self._channels:
            self._selector.modify(channel, READ_WRITE if wanted else selectors.EVENT_READ, channel)

    def _run(self) -> None:
        while not self._stopping:
            for key, events in self._selector.select():
                if key.data is None:
                    self._wake_r.recv(4096)
                    while not self._todo.empty():
                        self._todo.get()()
                    continue
                if events & selectors.EVENT_WRITE:
                    key.data.flush()
                if events & selectors.EVENT_READ and key.data in self._channels:
                    self._channels[key.data]()
