"""The turn: the right to take a block from the source and to place it in the log.

One rule: one thread has it at a time, and block order is the order of turns. All methods under the ring's lock, but `pass_on`.
"""

from __future__ import annotations

import threading

from cmdlog.wal.writing.watermarks import Gate


class Turn:
    """Invariant: while it is `wanted` and not `held`, a waiting thread has been woken, or none waits."""

    __slots__ = ("_lock", "_quiet", "_waiting", "held", "wanted")

    def __init__(self, lock: threading.Lock, quiet: Gate) -> None:
        """`quiet` is opened each time it is passed on."""
        self._lock, self._quiet = lock, quiet
        self._waiting = Gate(lock)  # pool threads without it
        self.held = False
        self.wanted = False  # the source has something that no turn has looked at

    def kick(self) -> None:
        """The source has something: a waiting thread is woken, unless a thread has the turn and will pass it on."""
        self.wanted = True
        if not self.held:
            self._waiting.open_one()

    def hold(self) -> None:
        """The calling thread has it, and waits for more to come before it acquires it."""
        self.held = True

    def acquire(self) -> None:
        """The calling thread has it. What is announced from now on is for the next one."""
        self.held, self.wanted = True, False

    def wait(self) -> None:
        """Until `kick` or `pass_on` wakes this thread; look again then."""
        self._waiting.wait()

    def wake_all(self) -> None:
        """Waiting threads look again: nothing more will come."""
        self._waiting.open_all()

    def pass_on(self) -> None:
        """Takes the lock. The calling thread has no turn any longer."""
        with self._lock:
            self.held = False
            if self.wanted:
                self._waiting.open_one()
            self._quiet.open_all()
