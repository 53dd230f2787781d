"""Calls of a batch job on their way to a server: what an executor is given to send rows with.

One rule: a row's key is made of what the job says of the row and of when the job began, never of chance. So a row that is sent
again, by another attempt or another driver, is answered with its first outcome; and once the server has forgotten that outcome,
the time in the key makes it refuse the row (`session_expired`) rather than execute it again.

A call that was decided or refused is an answer. A server that cannot be reached, is not sure, or lets nobody in is an error: the
job tries again later.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cmdlog.client.answer import Attempt, Lost
from cmdlog.client.ask import Ask, Call
from cmdlog.client.exchange import Send
from cmdlog.client.keys import uuid7
from cmdlog.client.options import DEFAULT_URL
from cmdlog.client.sync import Client
from cmdlog.errors import Aborted, CallError, CmdlogError, Forbidden, ProcedureFailed, RequestRefused, Unauthenticated
from cmdlog.results import Result

BUSY: Final = (429, 502, 503, 504)
Row = tuple[str, Mapping[str, Any], str]  # procedure, params, what names the row in the job


def key_of(name: str, began_ms: int) -> str:
    """The idempotency key of a row."""
    return uuid7(began_ms, hashlib.sha256(name.encode()).digest()[:10])


@dataclass(frozen=True, slots=True)
class Feeder:
    """Sends calls through `/v1/batch`, as fast as the server takes them. A value: it travels to executors.

    `token_file` and `ca_file` are read there; without a file the variable CMDLOG_TOKEN is asked, there too.
    """

    url: str = DEFAULT_URL
    token_file: str | os.PathLike[str] | None = None
    ca_file: str | os.PathLike[str] | None = None
    timeout_s: float = 300.0  # of one call, with all waits that the server asks for
    tell: Callable[[str], None] | None = field(default=None, compare=False)  # is told why a request will be sent again

    def telling(self, tell: Callable[[str], None]) -> Feeder:
        """The same, which tells why it waits, in the process where it sends."""
        return replace(self, tell=tell)

    def __call__(self, rows: Iterable[Row], *, began_ms: int) -> Iterator[dict[str, Any]]:
        """An answer for each row, in order. Raises: CmdlogError of the server, not of a call."""
        sent: deque[str] = deque()

        def calls() -> Iterator[Call]:
            for procedure, params, name in rows:
                sent.append(key_of(name, began_ms))
                yield Call(procedure, params, sent[-1])

        verify = str(self.ca_file) if self.ca_file is not None else True
        with _Telling(self.url, token_file=self.token_file, timeout_s=self.timeout_s, verify=verify) as client:
            client.tell = self.tell
            for answer in client.batch(calls()):
                yield {"key": sent.popleft(), **_told(answer)}


class _Telling(Client):
    """A client that says why a request came to nothing; what becomes of the calls is decided as ever."""

    tell: Callable[[str], None] | None = None

    def _send_many(self, asks: Sequence[Ask], step: Send) -> Generator[Attempt, None, None]:
        told = self.tell is None
        with contextlib.closing(super()._send_many(asks, step)) as attempts:
            for attempt in attempts:
                if not told and self.tell is not None and (why := _why(attempt)):
                    self.tell(why)
                    told = True  # the others of the request suffer the same
                yield attempt


def _why(attempt: Attempt) -> str:
    """Why a request is sent again; "" of an answer."""
    if isinstance(attempt, Lost):
        return f"server {'did not answer' if attempt.reached else 'unreachable'}, retrying: {attempt.reason}"
    return f"server is not ready or busy (status {attempt.status}), retrying" if attempt.status in BUSY else ""


def _told(answer: Result[Any] | CmdlogError) -> dict[str, Any]:
    if isinstance(answer, Result):
        return {"ended": "ok", "txn_id": answer.txn_id, "code": "", "abort_code": "", "detail": ""}
    kinds: dict[type[CmdlogError], str] = {Aborted: "aborted", ProcedureFailed: "failed"}
    decided = isinstance(answer, CallError | RequestRefused) and not isinstance(answer, Unauthenticated | Forbidden)
    if not decided:
        raise answer
    return {
        "ended": kinds.get(type(answer), "refused"),
        "txn_id": answer.txn_id or 0,
        "code": answer.code,
        "abort_code": answer.abort_code if isinstance(answer, Aborted) else "",
        "detail": str(answer),
    }
