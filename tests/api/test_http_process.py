"""The life of an HTTP process beside its node: code, certificates, the end of either."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx
import orjson
import pytest
import trustme

from cmdlog.api.processes.http_process import ProcessStats, ServedCode, encode_totals
from cmdlog.child_process import ChildProcess
from cmdlog.node.outcome import LogFullRefusal, Reply
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.testing import Server
from tests.api.linked_node import AHEAD
from tests.api.running import APPLICATION, ROOT, Bank
from tests.api.test_process_main import answers, linked
from tests.api.test_tls import context_of, write
from tests.waiting import ASK_EVERY_S, PATIENCE_S, eventually

slow = pytest.mark.slow
ONE = ("--http-processes", "1")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Bank]:
    """One with an account."""
    running = Bank(tmp_path, *ONE)
    try:
        running.open_account(1)
        yield running
    finally:
        running.kill()


def call(server: Bank, procedure: str, **params: int) -> httpx.Response:
    """Of account 1, over a connection of its own: its process may be killed."""
    return httpx.post(f"{server.url}/v1/procedures/{procedure}", json={"account": 1, **params})


def pids(server: Bank) -> list[int]:
    """Of the HTTP processes."""
    found: list[int] = server.get("/v1/status").json()["http_processes"]
    return found


def ended(pid: int) -> bool:
    """Whether a process is gone, or waits to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def test_the_answer_to_an_older_version_counts_for_nothing() -> None:
    """A deploy waits for the version that it gave."""
    code = ServedCode()
    code.give(1)
    code.note_answer(1, "")
    assert (code.loaded, code.known.is_set()) == (1, True)
    code.give(2)
    code.note_answer(1, "")
    assert not code.known.is_set()
    code.note_answer(2, "no such module")
    assert (code.loaded, code.problem, code.known.is_set()) == (0, "no such module", True)


@slow
@pytest.mark.parametrize("processes", [0, 1])
def test_a_read_that_ends_its_site_is_answered_with_the_reason(tmp_path: Path, processes: int) -> None:
    """A call of its own and a line of a batch, by the node or by an HTTP process: a failure, which no client repeats."""
    server = Server("tests.node.apps.faulty:db", tmp_path, sites=1, http_processes=processes, call_timeout_s=1)
    try:
        server.start()
        hint = "hang_reading was stopped: the read ran longer than call_timeout_s=1"
        answer = httpx.post(f"{server.url}/v1/procedures/hang_reading", json={"id": 1})
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (500, "procedure_failed")
        assert (problem["error"], problem["hint"]) == ("SiteEnded", hint)
        read = partial(httpx.post, f"{server.url}/v1/procedures/peek", json={"id": 1})
        assert eventually(lambda: read().status_code == 200, every_s=ASK_EVERY_S)
        line = b'{"procedure": "end_reading", "params": {"id": 1, "how": "exit"}}\n'
        problem = orjson.loads(httpx.post(server.url + "/v1/batch", content=line).content)["error"]
        assert (problem["code"], problem["hint"]) == ("procedure_failed", "end_reading ended its site process: exit code 3")
    finally:
        server.close()


@slow
def test_processes_end_with_their_node_which_starts_again(tmp_path: Path, server: Bank) -> None:
    """Its port is free for the next node, at once."""
    http, port = pids(server), server.url.rpartition(":")[2]
    server.kill()
    again = Bank(tmp_path, *ONE, "--port", port)
    try:
        assert eventually(lambda: all(ended(pid) for pid in http))
        assert call(again, "deposit", amount=1).json()["result"] == 1
    finally:
        again.kill()


@slow
def test_a_deploy_is_answered_when_every_process_has_the_code(tmp_path: Path, server: Bank) -> None:
    """The next call runs it, with its parameters, also after the process was started again."""
    folder = tmp_path / "new"
    folder.mkdir()
    (folder / "bank_of_test.py").write_text(
        APPLICATION.replace("def deposit(tx, account: int, amount: int)", "def deposit(tx, account: int, amount: int, fee: int)")
        .replace("amount=amount)\n    return balance + amount", "amount=amount - fee)\n    return balance + amount - fee")
    )  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    arguments = ("deploy", "bank_of_test:db", "--url", server.url)
    with ChildProcess("cmdlog.cli", *arguments, environment=environment, cwd=folder) as deploy:
        assert deploy.wait(PATIENCE_S) == 0
    assert call(server, "deposit", amount=5).status_code == 422
    assert call(server, "deposit", amount=5, fee=2).json()["result"] == 3
    (pid,) = pids(server)
    os.kill(pid, 9)
    assert eventually(lambda: call(server, "deposit", amount=5, fee=2).json()["result"] == 6, every_s=ASK_EVERY_S)


@slow
def test_a_certificate_serves_in_the_process(tmp_path: Path) -> None:
    """Calls and other routes alike, encrypted."""
    authority = trustme.CA()
    files = write(authority.issue_cert("localhost", "127.0.0.1"), tmp_path)
    options = [word for name, path in files.items() for word in ("--" + name.replace("_", "-"), str(path))]
    server = Bank(tmp_path, *ONE, *options)
    try:
        assert server.url.startswith("https://")
        with httpx.Client(base_url=server.url, verify=context_of(authority)) as client:
            assert client.post("/v1/procedures/open_account", json={"account": 1, "amount": 3}).json()["result"] == 3
            assert client.get("/readyz").status_code == 200
        assert server.stop() == 0
    finally:
        server.kill()


async def test_calls_of_one_frame_keep_their_order() -> None:
    """Reads among them: a read that was asked for after a write sees it, as in the node's own process."""

    async with linked() as pair:
        routes = pair.near.routes
        read = next(route for route in routes.values() if route.read_only and not route.everywhere)
        order = [routes["bump"], read, routes["bump"], read]
        for route in order:
            pair.near.call(route, [1, 1][: len(route.procedure.parameter_names)], done=lambda reply: None)
        await pair.reached(4)
        assert [call[0].name for call in pair.node.placed] == [route.name for route in order]


async def test_a_refusal_of_the_node_keeps_its_kind() -> None:
    """Its caller sees the same code as without a process between."""

    async with linked() as pair:
        replies: list[Reply] = []
        pair.node.refusal = LogFullRefusal("no room")
        pair.near.call(pair.near.routes["bump"], [1, 1], done=replies.append)
        (refusal,) = await answers(replies)
        assert (type(refusal), str(refusal)) == (LogFullRefusal, "no room")


async def test_a_transaction_ahead_refuses_its_own_call_alone() -> None:
    """Others of the frame are placed."""

    async with linked() as pair:
        replies: list[Reply] = []
        pair.near.call(pair.near.routes["bump"], [1, 1], done=replies.append, txn=AHEAD)
        pair.near.call(pair.near.routes["bump"], [2, 1], done=replies.append)
        await pair.reached(1)
        (refusal,) = await answers(replies)
        assert not isinstance(refusal, tuple)
        assert refusal.code == "invalid_parameters"


def count(front: RequestStats) -> None:
    """One of each."""
    front.answered("call", 200)
    front.latency.add(0.001)
    front.refuse("bump", "not_ready")
    front.error("not_ready", "bump", "id-1", "text")
    front.slow_calls += 1


def test_totals_are_added_once_however_often_they_are_told() -> None:
    """Two processes tell theirs again and again; the node's own are beside them."""
    node, fronts = RequestStats(), [RequestStats(), RequestStats()]
    stats = [ProcessStats(node, {}) for _ in fronts]
    count(node)
    for _ in range(3):
        for front, known in zip(fronts, stats, strict=True):
            count(front)
            for _ in range(2):
                known.take_totals(encode_totals(front, streams=1))
    assert node.requests == {("call", 200): 7}
    assert node.refused == {("bump", "not_ready"): 7}
    assert sum(node.latency.counts) == 7
    assert round(node.latency.total, 6) == 0.007
    assert node.slow_calls == 7
    (error,) = node.errors()
    assert (error["count"], error["request_id"]) == (7, "id-1")
    assert [known.calls(("call", 200)) for known in stats] == [3, 3]


def test_what_is_open_counts_while_its_process_lives() -> None:
    """Connections are those of the living; what was cut stays counted."""
    node, front = RequestStats(), RequestStats()
    front.show_connections(lambda: 5, cut=lambda: {"evicted": 2})
    cut: dict[str, int] = {}
    for _ in range(2):  # processes, one after the other
        stats = ProcessStats(node, cut)
        for _ in range(2):  # reports
            stats.take_totals(encode_totals(front, streams=0))
        assert stats.connections == 5
    assert cut == {"evicted": 4}
