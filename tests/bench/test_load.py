"""The load generators: what they count, and from when."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench._load import Sample, Target, complete, request, run_closed, run_load
from bench._open import drive, run_open
from bench._wrk import Client, run_wrk

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n"
STALL_S = 0.4


class _Server:
    """Answers requests of one packet each; that with the number `stall_at` waits, and all connections with it."""

    def __init__(self, answer: bytes, stall_at: int) -> None:
        self._answer, self._stall_at = answer, stall_at
        self._seen = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):  # wrk resets what it does not need any more
            while connection.recv(1 << 16):
                with self._lock:
                    self._seen += 1
                    if self._seen == self._stall_at:
                        time.sleep(STALL_S)
                connection.sendall(self._answer)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def serving(answer: bytes = ANSWER, *, stall_at: int = 0) -> Iterator[Target]:
    """A server and the request for it."""
    server = _Server(answer, stall_at)
    try:
        yield Target(server.port, [request("POST", "/", b"{}")])
    finally:
        server.close()


@pytest.mark.torture  # a busy machine makes others wait as well
def test_open_loop_counts_the_waiting_that_a_client_in_a_closed_loop_never_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the server stands still requests keep coming due, with or without a free connection; a client that waits sees one."""
    monkeypatch.setattr("bench._open.CONNECTIONS", 4)
    with serving(stall_at=100) as target:
        opened = drive(target, per_second=200.0, seconds=2.0, seed=1)["latencies"]
    with serving(stall_at=100) as target:
        closed = run_load(target, connections=1, count=400)["latencies"]
    assert len(opened) == pytest.approx(400, rel=0.3)
    assert sum(latency > STALL_S / 2 for latency in closed) == 1
    assert sum(latency > STALL_S / 2 for latency in opened) >= 20  # 40 or so come due in the first half of the stall


def run_open_loop(target: Target, _connections: int, seconds: float) -> Sample:
    """The open loop in the form of the others."""
    return run_open(target, per_second=200.0, seconds=seconds, seed=1)


CLIENTS = pytest.mark.parametrize(
    "client",
    [
        pytest.param(run_closed, id="python"),
        pytest.param(run_wrk, id="wrk", marks=pytest.mark.skipif(shutil.which("wrk") is None, reason="wrk is not installed")),
        pytest.param(run_open_loop, id="open"),
    ],
)


@pytest.mark.slow
@CLIENTS
def test_client_reports_rate_latency_and_its_own_cpu_time(client: Client) -> None:
    """Every client fills the time with requests and tells the same figures."""
    with serving() as target:
        sample = client(target, 2, 1.0)
    assert 0 < sample.per_second <= sample.count * 1.1  # a second, or somewhat more
    assert 0 < sample.p50_s <= sample.p99_s <= sample.p999_s
    assert 0 < sample.mean_s <= sample.p999_s
    assert sample.client_cpu_s > 0


@pytest.mark.slow
@CLIENTS
def test_refused_requests_are_no_throughput(client: Client) -> None:
    """A server that refuses quickly must not look like one that is quick."""
    with serving(REFUSAL) as target, pytest.raises(RuntimeError, match="not all requests succeeded"):
        client(target, 1, 0.2)


@pytest.mark.parametrize("cut", range(len(ANSWER)))
def test_answer_is_complete_only_with_its_last_byte(cut: int) -> None:
    """No proper prefix of an answer counts as one."""
    assert not complete(ANSWER[:cut])
    assert complete(ANSWER)
