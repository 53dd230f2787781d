"""How a thread of the calling process waits for the reply to its call: with a lock of its own, the cheapest thing to wait on.

One rule: a thread that runs the callbacks of a future must not wait, since no other thread would answer it.
"""

from __future__ import annotations

import threading

from cmdlog.node.outcome import Reply


class ReplyWaiter:
    """One thread's place for one reply."""

    __slots__ = ("_lock", "_reply")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self._reply: Reply | None = None

    def put(self, reply: Reply) -> None:
        """The reply is here; any thread."""
        self._reply = reply
        self._lock.release()

    def get(self) -> Reply:
        """Waits for it."""
        self._lock.acquire()
        reply, self._reply = self._reply, None
        if reply is None:
            raise RuntimeError("woken without a reply")
        return reply


class ThreadWaiter(threading.local):
    """What each thread has for itself."""

    _waiter: ReplyWaiter | None = None
    _answers = False

    def own(self) -> ReplyWaiter:
        """The thread's waiter. Raises: RuntimeError, where the thread runs a future's callbacks."""
        if self._answers:
            raise RuntimeError("a callback of a future runs in a thread that serves calls; use submit() there")
        if self._waiter is None:
            self._waiter = ReplyWaiter()
        return self._waiter

    @property
    def answers(self) -> bool:
        """Whether the thread runs callbacks."""
        return self._answers

    def forget(self) -> None:
        """A reply may still come, and must not be the next call's."""
        self._waiter = None

    def note_answering(self, answers: bool) -> None:
        """Whether the thread runs callbacks from now on."""
        self._answers = answers
