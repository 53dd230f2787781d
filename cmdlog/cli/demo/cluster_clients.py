"""Clients of a cluster: each has a node of its own, and goes to the next one when that does not answer.

One rule: a call keeps its idempotency key wherever it is sent, so that it is executed once, whatever became of a node that it was
sent to before.

The calls are let out in portions: a fault always meets clients at work, and a slow machine has no more to do than a fast one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.cli.demo.clients import ATTEMPTS_MAX, ClientThreads, Http, Unanswered, send, unanswered
from cmdlog.cli.demo.proof import DemoCall

REQUEST_TIMEOUT_S: Final = 2.0  # a node that was stopped holds its calls that long; longer than an election
RETRY_PAUSE_S: Final = 0.1  # all clients come back ten times a second while no node leads


@dataclass(slots=True)
class ObservedService:
    """What clients have seen since a moment."""

    last_answer_s: float  # on the clients' clock; or the moment itself
    longest_gap_s: float = 0.0  # in which no client got an answer
    answered: int = 0
    retried: int = 0  # attempts that were not answered, and made again
    unknown: int = 0  # of those, by which the call may have been executed


class ClusterLoad(ClientThreads):
    """Clients of all nodes; see the module."""

    def __init__(
        self,
        shares: Sequence[Sequence[DemoCall]],
        urls: Mapping[int, str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`urls`: node -> where it takes calls."""
        super().__init__(shares, timeout_s=REQUEST_TIMEOUT_S)
        self._urls, self._clock = urls, clock
        nodes = list(urls)
        self._at = [nodes[number % len(nodes)] for number in range(len(shares))]  # client -> the node that it asks
        self._changed = threading.Condition(self._lock)
        self._begun = self._allowed = 0  # calls
        self._service = ObservedService(0.0)
        self.answered_by = Counter[int]()  # node -> calls

    def allow(self, calls: int) -> None:
        """Lets the clients make so many more."""
        with self._changed:
            self._allowed += calls
            self._changed.notify_all()

    def stop(self) -> None:
        super().stop()
        with self._changed:
            self._changed.notify_all()

    def observe(self) -> None:
        """Begins to watch the service that clients get."""
        now = self._clock()
        with self._changed:
            self._service = ObservedService(now)

    @property
    def service(self) -> ObservedService:
        """Since the last `observe`."""
        with self._changed:
            return self._service

    def wait_answered(self, upto: int, seconds: float) -> bool:
        """True when so many calls are answered. Raises: what a client raised."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.answered >= upto or self.error is not None, seconds)
        self.check()
        return done

    # -- the clients -----------------------------------------------------------------------------------------------------

    def _failed(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _answer(self, client: int, connection: Http, call: DemoCall) -> None:
        if not self._begin_call():
            return
        for _ in range(ATTEMPTS_MAX):
            node = self._at[client]
            call.attempts += 1
            try:
                answer = send(connection, self._urls[node], call)
            except Unanswered as error:
                self._at[client] = self._node_after(node)
                self._count_retry(error)
                if self._stop.wait(RETRY_PAUSE_S):
                    return
                continue
            call.answer = answer
            self._count_answer(node)
            return
        raise unanswered(call)

    def _begin_call(self) -> bool:
        """Waits until another call is allowed; False when the clients are stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._begun < self._allowed or self._stop.is_set())
            self._begun += 1
            return not self._stop.is_set()

    def _node_after(self, node: int) -> int:
        nodes = list(self._urls)
        return nodes[(nodes.index(node) + 1) % len(nodes)]

    def _count_retry(self, error: Unanswered) -> None:
        with self._changed:
            self._service.retried += 1
            self._service.unknown += error.maybe_executed

    def _count_answer(self, node: int) -> None:
        now = self._clock()
        with self._changed:
            service = self._service
            service.longest_gap_s = max(service.longest_gap_s, now - service.last_answer_s)
            service.last_answer_s = now
            service.answered += 1
            self.answered += 1
            self.answered_by[node] += 1
            self._changed.notify_all()
