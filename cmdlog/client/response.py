"""Answers as values, and what each of them proves about the request. No socket here.

One rule: every answer, and every way of getting none, has exactly one `Fate`; retries are decided by fates alone (`retry.py`).
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Final

import httpx
import orjson

from cmdlog import errors
from cmdlog.client.request import NAME
from cmdlog.errors import CmdlogError
from cmdlog.results import QueryResult, Result

PROBLEM: Final = "application/problem+json"
JSON: Final = "application/json"
TEXT_SHOWN: Final = 200


class Fate(Enum):
    """What is known about a request after an attempt that gave no result."""

    DECIDED = "the state machine has given an outcome, and a repetition gets the same"
    REJECTED = "the request is invalid, nothing was done, and a retry is rejected again"
    REFUSED = "nothing was done, and a retry may succeed"
    BUSY = "rejected before it was read; a retry may succeed or not"
    UNKNOWN = "it may have been done"
    BROKEN = "it may have been done, and a retry is unlikely to get a better answer"


@dataclass(frozen=True, slots=True)
class Response:
    """A complete answer. `value` is its JSON; None when it holds none."""

    status: int
    value: Any
    retry_after_s: float | None = None
    date: str = ""  # the server's clock
    about: str = ""  # describes an answer without JSON
    of_line: bool = False  # of one call among others, not of a whole request


@dataclass(frozen=True, slots=True)
class Lost:
    """No answer. `reached` False: the request surely never got to the server."""

    reached: bool
    reason: str
    hopeless: bool = False  # the next attempt would fail alike
    refused: bool = False  # the machine answered that nobody listens at the port


Attempt = Response | Lost


@dataclass(frozen=True, slots=True)
class AttemptFailure:
    """An attempt that gave no result."""

    fate: Fate
    error: CmdlogError
    retry_after_s: float | None = None
    date: str = ""
    elsewhere: bool = False  # another server may do better
    silent: bool = False  # there was no answer


_OUTCOMES: Final[Mapping[str, type[CmdlogError]]] = {
    "aborted": errors.Aborted,
    "procedure_failed": errors.ProcedureFailed,
    "key_reused": errors.KeyReused,
    "session_expired": errors.SessionExpired,
}
_REJECTIONS: Final[Mapping[str, type[CmdlogError]]] = {
    "invalid_parameters": errors.InvalidParameters,
    "unknown_procedure": errors.UnknownProcedure,
    "unauthenticated": errors.Unauthenticated,
    "forbidden": errors.Forbidden,
    "too_large": errors.TooLarge,
}
_BY_STATUS: Final[Mapping[int, type[CmdlogError]]] = {
    401: errors.Unauthenticated,
    403: errors.Forbidden,
    413: errors.TooLarge,
}
PROMISES: Final = frozenset(
    ("log_full", "disk_full", "not_ready", "code_changed", "migrating", "no_quorum", "sessions_full", "too_many_connections")
)
"""Codes that promise that nothing was logged; of one that is newer than this program we do not know."""

OF_CONNECTIONS: Final = frozenset(("bad_request", "header_timeout", "headers_too_large", "url_too_long", "too_many_connections"))
"""Codes that end a connection whose request was not read, so they carry an id of their own."""

ELSEWHERE: Final = frozenset(("not_ready", "no_quorum", "too_many_connections", "outcome_unknown"))
"""Codes of a server that does not lead, or cannot serve: another one may. What all share (a full log, keys) is not among them."""

BUSY: Final = frozenset((408, 429))
GATEWAY: Final = frozenset((502, 503, 504))


def read_answer(status: int, headers: Mapping[str, str], body: bytes) -> Response:
    """An answer from its parts; header names in lower case."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    date = headers.get("date", "")
    value = None
    if kind in (JSON, PROBLEM):
        try:
            value = orjson.loads(body)
        except orjson.JSONDecodeError:
            value = None
    about = "" if value is not None else _describe(kind, headers, body)
    wait = _told_wait(value) if status >= 400 else None
    return Response(status, value, _seconds(headers.get("retry-after", ""), date) if wait is None else wait, date, about)


def check_owner(sent_id: str, told_id: str | None, answer: Attempt) -> None:
    """Refuses the answer to another request: something on the way repeated one, and from now on each would get its predecessor's.

    An answer without an id is believed, and so is one that is given before there is a request. Raises: httpx.RemoteProtocolError.
    """
    if told_id is None or told_id == sent_id:
        return
    code = answer.value.get("code") if isinstance(answer, Response) and isinstance(answer.value, dict) else None
    if code not in OF_CONNECTIONS:
        raise httpx.RemoteProtocolError("the answer belongs to another request")


def line_answer(line: bytes, date: str) -> Response | None:
    """The answer that a line of /v1/batch is; None: it is no such line."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if type(value) is not dict:
        return None
    problem = value.get("error")
    if problem is None:
        return Response(200, value, None, date, of_line=True)
    if type(problem) is not dict or type(problem.get("status")) is not int:
        return None
    return Response(problem["status"], problem, _told_wait(problem), date, of_line=True)


def _told_wait(problem: Any) -> float | None:
    """`retry_after_s` of a problem: the header has whole seconds alone, and an election is over sooner."""
    wait = problem.get("retry_after_s") if isinstance(problem, dict) else None
    return float(wait) if isinstance(wait, int | float) and 0 <= wait < math.inf else None


def points_elsewhere(attempt: Attempt) -> bool:
    """Whether another server of the same cluster may do better."""
    if isinstance(attempt, Lost):
        return True
    code = attempt.value.get("code") if isinstance(attempt.value, dict) else None
    return code in ELSEWHERE if type(code) is str else attempt.status in GATEWAY


def named_leader(attempt: Attempt) -> str:
    """The URL of the leader that a refusal names, "" without one."""
    value = attempt.value if isinstance(attempt, Response) else None
    return str(value.get("leader") or "") if isinstance(value, dict) else ""


def judge(attempt: Attempt) -> Any | AttemptFailure:
    """The JSON of a success, or the failure that the attempt was."""
    if isinstance(attempt, Response) and attempt.status == 200 and attempt.value is not None:
        return attempt.value
    failure = _judge_lost(attempt) if isinstance(attempt, Lost) else _judge_answer(attempt)
    return replace(failure, elsewhere=points_elsewhere(attempt), silent=isinstance(attempt, Lost))


def _judge_answer(attempt: Response) -> AttemptFailure:
    value = attempt.value if isinstance(attempt.value, dict) else {}
    code = value.get("code")
    if type(code) is not str:
        return _judge_stranger(attempt)
    fate, error = _judge_problem(attempt.status, code, value)
    error.request_id = str(value.get("request_id") or "")
    error.hint = str(value.get("hint") or "")
    if attempt.retry_after_s is not None:
        error.retry_after_s = attempt.retry_after_s
    return AttemptFailure(fate, error, attempt.retry_after_s, attempt.date)


def _judge_lost(lost: Lost) -> AttemptFailure:
    if lost.reached:
        return AttemptFailure(Fate.UNKNOWN, errors.OutcomeUnknown(lost.reason))
    return AttemptFailure(Fate.REJECTED if lost.hopeless else Fate.REFUSED, errors.Unreachable(lost.reason))


def _judge_problem(status: int, code: str, value: Mapping[str, Any]) -> tuple[Fate, CmdlogError]:
    detail = str(value.get("detail") or value.get("title") or code)
    if code in _OUTCOMES:
        return Fate.DECIDED, _outcome(code, detail, value)
    if code == "invalid_parameters":
        return Fate.REJECTED, errors.InvalidParameters(detail, problems=list(_problems(value)))
    if code in _REJECTIONS:
        return Fate.REJECTED, _REJECTIONS[code](detail)
    if code in PROMISES:
        return Fate.REFUSED, errors.Unavailable(detail, code=code)
    if status in BUSY or status == 503:
        return Fate.BUSY, errors.Unavailable(detail, code=code)
    if status in GATEWAY:
        return Fate.UNKNOWN, errors.OutcomeUnknown(detail, code=code)
    if status >= 500:
        return Fate.BROKEN, errors.ServerFault(detail, code=code)
    return Fate.REJECTED, _BY_STATUS.get(status, errors.RequestRefused)(detail, code=code)


def _outcome(code: str, detail: str, value: Mapping[str, Any]) -> CmdlogError:
    txn_id = txn_number(value.get("txn_id")) or 0
    if code == "aborted":
        return errors.Aborted(detail, abort_code=str(value.get("abort_code") or ""), txn_id=txn_id)
    if code == "procedure_failed":
        kind = str(value.get("error") or "")
        line = value.get("line")
        return errors.ProcedureFailed(
            detail,
            error_type=kind,
            procedure=str(value.get("procedure") or ""),
            file=str(value.get("file") or ""),
            line=line if type(line) is int else 0,
            hint=str(value.get("hint") or ""),
            txn_id=txn_id,
        )
    return _OUTCOMES[code](detail, txn_id=txn_id)


def _problems(value: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    listed = value.get("problems")
    for entry in listed if isinstance(listed, list) else []:
        if isinstance(entry, dict):
            yield str(entry.get("field", "")), str(entry.get("problem", ""))


def _judge_stranger(attempt: Response) -> AttemptFailure:
    """An answer without a code: of a proxy, or of something else that listens there."""
    status, about = attempt.status, f"the server answered {attempt.status} and {attempt.about or 'no problem with a code'}"
    if status in BUSY:
        return AttemptFailure(Fate.BUSY, errors.Unavailable(about, code="busy"), attempt.retry_after_s)
    if status in GATEWAY:
        return AttemptFailure(Fate.UNKNOWN, errors.OutcomeUnknown(about), attempt.retry_after_s)
    if status >= 500 or status < 300:
        return AttemptFailure(Fate.BROKEN, errors.BadAnswer(about))
    if status in _BY_STATUS:
        return AttemptFailure(Fate.REJECTED, _BY_STATUS[status](about))
    return AttemptFailure(Fate.REJECTED, errors.BadAnswer(about))


def _describe(kind: str, headers: Mapping[str, str], body: bytes) -> str:
    if "location" in headers:
        return f"points to {headers['location'][:TEXT_SHOWN]}; redirects are not followed"
    if kind in (JSON, PROBLEM):
        return "the body is not valid JSON"
    shown = body[:TEXT_SHOWN].decode(errors="replace").strip()
    return f"{kind or 'no content type'}, not JSON ({shown!r}); check that cmdlog is listening there"


def _seconds(value: str, date: str) -> float | None:
    """`Retry-After` in seconds; a date in it is held against the server's own clock."""
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        wait = email.utils.parsedate_to_datetime(value) - email.utils.parsedate_to_datetime(date)
    except (TypeError, ValueError):
        return None
    return max(0.0, wait.total_seconds())


def lost(error: BaseException, *, begun: bool) -> Lost:
    """What an exception of the transport proves. `begun`: a byte of the request's body has left us.

    Only what has not begun was surely not executed. After that even a reset in the middle of the request proves nothing: what the
    socket took may have arrived, and something on the way may have sent a copy.
    """
    if not begun and _comes_of(error, ConnectionRefusedError):
        return Lost(reached=False, reason="nobody listens there (connection refused)", refused=True)
    hopeless = _comes_of(error, ssl.SSLCertVerificationError)
    hopeless = hopeless or isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError)
    return Lost(reached=begun, reason=str(error) or type(error).__name__, hopeless=hopeless and not begun)


def _comes_of(error: BaseException | None, kind: type[OSError]) -> bool:
    while error is not None:
        if isinstance(error, kind):
            return True
        error = error.__cause__ or error.__context__
    return False


NO_AS_OF: Final = (TypeError, ValueError, AttributeError)  # what a value of another form raises


def read_result(value: Any) -> Result[Any]:
    """The result object of a call. Raises: BadAnswer."""
    if type(value) is dict and "result" in value:
        txn_id, partition = txn_number(value.get("txn_id")), value.get("partition")
        if txn_id is not None and (partition is None or type(partition) is int):
            with contextlib.suppress(*NO_AS_OF):
                as_of = _read_as_of(value["as_of"]) if "as_of" in value else None
                return Result(txn_id, partition, value["result"], as_of)
    raise errors.BadAnswer("the answer is not the result of a call: txn_id, partition and result belong in it")


def _read_as_of(value: Any) -> dict[int, int]:
    """Partition -> TxnId. Raises: one of NO_AS_OF."""
    return {int(partition): int(txn_id) for partition, txn_id in value.items()}


def read_rows(value: Any) -> QueryResult:
    """The answer of /v1/query. Raises: BadAnswer."""
    try:
        return QueryResult(list(map(str, value["columns"])), list(map(tuple, value["rows"])), _read_as_of(value["as_of"]))
    except (KeyError, *NO_AS_OF):
        raise errors.BadAnswer("the answer is not the result of a query: columns, rows and as_of belong in it") from None


def read_object(value: Any) -> dict[str, Any]:
    """An answer that is an object. Raises: BadAnswer."""
    if type(value) is dict:
        return value
    raise errors.BadAnswer("the answer is not a JSON object")


def member(value: Any, name: str) -> Any:
    """A member of an answer that is an object. Raises: BadAnswer."""
    if type(value) is dict and name in value:
        return value[name]
    raise errors.BadAnswer(f"the answer holds no {name}")


def read_catalog(value: Any) -> list[dict[str, Any]]:
    """The procedures that a server describes. Raises: BadAnswer.

    Their names get into programs, and into shells, which evaluate what completes a line: a name has the characters of names.
    """
    listed = member(value, "procedures")
    if type(listed) is not list:
        raise errors.BadAnswer("the catalog of procedures is no list")
    for entry in listed:
        name = member(entry, "name")
        if type(name) is not str or not NAME.fullmatch(name):
            raise errors.BadAnswer(f"the catalog names a procedure {name!r:.100}, which is no name")
        properties = member(member(entry, "parameters"), "properties")
        if type(properties) is not dict or not all(map(str.isidentifier, properties)):
            raise errors.BadAnswer(f"the catalog names parameters of {name} that are no names")
    return listed


def txn_number(value: Any) -> int | None:
    """A transaction id from its decimal string."""
    return int(value) if type(value) is str and value.isascii() and value.isdigit() and len(value) <= 20 else None
