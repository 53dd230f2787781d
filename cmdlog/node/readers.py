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
from typing import Any

from cmdlog.node.channel import Channel


class LoopReader:
    """Channels read and flushed by an asyncio event loop, in its thread. The loop is its owner's to close."""

    def __init__(self, loop: AbstractEventLoop) -> None:
        self._loop = loop
        self._descriptors: dict[Channel, int] = {}

    def add(self, channel: Channel, readable: Callable[[], None]) -> None:
        """From now on `readable` is called when something has arrived, and the channel flushed when it asks for it."""
        channel.want_write = lambda wanted: self._soon(self._write_interest, channel, wanted)
        self._soon(self._add, channel, readable)

    def remove(self, channel: Channel) -> None:
        """Only in the loop's thread, before the channel is closed."""
        descriptor = self._descriptors.pop(channel, None)
        if descriptor is not None:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)

    def close(self) -> None:
        self._soon(self._remove_all)

    def _soon(self, work: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody reads any more
            self._loop.call_soon_threadsafe(work, *args)

    def _add(self, channel: Channel, readable: Callable[[], None]) -> None:
        descriptor = channel.fileno()
        if descriptor >= 0:
            self._descriptors[channel] = descriptor
            self._loop.add_reader(descriptor, readable)

    def _write_interest(self, channel: Channel, wanted: bool) -> None:
        descriptor = self._descriptors.get(channel)
        if descriptor is None:
            return
        if wanted:
            self._loop.add_writer(descriptor, channel.flush)
        else:
            self._loop.remove_writer(descriptor)

    def _remove_all(self) -> None:
        for channel in list(self._descriptors):
            self.remove(channel)


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
        channel.want_write = lambda wanted: self._soon(lambda: self._write_interest(channel, wanted))
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
            events = selectors.EVENT_READ | (selectors.EVENT_WRITE if wanted else 0)
            self._selector.modify(channel, events, channel)

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
