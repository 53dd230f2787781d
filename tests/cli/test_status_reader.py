"""Asking the nodes of a cluster: one URL is enough, each node is asked once; the way to the leader, and how a command asks."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster import status_reader
from cmdlog.cli.cluster.status_reader import ClusterAccess, StatusReader, ask_first, urls_of
from cmdlog.cli.output import out
from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from tests.client.scripted import ScriptedServer, Step, http, problem
from tests.waiting import PATIENCE_S

NOBODY = "http://127.0.0.1:1"


def reader(*urls: str) -> StatusReader:
    """One that waits only for what is slow."""
    return ClusterAccess(urls, None, None, None, 0.0).reader(10.0)


def says(node: int, *members: tuple[int, str], cluster: dict[str, Any] | None = None) -> Step:
    """The status of this node, which names these members; `cluster`: what else it says of its cluster."""
    named = {"node": node, "state": "running", "groups": {}, "members": [{"node": n, "client": url} for n, url in members]}
    told: dict[str, Any] = {
        "cluster": {**named, **(cluster or {})},
        "partitions": {},
        "log": {"fill": 0.5, "blocks": 3},
        "ready": True,
        "sites": [],
    }
    return Step("body read", reply=http(200, json.dumps(told).encode()))


def test_one_url_finds_all_nodes_and_asks_each_once() -> None:
    """The other nodes are those that it names; a name for the same node asks it no second time."""
    with ScriptedServer([]) as one, ScriptedServer([]) as two:
        members = ((1, "http://another.name:7"), (2, two.url), (3, NOBODY))
        one._steps.append(says(1, *members))
        two._steps.append(says(2, *members))
        rows = reader(one.url).ask_all()
    assert [(row["node"], row["url"], row["state"]) for row in rows] == [
        (1, one.url, "running"), (2, two.url, "running"), (3, NOBODY, "unreachable"),
    ]  # fmt: skip
    assert rows[0]["log"] == {"fill": 0.5, "held_by": None, "error": None}
    assert "sites" not in rows[0]


def test_node_that_was_named_and_is_silent_has_its_number() -> None:
    """Other nodes know whose URL it is; a stranger's has none, and comes last."""
    with ScriptedServer([]) as one:
        one._steps.append(says(1, (1, one.url), (2, NOBODY)))
        rows = reader("http://127.0.0.1:2", NOBODY, one.url).ask_all()
    assert [(row["node"], row["url"]) for row in rows] == [(1, one.url), (2, NOBODY), (None, "http://127.0.0.1:2")]


def test_where_no_node_answers_in_time_each_is_asked_again() -> None:
    """A busy machine: the second question has all the time."""
    with ScriptedServer([Step("body read", end="stall"), says(1)]) as server:
        (row,) = ClusterAccess([server.url], None, None, None, PATIENCE_S).reader(0.2).ask_all()
    assert (row["node"], row["state"]) == (1, "running")


def test_node_that_recovers_is_bootstrapping() -> None:
    """It answers, and has no status yet; it is asked once and not waited for."""
    with ScriptedServer([Step("body read", reply=problem(503, "not_ready", "Retry-After: 60"))]) as server:
        (row,) = reader(server.url).ask_all()
    assert (row["state"], row["node"]) == ("bootstrapping", None)
    assert "not_ready" in row["error"]


def test_wrong_credential_is_an_error() -> None:
    """No row would say what to do."""
    with ScriptedServer([Step("body read", reply=problem(401, "unauthenticated"))]) as server, pytest.raises(CommandFailed) as no:
        reader(server.url).ask_all()
    assert "--token-file" in no.value.hint


def test_url_that_is_none_is_wrong_usage() -> None:
    """Before anybody is asked for long."""
    with pytest.raises(CommandFailed) as no:
        reader("ftp://h").ask_all()
    assert no.value.exit_code == 2


def test_certificates_are_read_first(tmp_path: Path) -> None:
    """A file that holds none is named once, not once per node."""
    (tmp_path / "ca").write_text("none")
    with pytest.raises(CommandFailed, match="cannot be read as certificates"):
        ClusterAccess([NOBODY], None, None, tmp_path / "ca", 10.0).reader(10.0)


def test_removed_node_is_known_by_its_number_and_not_asked() -> None:
    """It may be named by its URL; found by the members alone it is no row. A node that moved is where the newest version says."""
    with ScriptedServer([]) as one, ScriptedServer([]) as two, ScriptedServer([]) as moved:
        gone = {"node": 3, "client": NOBODY, "state": "removed"}
        new = [{"node": 1, "client": one.url}, {"node": 2, "client": two.url}, gone, {"node": 4, "client": moved.url}]
        old = [{"node": 1, "client": one.url}, {"node": 2, "client": two.url}, {"node": 4, "client": NOBODY}]
        one._steps.append(says(1, cluster={"members": new, "version": 9}))
        two._steps.append(says(2, cluster={"members": old, "version": 8}))
        moved._steps.append(says(4))
        rows = reader(one.url, two.url).ask_all()
        assert [(row["node"], row["url"]) for row in rows] == [(1, one.url), (2, two.url), (4, moved.url)]
        one._steps.append(says(1, cluster={"members": [new[0], gone]}))
        assert [row["node"] for row in reader(one.url, NOBODY).ask_all()] == [1, 3]


def test_cluster_file_may_be_older_than_the_cluster(tmp_path: Path) -> None:
    """A node that was added since is asked, the leader too; one that has moved is asked where it is, one that left not at all."""
    path = tmp_path / "cluster.json"
    with ScriptedServer([]) as one, ScriptedServer([]) as moved, ScriptedServer([]) as added:
        listed = tuple(
            MemberAddress(node, ("127.0.0.1", node), url)
            for node, url in ((1, one.url), (2, NOBODY), (3, "http://127.0.0.1:2"), (4, "http://127.0.0.1:3"))
        )
        ClusterFile(bytes(16), "bank", listed, {"partitions": 1}, "0" * 32).save(path)
        now = {1: one.url, 2: moved.url, 4: "http://127.0.0.1:3", 5: added.url}
        members = [{"node": node, "client": url} for node, url in now.items()]
        one._steps.append(says(1, cluster={"members": [*members, {"node": 3, "client": NOBODY, "state": "removed"}]}))
        moved._steps.append(says(2))
        added._steps.append(says(5))
        rows = ClusterAccess(None, path, None, None, 0.0).reader(10.0).ask_all()
    assert [(row["node"], row["url"]) for row in rows] == list(now.items())


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
    monkeypatch.setattr(status_reader, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(out, "json", True)
    with pytest.raises(CommandFailed, match="needs --yes"):
        ask_first("sure?", yes=False)
    ask_first("sure?", yes=True)


def test_question_comes_after_what_it_is_about(monkeypatch: pytest.MonkeyPatch) -> None:
    """And a no ends the command."""
    seen: list[str] = []
    monkeypatch.setattr(status_reader, "sys", SimpleNamespace(stdin=SimpleNamespace(isatty=lambda: True)))
    monkeypatch.setattr(typer, "confirm", lambda question, **_: seen.append(question))
    ask_first("sure?", yes=False, show=lambda: seen.append("plan"))
    assert seen == ["plan", "sure?"]
