"""A server whose HTTP is in two processes: what its clients see is what one process shows them."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from cmdlog.api.processes.process_set import make_order, read_order
from cmdlog.node.settings import Settings
from tests.api.running import CREDENTIALS, OTHER, TOKENS, Running, write_tokens
from tests.waiting import ASK_EVERY_S, PATIENCE_S, eventually

slow = pytest.mark.slow
GOOD = {"Authorization": f"Bearer {TOKENS['admin']}"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all tests of this file."""
    running = Running(tmp_path_factory.mktemp("server"), "--http-processes", "2", "--slow-call-ms", "0.001")
    yield running
    assert running.stop() == 0
    assert not [defect for defect in ("request_failed", "link_over", "Exception in") if defect in running.logged()]


def processes(server: Running) -> list[int]:
    """Those that speak HTTP."""
    pids: list[int] = server.get("/v1/status").json()["http_processes"]
    return pids


def ask_once(server: Running, method: str, path: str, **more: Any) -> httpx.Response:
    """A request on a connection of its own, which any process may have taken."""
    with httpx.Client(base_url=server.url) as client:
        return client.request(method, path, headers={**GOOD, **more.pop("headers", {})}, **more)


def counted(server: Running) -> dict[tuple[str, str], int]:
    """Requests by route and status, as a scrape shows them."""
    rows = re.findall(r'^cmdlog_http_requests_total\{route="(\w*)",status="(\d+)"\} ([0-9.]+)', server.get("/metrics").text, re.M)
    return {(route, status): int(float(count)) for route, status, count in rows}


def test_a_process_gets_the_settings_of_its_node() -> None:
    """As plain data and back, with its share of the connections."""
    given = Settings(http_processes=4, connections_max=10, call_bytes_max=5000)
    taken = read_order(json.loads(json.dumps(make_order(given))))
    assert taken.connections_max == 2
    assert (taken.call_bytes_max, taken.token_file, taken.http_processes) == (5000, None, 4)


@slow
def test_calls_are_answered_as_by_the_node(server: Running) -> None:
    """Results, aborts, errors with their place, refusals and reads, whichever process has the connection."""
    for item in range(1, 9):
        answer = ask_once(server, "POST", "/v1/procedures/put", json={"item": item, "name": f"n{item}"})
        assert answer.status_code == 200, answer.text
        assert answer.headers["cmdlog-txn"] == answer.json()["txn_id"]
        assert ask_once(server, "POST", "/v1/procedures/get", json={"item": item}).json()["result"] == f"n{item}"
    stopped = server.post("/v1/procedures/stop", {"item": 1, "message": "no more"})
    assert (stopped.status_code, stopped.json()["code"], stopped.json()["detail"]) == (409, "aborted", "no more")
    failed = server.post("/v1/procedures/fail", {"item": 1, "message": "oh"}).json()
    assert (failed["code"], failed["procedure"]) == ("procedure_failed", "fail")
    assert failed["file"].endswith("every_type.py")
    assert server.post("/v1/procedures/put", {"item": "x"}).status_code == 422
    assert server.post("/v1/procedures/nope", {}).json()["code"] == "unknown_procedure"
    ahead = server.post("/v1/procedures/get", {"item": 1}, headers=[("Cmdlog-Txn", str(2**62))])
    assert ahead.json()["problems"][0]["field"] == "Cmdlog-Txn"
    stale = server.post("/v1/procedures/get?consistency=stale", {"item": 1})
    assert "as_of" in stale.json(), "a read that may be old is the node's to answer"


@slow
def test_a_session_is_one_over_all_processes(server: Running) -> None:
    """Its state is the partition's: a retry that another process takes finds the outcome, a number below the floor is refused."""
    session = "01890a5d-ac96-774b-bcce-b302099a8057"

    def put(number: int, floor: int) -> httpx.Response:
        name = {"Cmdlog-Session": f"{session}; number={number}; floor={floor}"}
        return ask_once(server, "POST", "/v1/procedures/put", json={"item": 9, "name": str(number)}, headers=name)

    first = [put(number, 0).json() for number in (1, 2)]
    for _ in range(4):
        assert put(2, 0).json() == first[1]
    assert put(3, 2).status_code == 200
    assert server.call("get", item=9) == "3"


@slow
def test_other_routes_are_the_nodes(server: Running) -> None:
    """Status, queries, pages, descriptions, snapshots and what is not served, with the headers that the node gives."""
    assert server.get("/healthz").json() == {"alive": True}
    assert server.get("/readyz").json() == {"ready": True}
    assert "put" in {procedure["name"] for procedure in server.get("/v1/procedures").json()["procedures"]}
    found = server.post("/v1/query", {"sql": "select count(*) as n from items"})
    assert found.status_code == 200, found.text
    assert "/v1/procedures/put" in server.get("/openapi.json").json()["paths"]
    assert server.post("/v1/snapshots", content=b"").status_code == 200
    assert server.get("/nowhere", headers=[("X-Request-Id", "mine")]).headers["x-request-id"] == "mine"
    assert server.client.request("DELETE", "/v1/procedures/put", headers=GOOD).status_code == 405
    assert server.client.request("OPTIONS", "/v1/batch", headers=GOOD).headers["allow"] == "OPTIONS, POST"
    page = server.client.get("/", headers={"Accept": "text/html"})
    assert (page.status_code, page.headers["content-type"].partition(";")[0]) == (401, "text/html")
    large = server.post("/v1/query", {"sql": "x" * (2 << 20)})
    assert large.status_code == 413


@slow
def test_events_stream_until_their_viewer_leaves(server: Running) -> None:
    """Its place is free again then."""
    for _ in range(20):  # more than there may be at a time
        with server.client.stream("GET", "/v1/events", headers=GOOD) as answer:
            assert answer.status_code == 200, answer.read()
            assert next(answer.iter_lines()).startswith("data: ")


@slow
def test_every_request_is_counted_once(server: Running) -> None:
    """Over both processes and the node, as soon as it was answered."""
    before = counted(server)
    for item in range(20):
        ask_once(server, "POST", "/v1/procedures/get", json={"item": item})
        ask_once(server, "GET", "/v1/procedures")
    ask_once(server, "POST", "/v1/procedures/put", json={})
    after = counted(server)
    new = {where: count - before.get(where, 0) for where, count in after.items() if count != before.get(where, 0)}
    assert new == {("call", "200"): 20, ("procedures", "200"): 20, ("call", "422"): 1, ("metrics", "200"): 1}
    errors = {(error["code"], error["procedure"]) for error in server.get("/v1/status").json()["errors"]}
    assert ("invalid_parameters", "put") in errors


@slow
def test_slow_calls_are_logged_with_their_stages(server: Running) -> None:
    """The process knows how long a call took, the node where."""
    server.call("put", item=5, name="slow")

    def logged() -> bool:
        lines = [json.loads(line) for line in server.logged().splitlines() if line.startswith("{")]
        return any(line["event"] == "slow_call" and line["procedure"] == "put" and "log_ms" in line for line in lines)

    assert eventually(logged, every_s=ASK_EVERY_S)


@slow
def test_a_process_that_is_killed_loses_no_call(server: Running) -> None:
    """Its connections end; a retry under the key finds the outcome; it is started again, and connections were never refused."""
    first = ask_once(server, "POST", "/v1/procedures/put", json={"item": 7, "name": "kept"}, headers={"Idempotency-Key": "once"})
    killed = processes(server)
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    host, port = server.url.removeprefix("http://").split(":")
    waiting = socket.create_connection((host, int(port)), timeout=PATIENCE_S)
    with waiting:
        request = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\nAuthorization: {GOOD['Authorization']}\r\n\r\n"
        waiting.sendall(request.encode())
        assert waiting.recv(4096).startswith(b"HTTP/1.1 200"), "it waited for a process"
    server.client.close()
    server.client = httpx.Client(base_url=server.url)
    again = ask_once(server, "POST", "/v1/procedures/put", json={"item": 7, "name": "kept"}, headers={"Idempotency-Key": "once"})
    assert again.json() == first.json()
    assert eventually(lambda: len(set(processes(server)) - set(killed)) == 2, every_s=ASK_EVERY_S)
    assert "http_process_ended" in server.logged()


@slow
def test_a_credential_that_is_removed_ends_in_every_process(server: Running) -> None:
    """Each looks at the file for itself."""
    tokens = server.folder / "tokens"
    whole = tokens.read_text()
    write_tokens(server.folder, *(one for one in CREDENTIALS if one.name != "other"))
    try:

        def refused() -> bool:
            answers = [
                httpx.post(
                    server.url + "/v1/procedures/put", json={"item": 1, "name": "x"}, headers={"Authorization": f"Bearer {OTHER}"}
                ) for _ in range(10)
            ]  # fmt: skip
            return all(answer.status_code == 401 for answer in answers)

        assert eventually(refused, every_s=ASK_EVERY_S)
    finally:
        tokens.write_text(whole)
