"""PostgreSQL as a peer: the same transfers over its socket and over TCP."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from bench._nodes import Accounts
from bench._postgres import postgres
from bench._windows import run_windows


@pytest.mark.slow
def test_all_ways_lead_to_the_server() -> None:
    """Two clients of pgbench come over TCP, the others over the socket; a window of calls in both directions keeps all money."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to the account that the server runs as
        accounts = Accounts(branches=2, customers=3, checking=1000)
        with postgres(Path(folder), seconds=1, seed=1, accounts=accounts) as server:
            if isinstance(server, str):
                pytest.skip(server)
            assert server(1, 0) > 0
            assert server(2, 0, way="TCP") > 0
            pairs = [[1, 0, 2, 1], [1, 2, 0, 1]]  # a deadlock, if they were locked as they come
            assert run_windows("postgres", server.port, pairs, clients=2, window=8, seconds=0.2)["calls"] > 8
            assert int(server.query("SELECT sum(savings + checking) FROM accounts")) == 2 * 3 * (1000 + 10_000)
        log = Path(folder, "postgres", "log").read_text()
    assert log.count("connection received: host=127.0.0.1") >= 2
    assert log.count("connection received: host=[local]") >= 2


def test_without_its_tools_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without PostgreSQL has the other figures."""
    monkeypatch.setattr("bench._postgres.TOOLS", ("no-such-tool",))
    with postgres(tmp_path, seconds=1, seed=1) as run:
        assert run == "no-such-tool not installed: apt-get install postgresql"
