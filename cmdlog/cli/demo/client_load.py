"""The demos' clients, as an application has them: `cmdlog.Client` with the URLs of all nodes, each with another one first.

One rule: a call keeps its idempotency key wherever and however often it is sent, so that it is executed once, whatever happened
to a node that it was sent to before.

The calls are made in portions: a fault always meets clients at work, and a slow machine has the same work as a fast one.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.proof import ClientAnswer, DemoCall
from cmdlog.client.client import Client
from cmdlog.client.response import Attempt, AttemptFailure, Fate, judge
from cmdlog.client.retry import RetryPolicy, SendAttempt
from cmdlog.errors import Aborted, CallError, CmdlogError, ProcedureFailed
from cmdlog.results import Result

ANSWER_WITHIN_S: Final = 300.0  # every call, with all its attempts
PATIENT: Final = RetryPolicy(attempts_max=10_000)  # time alone is the limit: a node alone is away while it is recovered

Observer = Callable[[int, Attempt], None]
"""Gets the place of the server in the list, and what the attempt to ask it was."""


@dataclass(slots=True)
class ObservedService:
    """What clients have seen since a moment."""

    last_answer_s: float  # on the clients' clock; or the moment itself
    longest_gap_s: float = 0.0  # in which no client got an answer
    answered: int = 0
    refused: int = 0  # attempts that executed nothing, and were made again
    unknown: int = 0  # attempts that may have executed the call, and were made again


class ObservedClient(Client):
    """`cmdlog.Client`, which reports each of its attempts."""

    def __init__(self, urls: Sequence[str], observe: Observer) -> None:
        super().__init__(urls, timeout_s=ANSWER_WITHIN_S, retry=PATIENT)
        self._observe = observe

    def _send(self, step: SendAttempt) -> Attempt:
        server = self._servers.preferred.at
        attempt = super()._send(step)
        self._observe(server, attempt)
        return attempt


class ClientLoad:
    """Clients of all nodes, each a thread with its calls."""

    def __init__(
        self, shares: Sequence[Sequence[DemoCall]], urls: Mapping[int, str], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`urls`: node -> where it takes calls."""
        self._urls, self._clock = urls, clock
        self._changed = threading.Condition()
        self._stopped = False
        self._begun = self._allowed = 0  # calls
        self._error: BaseException | None = None  # of a client
        self._service = ObservedService(0.0)
        self._clients: list[Client] = []
        self.answered = 0
        self.answered_by = Counter[int]()  # node -> calls
        self._threads = [
            threading.Thread(target=self._run, args=(number, share), name=f"demo-client-{number}", daemon=True)
            for number, share in enumerate(shares)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def allow(self, calls: int) -> None:
        """Lets the clients make so many more."""
        with self._changed:
            self._allowed += calls
            self._changed.notify_all()

    def stop(self) -> None:
        """Ends the clients; calls in progress fail. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            clients = list(self._clients)
        for client in clients:
            client.close()

    def observe(self) -> None:
        """Begins to watch the service that clients get."""
        with self._changed:
            self._service = ObservedService(self._clock())

    @property
    def service(self) -> ObservedService:
        """Since the last `observe`."""
        with self._changed:
            return self._service

    def wait_answered(self, upto: int, seconds: float) -> bool:
        """True when so many calls are answered. Raises: what a client raised."""
        with self._changed:
            done = self._changed.wait_for(lambda: self.answered >= upto or self._error is not None, seconds)
            if self._error is not None:
                raise self._error
        return done

    # -- the clients -----------------------------------------------------------------------------------------------------

    def _run(self, client: int, share: Sequence[DemoCall]) -> None:
        try:
            self._make_calls(client, share)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _make_calls(self, client: int, share: Sequence[DemoCall]) -> None:
        nodes = list(self._urls)
        first = client % len(nodes)
        nodes = [*nodes[first:], *nodes[:first]]

        def observe(at: int, attempt: Attempt) -> None:
            self._count_attempt(nodes[at], judge(attempt))

        with ObservedClient([self._urls[node] for node in nodes], observe) as connection:
            with self._changed:
                self._clients.append(connection)
            for call in share:
                if not self._begin_call():
                    return
                call.answer = ask(connection, call)
                self._count_answer()

    def _begin_call(self) -> bool:
        """Waits until another call is allowed; False when the clients are stopped."""
        with self._changed:
            self._changed.wait_for(lambda: self._begun < self._allowed or self._stopped)
            self._begun += 1
            return not self._stopped

    def _count_attempt(self, node: int, found: Any | AttemptFailure) -> None:
        with self._changed:
            if not isinstance(found, AttemptFailure) or found.fate is Fate.DECIDED:
                self.answered_by[node] += 1
            elif found.fate in (Fate.UNKNOWN, Fate.BROKEN):
                self._service.unknown += 1
            else:
                self._service.refused += 1

    def _count_answer(self) -> None:
        now = self._clock()
        with self._changed:
            service = self._service
            service.longest_gap_s = max(service.longest_gap_s, now - service.last_answer_s)
            service.last_answer_s = now
            service.answered += 1
            self.answered += 1
            self._changed.notify_all()


def ask(client: Client, call: DemoCall) -> ClientAnswer:
    """One call, sent until it has an outcome. Raises: CommandFailed when it has none."""
    try:
        return read_outcome(client.invoke(call.procedure, call.params, idempotency_key=call.key))
    except CmdlogError as error:
        return read_outcome(error)


def ask_many(client: Client, calls: Sequence[DemoCall]) -> Iterator[ClientAnswer]:
    """The same by `/v1/batch`, in the same order."""
    return map(read_outcome, client.batch((call.procedure, call.params, call.key) for call in calls))


def read_outcome(outcome: Result[Any] | CmdlogError) -> ClientAnswer:
    """What a client got for a call. Raises: CommandFailed when that is no outcome."""
    if isinstance(outcome, Result):
        return ClientAnswer(outcome.txn_id, outcome.partition, "ok", outcome.value)
    if isinstance(outcome, Aborted):
        return ClientAnswer(outcome.txn_id, None, "aborted", outcome.abort_code)
    if isinstance(outcome, CallError):
        return ClientAnswer(outcome.txn_id, None, "failed" if isinstance(outcome, ProcedureFailed) else outcome.code, "")
    raise CommandFailed(f"a call under key {outcome.idempotency_key} has no outcome: {outcome.code}: {outcome}")
