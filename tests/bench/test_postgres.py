"""PostgreSQL as a peer: the same transfers over its socket and over TCP."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from bench._postgres import postgres


@pytest.mark.slow
def test_both_ways_lead_to_the_server() -> None:
    """Two clients come over the loopback interface, the others over the socket, and each round has a rate."""
    with tempfile.TemporaryDirectory() as folder:  # pytest's own is closed to the account that the server runs as
        with postgres(Path(folder), seconds=1, seed=1) as run:
            if isinstance(run, str):
                pytest.skip(run)
            assert run(1, 0) > 0
            assert run(2, 0, way="TCP") > 0
        log = Path(folder, "postgres", "log").read_text()
    assert log.count("connection received: host=127.0.0.1") >= 2
    assert log.count("connection received: host=[local]") >= 2


def test_without_its_tools_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without PostgreSQL has the other figures."""
    monkeypatch.setattr("bench._postgres.TOOLS", ("no-such-tool",))
    with postgres(tmp_path, seconds=1, seed=1) as run:
        assert run == "no-such-tool not installed: apt-get install postgresql"
