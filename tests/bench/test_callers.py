"""Callers that follow the leader: what they repeat, and what counts as time without an answer."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from bench._callers import Answers, callers
from tests.waiting import wait_for


def test_the_longest_gap_is_between_two_results() -> None:
    """Only gaps that end between the two moments count; a gap may begin before them."""
    answers = Answers([0.0, 5.0, 6.0, 8.5, 9.0], [(6.5, "refused"), (7.0, "lost"), (20.0, "lost")])
    assert answers.longest_gap_s(5.5, 9.0) == (2.5, 6.0)
    assert answers.longest_gap_s(4.0, 9.0) == (5.0, 0.0)
    assert answers.count_others(6.0, 9.0) == {"refused": 1, "lost": 1}


def test_nobody_answered_at_all_is_one_gap() -> None:
    """Without a result the whole time counts."""
    assert Answers([1.0]).longest_gap_s(2.0, 5.0) == (3.0, 2.0)


class _Node(http.server.BaseHTTPRequestHandler):
    """Refuses or answers; keeps the keys that it saw."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        server: Any = self.server
        server.keys.append(self.headers["Idempotency-Key"])
        self.send_response(server.status)
        self.send_header("Content-Length", str(len(server.body)))
        self.end_headers()
        self.wfile.write(server.body)

    def log_message(self, format: str, *_: Any) -> None:  # noqa: A002 - its name over there
        pass


@contextmanager
def a_node(status: int, body: bytes) -> Iterator[Any]:
    """A node that gives every call this answer; `keys` of the calls that came."""
    server: Any = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Node)
    server.keys, server.status, server.body, server.daemon_threads = [], status, body, True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_a_call_goes_to_the_next_node_under_the_same_key() -> None:
    """A refusal and an unknown outcome are counted, and repeated elsewhere under the same key until there is a result."""
    with (
        a_node(503, b'{"code":"not_ready"}') as first,
        a_node(504, b'{"code":"outcome_unknown"}') as second,
        a_node(200, b"{}") as third,
    ):
        ports = [server.server_address[1] for server in (first, second, third)]
        with callers(ports, [("transfer", {})], count=1) as seen:
            wait_for(lambda: len(third.keys) > 2)
    assert [kind for _, kind in seen.others] == ["refused", "unknown"]
    assert first.keys[0] == second.keys[0] == third.keys[0]
    assert len(set(third.keys)) == len(third.keys)
    assert len(seen.results_s) >= 2
