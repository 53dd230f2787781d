"""Queries that overlap for as long as calls come, and the write-ahead log of the state that they read."""

from __future__ import annotations

import functools
import os
import threading
from pathlib import Path

import pytest

from cmdlog.node.node import Node
from cmdlog.node.outcome import NotReady
from cmdlog.node.queries.query import QueryLimit, run_query
from replay.state.state_lock import is_shut
from replay.state.trust import state_path
from tests.node.apps.padded import db
from tests.node.rig import ask, open_node
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
BOUND = 1 << 20  # of the log
PAD = 100_000  # written by a call
LONG = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
TIMEOUT_S = 600.0  # of a query: the test ends them


class HeldQuery:
    """A query that stays on its frozen state until it is released; or waits to be let in."""

    def __init__(self, node: Node, path: str) -> None:
        self._node, self._path = node, path
        self._released, self.inside = threading.Event(), threading.Event()
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        run = functools.partial(run_query, cancelled=self._look)
        try:
            self._node.query_by(run, LONG, (), 0)
        except (QueryLimit, NotReady) as error:
            self.error = error

    def _look(self) -> bool:
        if not is_shut(self._path):
            self.inside.set()
        return self._released.is_set()

    def end(self) -> str:
        """Why it ended."""
        self._released.set()
        self._thread.join()
        return str(self.error)


@pytest.fixture(params=[True, False], ids=["embedded", "served"])
def node(request: pytest.FixtureRequest, tmp_path: Path) -> Node:
    """With a small bound for the log of a state."""
    return open_node(
        tmp_path, app=db, inline=request.param, partitions=1, wal_bytes_max=BOUND, query_timeout_s=TIMEOUT_S, call_timeout_s=30.0
    )


def log_bytes(path: str) -> int:
    """Size of the file."""
    return os.stat(f"{path}-wal").st_size


def test_log_is_emptied_though_there_is_always_a_query(node: Node) -> None:
    """Each query begins before the one before it ends: new ones wait while the log is long, and then see what was written."""
    path = state_path(node.directory, 0)
    query, longest, waited, ended = HeldQuery(node, path), 0, 0, []
    for _ in range(12):
        wait_for(query.inside.is_set)
        for _ in range(4):
            ask(node, "pad", id=1, size=PAD)
        longest = max(longest, log_bytes(path))
        following = HeldQuery(node, path)
        waited += is_shut(path)
        ended.append(query.end())
        query = following
    ended.append(query.end())
    assert set(ended) == {"the query was cancelled"}, "none because of the log's length"
    assert longest <= 1.5 * BOUND
    assert waited
    assert node.query("SELECT length(data) FROM pads").rows == [(PAD,)]
    node.close()


def test_room_of_a_log_comes_back_without_a_further_call(node: Node) -> None:
    """A site that has nothing to do looks for the end of the readers."""
    path = state_path(node.directory, 0)
    query = HeldQuery(node, path)
    wait_for(query.inside.is_set)
    while not is_shut(path):
        ask(node, "pad", id=1, size=PAD)
    assert log_bytes(path) > BOUND // 2
    query.end()
    wait_for(lambda: not is_shut(path))
    assert log_bytes(path) == 0
    node.close()
