"""Migrations of a cluster: a rolling restart in which each node was asked to migrate, and one that was not."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from procedures.errors import MigrationNeeded
from procedures.storage.state import open_reader
from replay.state.trust import state_path
from tests.member.members import Members, ask_retried, members, number_of
from tests.member.test_member_code import level
from tests.node.apps import migrating
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
ROWS = 8


def rows_of(node: Node) -> list[Any]:
    """What its state files hold."""
    found: list[Any] = []
    for partition in range(node.settings.partitions):
        connection, _ = open_reader(state_path(node.directory, partition))
        with contextlib.closing(connection):
            columns = [str(name) for (name,) in connection.execute("SELECT name FROM pragma_table_info('people') ORDER BY cid")]
            found += [dict(zip(columns, row, strict=True)) for row in connection.execute("SELECT * FROM people ORDER BY id")]
    return sorted(found, key=lambda row: row["id"])


def put(made: Members, number: int) -> None:
    """One more row."""
    ask_retried(made.leader, "put", key=f"k{number}", id=number, name=f"n{number}-family")


def test_rolling_restart_migrates_once_on_every_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Followers first; when a node with the new code leads, all go through the change at one place; later rows follow."""
    with members(tmp_path, monkeypatch, count=3, app=migrating.first) as made:
        made.join_all()
        for number in range(ROWS):
            put(made, number)
        leader = number_of(made.leader())
        follower = next(number for number in made.nodes if number != leader)
        made.close(follower)
        with pytest.raises(MigrationNeeded, match="0001_split_name"):
            made.join(follower, app=migrating.second)
        made.settings = replace(made.settings, migrate=True)
        made.join(follower, app=migrating.second)
        for node in [number for number in (*made.nodes,) if number not in (leader, follower)] + [leader]:
            wait_for(lambda: level(made), why=made.told)
            made.close(node)
            made.join(node, app=migrating.second)
        put(made, ROWS)
        wait_for(lambda: level(made), why=made.told)
        states = [rows_of(node) for node in made.nodes.values()]
        assert states[0] == states[1] == states[2]
        assert [(row["given"], row["family"]) for row in states[0]][:2] == [("n0", "-family"), ("n1", "-family")]
        assert (states[0][-1]["given"], states[0][-1]["family"]) == (f"n{ROWS}-family", "")
