"""What an attempt proves: one fate per answer, one class per code."""

from __future__ import annotations

import asyncio
import copy
import json
import ssl
from functools import partial
from typing import Any

import httpx
import orjson
import pytest

from cmdlog import errors
from cmdlog.api.gate.problem import CODES
from cmdlog.client.response import (
    Attempt,
    AttemptFailure,
    Fate,
    Lost,
    Response,
    judge,
    line_answer,
    lost,
    named_leader,
    points_elsewhere,
    read_answer,
    read_catalog,
    read_result,
    read_rows,
)
from cmdlog.errors import BadAnswer
from procedures.execution.outcome_bodies import SKIPPED

PROBLEM = {"content-type": "application/problem+json"}


def failure_of(status: int, code: str, **more: Any) -> AttemptFailure:
    """The failure that a problem with this code is."""
    body = orjson.dumps({"code": code, "status": status, "detail": "why", "title": "what", **more})
    found = judge(read_answer(status, PROBLEM, body))
    assert isinstance(found, AttemptFailure)
    return found


FATES = {
    "unauthenticated": (Fate.REJECTED, errors.Unauthenticated),
    "forbidden": (Fate.REJECTED, errors.Forbidden),
    "unknown_procedure": (Fate.REJECTED, errors.UnknownProcedure),
    "invalid_parameters": (Fate.REJECTED, errors.InvalidParameters),
    "too_large": (Fate.REJECTED, errors.TooLarge),
    "aborted": (Fate.DECIDED, errors.Aborted),
    "procedure_failed": (Fate.DECIDED, errors.ProcedureFailed),
    "key_reused": (Fate.DECIDED, errors.KeyReused),
    "session_expired": (Fate.DECIDED, errors.SessionExpired),
    "log_full": (Fate.REFUSED, errors.Unavailable),
    "disk_full": (Fate.REFUSED, errors.Unavailable),
    "not_ready": (Fate.REFUSED, errors.Unavailable),
    "no_quorum": (Fate.REFUSED, errors.Unavailable),
    "sessions_full": (Fate.REFUSED, errors.Unavailable),
    "too_many_connections": (Fate.REFUSED, errors.Unavailable),
    "outcome_unknown": (Fate.UNKNOWN, errors.OutcomeUnknown),
}
STATUSES = {"no_quorum": 503} | {code: status for code, (status, _) in CODES.items()}


@pytest.mark.parametrize("code", FATES)
def test_code_of_the_contract_has_its_class(code: str) -> None:
    """Each code of the contract has one fate and one class, and keeps its code."""
    failure = failure_of(STATUSES[code], code)
    assert (failure.fate, type(failure.error)) == FATES[code]
    assert failure.error.code == code
    assert "why" in str(failure.error)


def test_every_code_of_the_server_is_told_apart_or_judged_by_its_status() -> None:
    """A code that the server has and this table does not gets the fate of its status: never a retry of what is at fault."""
    for code, (status, _) in CODES.items():
        fate = failure_of(status, code).fate
        expected = {408: Fate.BUSY, 429: Fate.BUSY, 502: Fate.UNKNOWN, 503: Fate.REFUSED, 504: Fate.UNKNOWN}.get(status)
        if code in FATES:
            assert fate is FATES[code][0]
        elif expected is not None:
            assert fate in (expected, Fate.BUSY), code
        else:
            assert fate is (Fate.BROKEN if status >= 500 else Fate.REJECTED), code


@pytest.mark.parametrize(
    ("status", "fate", "kind"),
    [
        (400, Fate.REJECTED, errors.RequestRefused),
        (401, Fate.REJECTED, errors.Unauthenticated),
        (403, Fate.REJECTED, errors.Forbidden),
        (409, Fate.REJECTED, errors.RequestRefused),
        (413, Fate.REJECTED, errors.TooLarge),
        (408, Fate.BUSY, errors.Unavailable),
        (429, Fate.BUSY, errors.Unavailable),
        (500, Fate.BROKEN, errors.ServerFault),
        (502, Fate.UNKNOWN, errors.OutcomeUnknown),
        (503, Fate.BUSY, errors.Unavailable),
        (504, Fate.UNKNOWN, errors.OutcomeUnknown),
        (507, Fate.BROKEN, errors.ServerFault),
    ],
)
def test_code_of_tomorrow_is_judged_by_its_status(status: int, fate: Fate, kind: type[Exception]) -> None:
    """An unknown code maps to the class that its status implies, keeps its code, and promises nothing."""
    failure = failure_of(status, "of_tomorrow")
    assert (failure.fate, type(failure.error), failure.error.code) == (fate, kind, "of_tomorrow")


def test_outcomes_carry_what_the_procedure_said() -> None:
    """Abort code, kind of error, transaction and fields at fault are attributes, as they are in this process."""
    aborted = failure_of(409, "aborted", txn_id="77", abort_code="sold_out").error
    assert isinstance(aborted, errors.Aborted)
    assert (aborted.code, aborted.abort_code, aborted.txn_id, str(aborted)) == ("sold_out", "sold_out", 77, "sold_out: why")
    failed = failure_of(500, "procedure_failed", txn_id="78", error="LookupError").error
    assert isinstance(failed, errors.ProcedureFailed)
    assert (failed.error_type, str(failed)) == ("LookupError", "LookupError: why")
    placed = failure_of(500, "procedure_failed", error="LookupError", procedure="sell", file="shop.py", line=7).error
    assert str(placed) == "procedure sell raised LookupError: why (shop.py, line 7)"
    misfit = failure_of(422, "invalid_parameters", problems=[{"field": "id", "problem": "missing"}, 7]).error
    assert isinstance(misfit, errors.InvalidParameters)
    assert misfit.problems == [("id", "missing")]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT", "date": "Sat, 21 Nov 2026 12:00:00 GMT"}, 30.0),
        ({"retry-after": "Sat, 21 Nov 2026 11:00:00 GMT", "date": "Sat, 21 Nov 2026 12:00:00 GMT"}, 0.0),
        ({"retry-after": "Sat, 21 Nov 2026 12:00:30 GMT"}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_both_forms(headers: dict[str, str], seconds: float | None) -> None:
    """Seconds, or a date held against the server's own clock: ours does not count."""
    found = judge(read_answer(503, {**PROBLEM, **headers}, b'{"code": "log_full"}'))
    assert isinstance(found, AttemptFailure)
    assert (found.retry_after_s, found.error.retry_after_s) == (seconds, seconds)


@pytest.mark.parametrize(
    ("status", "headers", "body", "fate", "says"),
    [
        (200, {"content-type": "text/html"}, b"<h1>Sign in</h1>", Fate.BROKEN, "cmdlog is listening"),
        (200, {"content-type": "application/json"}, b'{"txn_id": ', Fate.BROKEN, "is not valid JSON"),
        (200, {}, b"", Fate.BROKEN, "no content type"),
        (204, {}, b"", Fate.BROKEN, "204"),
        (307, {"location": "http://elsewhere/"}, b"", Fate.REJECTED, "redirects are not followed"),
        (404, {"content-type": "text/plain"}, b"no", Fate.REJECTED, "404"),
        (404, PROBLEM, b"[1]", Fate.REJECTED, "404"),
        (404, PROBLEM, b'{"code": 7}', Fate.REJECTED, "404"),
        (502, {"content-type": "text/html"}, b"Bad Gateway", Fate.UNKNOWN, "502"),
        (503, {"content-type": "text/html"}, b"", Fate.UNKNOWN, "503"),
        (429, {}, b"", Fate.BUSY, "429"),
        (500, {}, b"oops", Fate.BROKEN, "500"),
    ],
)
def test_stranger_is_recognised(status: int, headers: dict[str, str], body: bytes, fate: Fate, says: str) -> None:
    """What is no answer of this protocol is told as such, and promises nothing."""
    found = judge(read_answer(status, headers, body))
    assert isinstance(found, AttemptFailure)
    assert found.fate is fate
    assert says in str(found.error)


def test_json_of_null_is_no_success() -> None:
    """A body `null` is JSON, and still no result."""
    found = judge(read_answer(200, {"content-type": "application/json"}, b"null"))
    assert isinstance(found, AttemptFailure)


@pytest.mark.parametrize(
    "error",
    [
        httpx.ConnectError("refused"),
        httpx.ConnectTimeout("late"),
        httpx.PoolTimeout("none free"),
        httpx.ReadTimeout("late"),
        httpx.ReadError("reset"),
        httpx.WriteError("reset"),
        httpx.RemoteProtocolError("garbage"),
        TimeoutError(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_only_what_has_not_begun_is_known_not_to_be_executed(error: Exception) -> None:
    """Once a byte of the body has left, nothing that breaks says that the request was not executed."""
    for begun, fate in ((False, Fate.REFUSED), (True, Fate.UNKNOWN)):
        found = judge(lost(error, begun=begun))
        assert isinstance(found, AttemptFailure)
        assert found.fate is fate


def test_bad_certificate_is_hopeless() -> None:
    """Asking again does not make a certificate good: the error comes at once."""
    error = httpx.ConnectError("certificate verify failed")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed")
    found = judge(lost(error, begun=False))
    assert isinstance(found, AttemptFailure)
    assert found.fate is Fate.REJECTED


@pytest.mark.parametrize(
    "value",
    [None, [], {}, {"txn_id": "1"}, {"txn_id": 1, "partition": 0, "result": 1}, {"txn_id": "-1", "partition": 0, "result": 1},
     {"txn_id": "1" * 30, "partition": 0, "result": 1}, {"txn_id": "1", "partition": "0", "result": 1}],
)  # fmt: skip
def test_result_that_is_none_is_not_believed(value: Any) -> None:
    """An object without its members, or with others' types, is a bad answer and no result."""
    with pytest.raises(BadAnswer):
        read_result(value)


@pytest.mark.parametrize("value", [None, {}, {"columns": 1, "rows": [], "as_of": {}}, {"columns": [], "rows": [1], "as_of": {}},
                                   {"columns": [], "rows": [], "as_of": {"x": "y"}}])  # fmt: skip
def test_rows_that_are_none_are_not_believed(value: Any) -> None:
    """So it is with queries."""
    with pytest.raises(BadAnswer):
        read_rows(value)


def test_refused_connection_says_that_nobody_listens() -> None:
    """Of both kinds of client; a connection that is lost later is another matter."""

    async def ask() -> None:
        async with httpx.AsyncClient(trust_env=False) as client:
            await client.get("http://127.0.0.1:9")

    for attempt in (partial(httpx.get, "http://127.0.0.1:9", trust_env=False), lambda: asyncio.run(ask())):
        with pytest.raises(httpx.ConnectError) as failed:
            attempt()
        assert lost(failed.value, begun=False) == Lost(
            reached=False, reason="nobody listens there (connection refused)", refused=True
        )
    assert not lost(httpx.ConnectTimeout("too long"), begun=False).refused


@pytest.mark.parametrize("line", [b"{", b"[]", b"7", b'{"error": 7}', b'{"error": {}}', b'{"error": {"status": "409"}}'])
def test_line_that_is_none_is_told(line: bytes) -> None:
    """A line of a batch that is neither a result nor an error has no answer in it."""
    assert line_answer(line, "") is None


def test_line_is_judged_like_an_answer_of_its_own() -> None:
    """The same problem means the same on a line and alone; the line's `retry_after_s` stands for the header."""
    problem = {"code": "log_full", "status": 503, "detail": "full", "retry_after_s": 3}
    found = judge(line_answer(orjson.dumps({"error": problem}), "") or Lost(reached=True, reason=""))
    assert isinstance(found, AttemptFailure)
    assert (found.fate, found.retry_after_s) == (Fate.REFUSED, 3.0)
    assert judge(Response(200, {"result": 1})) == {"result": 1}


def test_wait_of_a_problem_is_exact_in_its_body() -> None:
    """The header has whole seconds alone; what is no wait is none."""
    headers = {"content-type": "application/problem+json", "retry-after": "1"}
    for told, wait in ((0.1, 0.1), (3, 3.0), (None, 1.0), ("0.1", 1.0), (-1, 1.0), (1e999, 1.0)):
        body = json.dumps({"code": "not_ready", "status": 503, "retry_after_s": told}).encode()
        assert read_answer(503, headers, body).retry_after_s == wait


@pytest.mark.parametrize(
    ("attempt", "moves"),
    [
        (Lost(reached=True, reason="reset"), True),
        (Lost(reached=False, reason="refused", hopeless=True), True),
        *((Response(503, {"code": code}), True) for code in ("not_ready", "no_quorum", "too_many_connections")),
        *((Response(503, {"code": code}), False) for code in ("log_full", "disk_full", "sessions_full", "of_tomorrow")),
        (Response(504, {"code": "outcome_unknown"}), True),
        *((Response(status, None), True) for status in (502, 503, 504)),
        *((Response(status, None), False) for status in (200, 307, 401, 408, 429, 500)),
        (Response(500, {"code": "internal_error"}), False),
        (Response(409, {"code": "aborted"}), False),
    ],
)
def test_failure_of_one_server_is_told_from_those_of_all(attempt: Attempt, moves: bool) -> None:
    """What a server that is dead, follows, or has lost its lead says moves to the next; what each would say does not."""
    assert points_elsewhere(attempt) == moves
    found = judge(attempt)
    if isinstance(found, AttemptFailure):
        assert (found.elsewhere, found.silent) == (moves, isinstance(attempt, Lost))


@pytest.mark.parametrize(
    ("value", "leader"), [({"leader": "http://a"}, "http://a"), ({"leader": None}, ""), ({}, ""), (None, ""), ([], ""), (7, "")]
)
def test_leader_is_named_by_a_member_of_the_problem(value: Any, leader: str) -> None:
    """Whatever else an answer holds, it names nobody."""
    assert named_leader(Response(503, value)) == leader
    assert named_leader(Lost(reached=True, reason="reset")) == ""


def test_errors_cross_processes() -> None:
    """Every error can be taken apart and put together with all that it carries: a pool of processes hangs on one that cannot."""
    made = [
        errors.Aborted("m", abort_code="a", txn_id=7),
        errors.ProcedureFailed("m", error_type="E", txn_id=8),
        errors.InvalidParameters(problems=[("f", "p")]),
        errors.Unavailable("m", code="log_full", retry_after_s=2.0),
        errors.UnknownProcedure("m"),
        errors.OutcomeUnknown("m"),
    ]
    for error in made:
        again = copy.copy(error)  # by the means that pickle uses
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


def test_skipped_call_did_not_raise_a_class_of_that_name() -> None:
    """Its error says that it was skipped, with or without the procedure; an exception of the application keeps its own name."""
    skip = orjson.loads(SKIPPED)
    why = f"was skipped: {skip['message']}"
    one = errors.ProcedureFailed(skip["message"], error_type=skip["type"], procedure="p", hint="p was left out after 3 attempts")
    assert str(one) == f"procedure p {why}; p was left out after 3 attempts"
    assert str(errors.ProcedureFailed(skip["message"], error_type=skip["type"])) == f"the call {why}"
    own = errors.ProcedureFailed("m", error_type="Skipped", procedure="p", file="shop.py", line=7)
    assert str(own) == "procedure p raised Skipped: m (shop.py, line 7)"


def test_every_error_has_one_root_and_a_code() -> None:
    """`except CmdlogError` catches all of them, and each class has a code of its own kind."""
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    codes = [kind.code for kind in classes if issubclass(kind, errors.CmdlogError)]
    assert len(codes) == len(classes)
    assert len(set(codes)) == len(codes) - 1, "the root and CallError share the general one"


@pytest.mark.parametrize(
    ("name", "parameter"),
    [("$(id)", "a"), ("a b", "a"), ("a\n", "a"), ("", "a"), (1, "a"), ("a", "`id`"), ("a", "b c"), ("a", "")],
)
def test_a_catalog_has_names_alone(name: Any, parameter: str) -> None:
    """They are written into programs and completed by shells."""
    entry = {"name": "put", "parameters": {"properties": {"item": {}}}}
    assert read_catalog({"procedures": [entry]}) == [entry]
    for wrong in ({"name": name, "parameters": {"properties": {parameter: {}}}}, {"name": "put"}, {}, 1):
        with pytest.raises(errors.BadAnswer):
            read_catalog({"procedures": [entry, wrong]})
    with pytest.raises(errors.BadAnswer):
        read_catalog({"procedures": {}})
