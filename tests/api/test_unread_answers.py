"""Answers that their clients do not read: the lowest role that reaches each kind stops nobody else, and memory stays bounded."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from cmdlog.api.gate.route_table import INVOKE, READ
from tests.api.running import OTHER, TOKENS, Running
from tests.waiting import ask_for

pytestmark = pytest.mark.slow

LONG = 7 << 20
UNREAD_BYTES_MAX = 64 << 20
SLACK_BYTES = 64 << 20  # buffers of connections that are not counted, frames of sites, and what the allocator keeps


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One for all."""
    running = Running(tmp_path_factory.mktemp("server"), app="tests.api.long_results:db")
    try:
        yield running
    finally:
        running.kill()


@contextlib.contextmanager
def unread(server: Running, count: int, path: str, body: bytes, token: str, *, stated_bytes: int = 0) -> Iterator[None]:
    """So many connections that ask and do not read; their bodies are shorter than they state, if they state a length."""
    host, port = server.url.removeprefix("http://").split(":")
    size = stated_bytes or len(body)
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\nContent-Length: {size}\r\n\r\n"
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            client = stack.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((host, int(port)))
            client.settimeout(0.05 if stated_bytes else None)
            with contextlib.suppress(TimeoutError):  # the server does not take all of it
                client.sendall(head.encode() + body)
        yield


def held_bytes(server: Running, of: str = "answers") -> int:
    """What the node counts."""
    (found,) = re.findall(rf'^cmdlog_http_held_bytes{{of="{of}"}} (\S+)$', server.get("/metrics").text, re.MULTILINE)
    return int(float(found))


def all_given_back(server: Running) -> bool:
    """Whether nothing is held."""
    return held_bytes(server) == 0


LONG_QUERY = json.dumps({"sql": "SELECT replace(hex(zeroblob(2500000)), '00', char(1))", "partition": 0}).encode()
LONG_CALL = b'{"item": 2, "size": %d}' % LONG
LONG_LINE = b'{"procedure": "%b", "params": {"item": 1, "size": 65536}}\n'
READS, WRITES = LONG_LINE % b"read_long" * 4000, LONG_LINE % b"write_long" * 4000
CASES = {
    "queries": (14, "/v1/query", LONG_QUERY, READ, 1),
    "calls": (40, "/v1/procedures/read_long", LONG_CALL, READ, LONG),
    "a batch of reads": (1, "/v1/batch", READS, INVOKE, 1 << 20),
    "a batch of writes": (1, "/v1/batch", WRITES, INVOKE, 1 << 20),
    "batches": (8, "/v1/batch", WRITES, INVOKE, 1 << 20),
}


@pytest.mark.parametrize("kind", CASES)
def test_answers_that_nobody_reads_stop_nobody_else(server: Running, kind: str) -> None:
    """Others get answers of the same kind; what is held stays within the budget, and so does the memory."""
    count, path, body, role, least = CASES[kind]
    ask_for(lambda: all_given_back(server))
    before = server.rss_bytes()
    with unread(server, count, path, body, TOKENS[role]):
        ask_for(lambda: held_bytes(server) >= least)
        for _ in range(3):
            assert len(server.post("/v1/query", content=LONG_QUERY).content) > 15_000_000
            assert len(server.post("/v1/procedures/read_long", content=LONG_CALL).content) > LONG
            assert (
                server.post("/v1/batch", content=WRITES[: 100 * len(WRITES) // 4000], token=OTHER).text.count('"result"') == 100
            )
            assert held_bytes(server) <= UNREAD_BYTES_MAX
            assert server.rss_bytes() - before < UNREAD_BYTES_MAX + SLACK_BYTES
    ask_for(lambda: all_given_back(server))


LATE_BYTES = 1 << 20
LATE = {
    "queries": ("/v1/query", b'{"sql": "', READ),
    "calls": ("/v1/procedures/read_long", b'{"item": ', READ),
    "lines": ("/v1/batch", b'{"procedure": "', INVOKE),
}


@pytest.mark.parametrize("kind", LATE)
def test_bodies_that_stay_incomplete_take_bounded_memory(server: Running, kind: str) -> None:
    """And others have their long bodies read."""
    path, beginning, role = LATE[kind]
    before = server.rss_bytes()
    body = beginning + b" " * (LATE_BYTES - 1000)
    with unread(server, 200, path, body, TOKENS[role], stated_bytes=LATE_BYTES - 1):
        for _ in range(3):
            padding = b" " * (LATE_BYTES // 2)
            assert server.post("/v1/query", content=b'{"sql": "SELECT 1", "partition": 0}' + padding).json()["rows"] == [[1]]
            assert server.post("/v1/batch", content=padding + WRITES[:100], token=OTHER).status_code == 200
            assert server.rss_bytes() - before < UNREAD_BYTES_MAX + SLACK_BYTES
        assert 0 < held_bytes(server, "bodies") <= UNREAD_BYTES_MAX
    ask_for(lambda: held_bytes(server, "bodies") == 0)


def test_problems_of_a_body_are_listed_up_to_a_limit(server: Running) -> None:
    """A body of a MiB can have 100,000, which would take a hundred times as much to answer."""
    answer = server.post("/v1/procedures/read_long", {f"x{number}": 1 for number in range(50_000)}, token=TOKENS[READ])
    assert answer.status_code == 422
    assert len(answer.content) < 8192
    assert "more problems" in answer.json()["problems"][-1]["problem"]


def refused_unrun(server: Running) -> Any:
    """The problem of a long call by the caller that does not read, when the call did not run; else None."""
    answer = server.post("/v1/procedures/read_long", content=LONG_CALL, token=TOKENS[READ])
    problem = None if answer.status_code == 200 else answer.json()
    return problem if problem and "safe to repeat" not in problem["detail"] else None  # which is said of a read that ran


def test_call_of_a_caller_that_does_not_read_is_refused_before_it_runs(server: Running) -> None:
    """Once its share is full; its small calls go on."""
    ask_for(lambda: all_given_back(server))
    with unread(server, 40, "/v1/procedures/read_long", LONG_CALL, TOKENS[READ]):
        ask_for(lambda: held_bytes(server) >= LONG)
        refused = ask_for(partial(refused_unrun, server))
        assert refused["code"] == "not_ready"
        assert "unread answers of this credential" in refused["detail"]
        small = server.post("/v1/query", {"sql": "SELECT 1", "partition": 0}, token=TOKENS[READ])
        assert small.json()["rows"] == [[1]]
