"""Both clients against a server that breaks at every phase, and the truth that callers are told."""

from __future__ import annotations

import contextlib
import itertools
import ssl
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
import pytest
import trustme

from cmdlog.client import Client, RetryPolicy
from cmdlog.errors import (
    Aborted,
    BadAnswer,
    CmdlogError,
    KeyReused,
    OutcomeUnknown,
    Unauthenticated,
    Unavailable,
    Unreachable,
)
from cmdlog.results import Result
from tests.client.drives import HASTY, QUICK, Drive
from tests.client.scripted import ScriptedServer, Step, http, problem

BREAKS = {
    "reset when accepted": Step("accepted", "reset"),
    "closed when accepted": Step("accepted", "close"),
    "reset after the head": Step("head read", "reset"),
    "closed after the body": Step("body read", "close"),
    "reset after the body": Step("body read", "reset"),
    "executed, reset": Step("executed", "reset", b""),
    "executed, closed": Step("executed", "close", b""),
    "half the head": Step("executed", "close", share=0.2),
    "half the body": Step("executed", "close", share=0.95),
    "half the body, reset": Step("executed", "reset", share=0.95),
    "garbage": Step("executed", "close", b"\0\1\2 no HTTP\r\n\r\n"),
    "garbage before execution": Step("body read", "close", b"220 ESMTP ready\r\n"),
    "bad gateway": Step("executed", "keep", http(502, b"<h1>Bad Gateway</h1>", kind="text/html")),
    "gateway time-out": Step("executed", "keep", http(504, b"", kind="text/html")),
    "proxy without upstream": Step("body read", "keep", http(503, b"", kind="text/html")),
    "too many requests": Step("body read", "keep", http(429, b"", kind="text/plain", headers=["Retry-After: 0"])),
    "request time-out": Step("body read", "close", problem(408, "body_timeout")),
    "not ready": Step("body read", "keep", problem(503, "not_ready", "Retry-After: 0")),
    "outcome unknown": Step("executed", "keep", problem(504, "outcome_unknown")),
    "code of tomorrow": Step("body read", "keep", problem(503, "of_tomorrow")),
}
SURELY_NOT = {"not ready"}
NO_PROMISE_BUT_NOT_EXECUTED = {"too many requests", "request time-out", "code of tomorrow"}


@pytest.mark.parametrize("name", BREAKS)
def test_keyed_call_survives(drive: Drive, name: str) -> None:
    """Whatever breaks, twice in a row: the call is executed once and the caller gets its result."""
    with ScriptedServer([BREAKS[name], BREAKS[name]]) as server:
        assert drive.call(server.url) == 1
        assert server.executions == 1


@pytest.mark.parametrize("name", BREAKS)
def test_keyless_call_is_never_repeated_in_doubt(drive: Drive, name: str) -> None:
    """Without a key only a refusal that promises is sent again; everything else is told as what it is."""
    with ScriptedServer([BREAKS[name]]) as server:
        if name in SURELY_NOT:
            assert drive.call(server.url, key=None) == 1
            return
        if BREAKS[name].phase == "accepted":  # the break may come before a byte of the request has left, or after
            with contextlib.suppress(OutcomeUnknown):
                assert drive.call(server.url, key=None) == 1
            assert server.executions <= 1
            return
        kind = Unavailable if name in NO_PROMISE_BUT_NOT_EXECUTED else OutcomeUnknown
        with pytest.raises(kind):
            drive.call(server.url, key=None)
        assert server.executions <= 1
        assert server.connections == 1


@pytest.mark.parametrize("share", [0.2, 0.35, 0.5, 0.65, 0.8, 0.95])
def test_batch_resumes_where_the_answer_broke_off(drive: Drive, share: float) -> None:
    """Lines that were answered are not sent again; those that were not are, under the same keys."""
    with ScriptedServer([Step(end="reset", share=share)]) as server:
        answers = drive.batch(server.url, [("bump", {"id": n}) for n in range(50)])
        assert [answer.value for answer in answers] == list(range(1, 51))
        sent = Counter(itertools.chain.from_iterable(request.body.splitlines() for request in server.requests))
        first = server.requests[0].body.splitlines()
        repeated = [line for line in first if sent[line] == 2]
        assert repeated == first[len(first) - len(repeated) :], "what was answered is at the front"
        assert 0 < len(repeated) <= len(first)
        assert sum(sent.values()) == 50 + len(repeated)
        assert server.executions == 50


def test_batch_tells_the_truth_of_keyless_lines(drive: Drive) -> None:
    """Of lines without keys, those that the break left open are told as unknown, and only they."""
    with ScriptedServer([Step(end="close", share=0.5)]) as server:
        answers = drive.batch(server.url, [("bump", {"id": n}, None) for n in range(50)])
        first = len(server.requests[0].body.splitlines())
        kinds = [kind for kind, _ in itertools.groupby(map(type, answers[:first]))]
        assert kinds == [Result, OutcomeUnknown]
        assert all(isinstance(answer, Result) for answer in answers[first:])
        assert server.executions == len(answers) == 50


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (problem(409, "aborted", txn_id="7", abort_code="sold_out"), Aborted),
        (problem(409, "key_reused"), KeyReused),
        (problem(401, "unauthenticated"), Unauthenticated),
        (http(307, b"", headers=["Location: http://127.0.0.1:9/"]), BadAnswer),
        (http(200, b"<html>", kind="text/html"), BadAnswer),
        (http(200, b'{"txn_id": "7"', kind="application/json"), BadAnswer),
        (http(200, {"hello": "world"}), BadAnswer),
    ],
)
def test_what_is_no_accident_is_told_at_once(drive: Drive, reply: bytes, kind: type[CmdlogError]) -> None:
    """Outcomes, rejections, redirects and strangers are raised after one attempt, also with a key."""
    with ScriptedServer([Step("body read", reply=reply)] * 2) as server:
        with pytest.raises(kind):
            drive.call(server.url)
        assert len(server.requests) == 1


@pytest.mark.slow
def test_silent_server_is_left_for_another_attempt(drive: Drive) -> None:
    """A server that stalls before, in or after the answer's head costs one attempt's time, not the call."""
    for step in (Step("body read", "stall"), Step("executed", "stall", share=0.3), Step("executed", "stall", share=0.97)):
        with ScriptedServer([step]) as server:
            assert drive.call(server.url, retry=HASTY) == 1
            assert server.connections >= 2
            assert server.executions == 1


@pytest.mark.slow
def test_time_is_up_when_nothing_helps(drive: Drive) -> None:
    """With every attempt lost the call ends in its time, and nothing is claimed."""
    with ScriptedServer(itertools.repeat(Step("executed", "reset", b""), 10_000)) as server:
        with pytest.raises(OutcomeUnknown):
            drive.call(server.url, timeout_s=2)
        assert server.executions == 1
        assert 1 < len(server.requests) < 10_000  # it ended before the server's patience did


def test_connection_is_kept_and_a_closed_one_is_no_loss() -> None:
    """Calls in a row share one connection; one that the server has closed meanwhile is replaced unseen."""
    with ScriptedServer([Step(), Step(), Step(end="close")]) as server, Client(server.url, retry=QUICK) as client:
        for n in range(1, 7):
            assert client.call("bump", id=1) == n
        assert (server.connections, server.executions) == (2, 6)


def test_requests_carry_credential_key_and_causality() -> None:
    """Token, the number in a session or the key, the highest transaction seen; `causality` and `keys` switch the last two off."""
    with ScriptedServer() as server:
        with Client(server.url, token="secret-of-16-chars") as client:
            client.call("bump", id=1)
            client.call("bump", id=1, idempotency_key="mine")
            list(client.batch([("bump", {"id": 1})]))
        first, second, third = (request.headers for request in server.requests)
        assert {request["authorization"] for request in (first, second, third)} == {"Bearer secret-of-16-chars"}
        session = first["cmdlog-session"].removesuffix("; number=1; floor=0")
        assert (len(session), "idempotency-key" in first) == (36, False)
        assert (second["idempotency-key"], "cmdlog-session" in second) == ("mine", False)
        assert third["cmdlog-session"] == f"{session}; floor=1"
        assert orjson.loads(server.requests[2].body)["number"] == 2
        assert server.ended == [session]
        assert [headers.get("cmdlog-txn") for headers in (first, second, third)] == [None, "1", "2"]
        with Client(server.url, causality="off", keys="none", token="") as client:
            client.call("bump", id=1)
            client.invoke("bump", {"id": 1}, durability="async")
        plain, hurried = (request.headers for request in server.requests[3:])
        assert plain.keys().isdisjoint({"cmdlog-txn", "cmdlog-session", "idempotency-key", "authorization"})
        assert hurried["prefer"] == "durability=async"
        with Client(server.url, keys="single", token="") as client:
            assert [client.call("bump", id=1) for _ in range(2)] == [6, 7]
        keys = {request.headers["idempotency-key"] for request in server.requests[5:]}
        assert (len(keys), {len(key) for key in keys}, server.ended) == (2, {36}, [session])


def test_unknown_outcome_may_be_asked_for_later() -> None:
    """The error names session and number: the same client, and another program, get what the first attempt did."""
    lost = Step("executed", "reset", b"")
    hasty = RetryPolicy(connect_s=0.5, attempt_s=0.5, attempts_max=1)
    with ScriptedServer([lost, Step(), lost]) as server, Client(server.url, retry=hasty, token="") as client:
        with pytest.raises(OutcomeUnknown) as first:
            client.call("bump", id=1)
        assert client.call("bump", id=1) == 2
        with pytest.raises(OutcomeUnknown) as third:
            client.call("bump", id=1)
        keys = [str(raised.value.idempotency_key) for raised in (first, third)]
        session = keys[0].split(";")[0]
        assert keys == [f"{session}; number=1; floor=0", f"{session}; number=3; floor=0"]
        assert client.call("bump", id=1, idempotency_key=keys[0]) == 1
        assert client._sessions.new().header().endswith("; number=4; floor=2"), "the first one is settled"
        with Client(server.url, token="") as other:
            assert other.call("bump", id=1, idempotency_key=keys[1]) == 3
        assert server.executions == 3
        assert server.ended == []


def test_call_that_surely_did_not_run_has_no_key_to_ask_by() -> None:
    """Its number is over: the next call gets another one, and the floor moves on. A key of the caller's own stays."""
    client = Client("http://127.0.0.1:1", token="", timeout_s=0.05)
    with pytest.raises(Unreachable) as mine:
        client.call("bump", id=1)
    with pytest.raises(Unreachable) as given:
        client.call("bump", id=1, idempotency_key="order-18")
    assert (mine.value.idempotency_key, given.value.idempotency_key) == (None, "order-18")
    assert client._sessions.new().header().endswith("; number=2; floor=1")
    client.close()


def test_environment_is_asked_for_the_token_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """CMDLOG_TOKEN counts when no token is given; a proxy of the environment does not, unless it is asked for."""
    monkeypatch.setenv("CMDLOG_TOKEN", "from-the-environment")
    with ScriptedServer() as server, ScriptedServer() as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        (tmp_path / "token").write_text("from-the-file-16\n")
        for given in ({}, {"token": "given"}, {"token_file": tmp_path / "token"}):
            with Client(server.url, **given) as client:
                client.status()
        assert [request.headers["authorization"] for request in server.requests] == [
            "Bearer from-the-environment", "Bearer given", "Bearer from-the-file-16"
        ]  # fmt: skip
        with Client(server.url, trust_env=True) as client:
            client.status()
        assert [request.path for request in proxy.requests] == [f"{server.url}/v1/status"]


@pytest.mark.slow
def test_certificates_are_checked(drive: Drive, tmp_path: Path) -> None:
    """A certificate that nobody vouches for ends the call at once; its authority's file, a context, or no check let it pass."""
    authority = trustme.CA()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with ScriptedServer(tls=tls) as server:
        with pytest.raises(Unreachable, match="CERTIFICATE_VERIFY_FAILED"):
            drive.call(server.url, timeout_s=1000)  # more than a test has: it is not tried again
        for verify in (tmp_path / "ca.pem", str(tmp_path / "ca.pem"), trusting, False):
            assert drive.call(server.url, verify=verify) == 1


@pytest.mark.slow
def test_certificate_of_the_environment_is_shown(drive: Drive, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To a server that wants one; a file that holds none is named, and a context of the program's own stays as it is."""
    authority, trusting = trustme.CA(), ssl.create_default_context()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.verify_mode = ssl.CERT_REQUIRED
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    for context in (tls, trusting):
        authority.configure_trust(context)
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    authority.issue_cert("operator@example.org").private_key_and_cert_chain_pem.write_to_path(str(tmp_path / "own.pem"))
    with ScriptedServer(tls=tls) as server:
        monkeypatch.setenv("CMDLOG_CERT_FILE", str(tmp_path / "own.pem"))
        for verify in (tmp_path / "ca.pem", False):
            assert drive.call(server.url, verify=verify) == 1
        monkeypatch.setenv("CMDLOG_CERT_FILE", str(tmp_path / "ca.pem"))
        with pytest.raises(ValueError, match=r"CMDLOG_CERT_FILE: .*ca\.pem with a certificate and its unencrypted key"):
            drive.call(server.url, verify=False)
        monkeypatch.setenv("CMDLOG_CERT_FILE", " ")
        with pytest.raises(ValueError, match="CMDLOG_CERT_FILE is empty"):
            drive.call(server.url, verify=False)
        with Client("http://127.0.0.1:1", verify=trusting) as client:
            assert client is not None


def test_readiness_is_waited_for() -> None:
    """`ready` says no when its time is up, yes as soon as the server does, and raises what waiting cannot cure."""
    busy = Step("body read", reply=problem(503, "not_ready", "Retry-After: 1"))
    with ScriptedServer([busy] * 3 + [Step("accepted", "reset")]) as server, Client(server.url, retry=QUICK) as client:
        assert not client.ready()
        assert client.ready(5)
    with (
        ScriptedServer([Step("body read", reply=problem(401, "unauthenticated"))]) as server,
        Client(server.url) as client,
        pytest.raises(Unauthenticated),
    ):
        client.ready(5)


def test_answer_that_comes_twice_is_nobodys() -> None:
    """Something on the way repeats an answer: the next request does not take it for its own, single or batch."""

    def twice(proper: bytes) -> bytes:
        return proper + proper

    for again in (Step(reply=twice), Step(reply=lambda proper: proper + b"HTTP/1.1 200 OK\r\n\r\n")):
        with ScriptedServer([again, Step(), again, Step(), again]) as server, Client(server.url, retry=HASTY) as client:
            assert [client.call("bump", id=1) for _ in range(3)] == [1, 2, 3]
            told = [answer.value for answer in client.batch([("bump", {})] * 3) if isinstance(answer, Result)]
            assert told == [4, 5, 6]
            assert [client.call("bump", id=1) for _ in range(3)] == [7, 8, 9]
            assert server.executions == 9
