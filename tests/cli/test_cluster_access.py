"""The way to the leader, and how a dangerous command asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster import cluster_access
from cmdlog.cli.cluster.cluster_access import ClusterAccess, ask_first, urls_of
from cmdlog.cli.output import out


def test_leader_is_asked_first_and_silent_nodes_last() -> None:
    """A client tries them in this order."""
    rows: list[dict[str, Any]] = [
        {"url": "a"}, {"url": "b", "groups": {}, "standing": "following"}, {"url": "c", "groups": {}, "standing": "leading"},
    ]  # fmt: skip
    assert urls_of(rows) == ["c", "b", "a"]


def test_urls_may_be_listed_with_commas(tmp_path: Path) -> None:
    """In one option, or in several."""
    reader = ClusterAccess(["http://a,http://b", "http://c"], None, None, None, 1.0).reader(1.0)
    assert reader._urls == ["http://a", "http://b", "http://c"]


def test_nobody_to_ask_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """With --json a person cannot be asked either; --yes says it before."""
    monkeypatch.setattr(cluster_access, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(out, "json", True)
    with pytest.raises(CommandFailed, match="needs --yes"):
        ask_first("sure?", yes=False)
    ask_first("sure?", yes=True)


def test_question_comes_after_what_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a no ends the command."""
    seen: list[str] = []
    monkeypatch.setattr(cluster_access, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(typer, "confirm", lambda question, **_: seen.append(question))
    ask_first("sure?", yes=False, show=lambda: seen.append("plan"))
    assert seen == ["plan", "sure?"]
