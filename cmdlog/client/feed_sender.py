"""Calls of a batch job on their way to a server: what an executor is given to send rows with.

One rule: a row's key is made of what the job says of the row and of when it was first to be sent, never of chance. So a row that
is sent again, by another attempt or another driver, is answered with its first outcome; and once the server has forgotten that
outcome, the time in the key makes it refuse the row (`session_expired`) rather than execute it again.

A call that was decided or refused is an answer. So is a refusal that leaves open whether an earlier attempt was executed: the
row is `unknown`, since no later attempt learns more. A server that cannot be reached, is not sure, or admits nobody is an error,
and so is silence: one limit counts from its last answer, whatever was asked. The job is resumed later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cmdlog.client.client import Client
from cmdlog.client.keys import uuid7
from cmdlog.client.options import DEFAULT_URL, base_urls
from cmdlog.client.request import Ask
from cmdlog.client.response import Attempt, Lost
from cmdlog.client.retry import RetryPolicy
from cmdlog.client.retry_loop import SendAttempt
from cmdlog.errors import (
    Aborted,
    CallError,
    CmdlogError,
    Forbidden,
    OutcomeUnknown,
    ProcedureFailed,
    RequestRefused,
    SessionExpired,
    Unauthenticated,
    Unreachable,
)
from cmdlog.procedure_calls import Call
from cmdlog.results import Result

BUSY: Final = (429, 502, 503, 504)
GIVE_UP_AFTER_S: Final = 60.0  # a node that restarts, or another one that takes over, is back before
HURRIED_S: Final = 1.0
LAST_ATTEMPT_S: Final = 0.05  # the shortest that is tried; an answer may take longer
ATTEMPTS: Final = RetryPolicy(attempts_max=1_000_000)  # time alone is the limit
Row = tuple[str, Mapping[str, Any], str]  # procedure, params, what names the row in the job


def key_of(name: str, began_ms: int) -> str:
    """The idempotency key of a row."""
    return uuid7(began_ms, hashlib.sha256(name.encode()).digest()[:10])


@dataclass(frozen=True, slots=True)
class Feeder:
    """Sends calls through `/v1/batch`, as fast as the server takes them. A value: it travels to executors.

    `url` is one address, or those of the nodes of a cluster. `token_file` and `ca_file` are read there; without a file the
    variable CMDLOG_TOKEN is asked, there too.
    """

    url: str | Sequence[str] = DEFAULT_URL
    token_file: str | os.PathLike[str] | None = None
    ca_file: str | os.PathLike[str] | None = None
    timeout_s: float = 300.0  # of one call, with all waits that the server asks for; at least twice the next one
    give_up_after_s: float = GIVE_UP_AFTER_S  # without any answer of the server
    tell: Callable[[str], None] | None = field(
        default=None, compare=False
    )  # called with the reason why a request will be sent again

    def __post_init__(self) -> None:
        """Raises: ValueError, before anything travels."""
        base_urls(self.url)
        if not self.give_up_after_s > 0:
            raise ValueError("give_up_after_s must be more than 0")

    def telling(self, tell: Callable[[str], None]) -> Feeder:
        """The same, which reports why it waits, in the process where it sends."""
        return replace(self, tell=tell)

    def hurried(self) -> Feeder:
        """The same, for a question that can be left open: it gives a silent server up within a second."""
        return replace(self, give_up_after_s=min(self.give_up_after_s, HURRIED_S))

    def __call__(self, rows: Iterable[Row], *, began_ms: int) -> Iterator[dict[str, Any]]:
        """An answer for each row, in order. Raises: CmdlogError of the server, not of a call."""
        sent: deque[str] = deque()

        def calls() -> Iterator[Call[Any]]:
            for procedure, params, name in rows:
                sent.append(key_of(name, began_ms))
                yield Call(procedure, params, sent[-1])

        with self._client() as client:
            for answer in client.batch(calls()):
                yield {"key": sent.popleft(), **_answer_json(answer)}

    def target(self) -> str:
        """Whom the calls are for: the server's cluster, or its address where the credential may not read its status.

        Raises: CmdlogError.
        """
        with self._client() as client:
            try:
                cluster = client.status().get("cluster_id")
            except Forbidden:
                cluster = None
            return f"cluster {cluster}" if cluster else f"server {', '.join(map(str, client.urls))}"

    def _client(self) -> _Patient:
        verify = str(self.ca_file) if self.ca_file is not None else True
        timeout_s = max(self.timeout_s, 2 * self.give_up_after_s)  # silence ends by its own limit, not by that of a call
        client = _Patient(self.url, token_file=self.token_file, timeout_s=timeout_s, verify=verify, retry=ATTEMPTS)
        client.tell, client.give_up_after_s = self.tell, self.give_up_after_s
        return client


class _Patient(Client):
    """A client that says why a request came to nothing, and gives a silent server up.

    What becomes of calls that are answered is decided as ever.
    """

    tell: Callable[[str], None] | None = None
    give_up_after_s: float = GIVE_UP_AFTER_S
    _silent = False  # the last attempt was not answered
    _heard_at = 0.0  # the last answer; or when the first request of a silence was sent

    def _send(self, step: SendAttempt) -> Attempt:
        attempt = super()._send(self._in_time(step))
        if why := self._note_attempt(attempt):
            self._report_wait(why)
        return attempt

    def _send_many(self, asks: Sequence[Ask], step: SendAttempt) -> Generator[Attempt, None, None]:
        told = False
        with contextlib.closing(super()._send_many(asks, self._in_time(step))) as attempts:
            for attempt in attempts:
                if (why := self._note_attempt(attempt)) and not told:
                    self._report_wait(why)
                    told = True  # the others of the request suffer the same
                yield attempt

    def _in_time(self, step: SendAttempt) -> SendAttempt:
        """The same, no longer than until the server is given up."""
        now = time.monotonic()
        if not self._silent:
            self._heard_at = now
        left_s = min(self._heard_at + self.give_up_after_s - now, self.give_up_after_s / len(self.urls))  # all get their turn
        left_s = max(LAST_ATTEMPT_S, left_s)
        return replace(step, connect_s=min(step.connect_s, left_s), attempt_s=min(step.attempt_s, left_s))

    def _note_attempt(self, attempt: Attempt) -> str:
        """Why the request is sent again; "" of an answer. Raises: Unreachable."""
        self._silent = isinstance(attempt, Lost)
        if not isinstance(attempt, Lost):
            self._heard_at = time.monotonic()
        elif time.monotonic() - self._heard_at >= self.give_up_after_s:
            raise Unreachable(f"no answer for {self.give_up_after_s:g} s: {attempt.reason}")
        return _why(attempt)

    def _report_wait(self, why: str) -> None:
        if self.tell is not None:
            self.tell(why)


def _why(attempt: Attempt) -> str:
    """Why a request is sent again; "" of an answer."""
    if isinstance(attempt, Lost):
        return f"server {'did not answer' if attempt.reached else 'unreachable'}, retrying: {attempt.reason}"
    return f"server is not ready or busy (status {attempt.status}), retrying" if attempt.status in BUSY else ""


def _answer_json(answer: Result[Any] | CmdlogError) -> dict[str, Any]:
    if isinstance(answer, Result):
        return {"ended": "ok", "txn_id": answer.txn_id, "code": "", "abort_code": "", "detail": ""}
    kinds: dict[type[CmdlogError], str] = {Aborted: "aborted", ProcedureFailed: "failed"}
    is_unknown = isinstance(answer, SessionExpired) or (isinstance(answer, OutcomeUnknown) and _is_decided(answer.__cause__))
    if not is_unknown and not _is_decided(answer):
        raise answer
    return {
        "ended": "unknown" if is_unknown else kinds.get(type(answer), "refused"),
        "txn_id": answer.txn_id or 0,
        "code": Aborted.code if isinstance(answer, Aborted) else answer.code,
        "abort_code": answer.abort_code if isinstance(answer, Aborted) else "",
        "detail": answer.message if isinstance(answer, Aborted) else str(answer),
    }


def _is_decided(error: BaseException | None) -> bool:
    return isinstance(error, CallError | RequestRefused) and not isinstance(error, Unauthenticated | Forbidden)
