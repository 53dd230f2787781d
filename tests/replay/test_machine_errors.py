"""Faults of the machine in an operator's words."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import apsw
import pytest

from cmdlog.api.connections.http_server import connections_allowed
from cmdlog.node.settings import BadSetting, Settings
from cmdlog.wal.errors import LimitReached
from replay.errors import Divergence
from replay.machine_errors import named_fault


@pytest.fixture
def few_files() -> Iterator[int]:
    """A limit of open files that leaves only some more; its value."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = len(os.listdir("/proc/self/fd")) + 4
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    yield soft
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_file_that_cannot_be_opened_for_want_of_descriptors_names_the_limit(tmp_path: Path, few_files: int) -> None:
    """Also where only the directory is known, which is no file that SQLite could open."""
    error = named_fault(apsw.CantOpenError("unable to open database file"), str(tmp_path))
    assert isinstance(error, LimitReached)
    assert f"RLIMIT_NOFILE (`ulimit -n`) is {few_files}" in str(error)


def test_a_server_with_too_few_files_says_how_many_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hint is the command that raises the limit, with a number that is enough."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    with pytest.raises(BadSetting, match="may open 64 files") as refused:
        connections_allowed(Settings())
    wanted, least = (int(word) for word in refused.value.hint.replace("`", " ").replace(",", " ").split() if word.isdigit())
    for enough in (wanted, least):
        monkeypatch.setattr(resource, "getrlimit", lambda _, n=enough: (n, n))
        assert connections_allowed(Settings()) > 0


def test_a_divergence_names_the_hash_seed_among_its_causes() -> None:
    """An embedding program without a pinned seed writes sets in another order than a replay."""
    assert "PYTHONHASHSEED" in Divergence.cause
