"""Clients with a window of calls: how many they leave unanswered, what they count, and how contention is drawn."""

from __future__ import annotations

import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench._nodes import Accounts
from bench._windows import run_windows
from bench.contention import draw

WINDOW = 5
CALLS = [[0, 1, 2, 3]]


class _Server:
    """One connection: answers a line a time, in pieces that end anywhere, while it sees how many are unanswered."""

    def __init__(self, answer: bytes) -> None:
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.most = self.answered = 0
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        lines = 0
        with self._listener, connection:
            while data := connection.recv(1 << 16):
                lines += data.count(b'"transfer"')
                self.most = max(self.most, lines - self.answered)
                while self.answered < lines:
                    self.answered += 1
                    connection.sendall(self._answer[:-1])
                    connection.sendall(self._answer[-1:])


@contextmanager
def serving(answer: bytes) -> Iterator[_Server]:
    """A server that has seen all when the block ends."""
    server = _Server(answer)
    try:
        yield server
    finally:
        server.thread.join()


@pytest.mark.slow
def test_a_client_keeps_its_window_full_and_counts_each_answer_once() -> None:
    """Wherever the answers are cut, the count is the server's, and never more calls than the window are unanswered."""
    with serving(b'{"result":1}\n') as server:
        found = run_windows("cmdlog", server.port, CALLS, clients=1, window=WINDOW, seconds=0.2)
    assert found["calls"] == server.answered > WINDOW
    assert server.most == WINDOW


@pytest.mark.slow
def test_a_refused_call_is_no_throughput() -> None:
    """A server that refuses quickly must not look like one that is quick."""
    with serving(b'{"error":{}}\n') as server, pytest.raises(subprocess.CalledProcessError):
        run_windows("cmdlog", server.port, CALLS, clients=1, window=WINDOW, seconds=0.2)


def test_accounts_are_drawn_by_the_power_law_and_a_pair_is_never_one_account() -> None:
    """Shares are those of 1 / rank ** alpha: the first of 1,000 accounts has 0.39 of the sources at 1.5, and 0.001 at 0."""
    accounts = Accounts(branches=1, customers=1000, checking=0)
    for alpha, share in ((0.0, 0.001), (1.5, 0.39)):
        calls = draw(alpha, accounts, seed=1)
        sources = Counter(source for _branch, source, _target, _amount in calls)
        assert sources[0] / len(calls) == pytest.approx(share, abs=0.01)
        assert all(source != target for _branch, source, target, _amount in calls)
        numbers = {number for _branch, source, target, _amount in calls for number in (source, target)}
        assert numbers <= set(range(accounts.customers))
