"""Real nodes of which one should not lead: a state that diverged, a site that stands still, a log without room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.node import Node
from cmdlog.wal.files import RealFiles
from replay.diff.diff import diff
from replay.diff.state_reader import open_sides
from tests.member.members import Members, ask_retried, leads, member_of, members, number_of, status_of
from tests.node.apps.drifting import db as drifting
from tests.node.rig import rows, send
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets

DRIFTS = "SELECT id, n FROM drifts ORDER BY id"


def drift(cluster: Members, *, odd: int) -> Node:
    """A call that does another thing where it is executed as number `odd`; the node that led."""
    leader = cluster.leader()
    folder = cluster.folder / f"drift{odd}"
    folder.mkdir()
    send(leader, "drift", id=1, folder=str(folder), odd=odd).wait()
    return leader


def diverged(node: Node) -> dict[str, Any]:
    """Partition -> entry that did something else."""
    return dict(status_of(node)["diverged"])


def test_leader_against_a_majority_gives_leadership_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The followers agree with each other: one of them leads, and the old leader says which call it was, and does not lead."""
    with members(tmp_path, monkeypatch, count=3, app=drifting) as made:
        made.join_all()
        old = drift(made, odd=0)
        made.wait_hurried(lambda: not leads(old) and diverged(old))
        new = made.leader(other_than=number_of(old))
        assert ask_retried(lambda: new, "put", key="after", id=2, n=7) == 7
        others = [node for node in made.nodes.values() if node is not old]
        wait_for(lambda: [diverged(node) for node in others] == [{}, {}], why=made.told)
        assert not old.ready
        assert {node.ready for node in others} == {True}
        told = old.troubles.by_partition()
        assert [trouble.kind for trouble in told.values()] == ["diverged"]
        assert all("calls of drift" in trouble.message and "cmdlog diff" in trouble.message for trouble in told.values())


def test_follower_that_diverged_is_never_asked_to_lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader stops in order: the other follower leads, at once."""
    with members(tmp_path, monkeypatch, count=3, app=drifting) as made:
        made.join_all()
        old = drift(made, odd=2)
        (bad,) = wait_for(lambda: [node for node in made.followers() if diverged(node)], why=made.told)
        (good,) = [node for node in made.followers() if node is not bad]
        ask_retried(made.leader, "put", key="then", id=2, n=7)
        wait_for(lambda: member_of(old).leading.transfer._fitness.of_peer(member_of(bad).consensus.node))
        made.close(number_of(old))
        assert made.leader() is good


def test_diff_of_two_members_names_what_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of the place where the one that diverged stopped; a replay would do it right, and find no difference."""
    with members(tmp_path, monkeypatch, count=3, app=drifting) as made:
        made.join_all()
        drift(made, odd=2)
        (bad,) = wait_for(lambda: [node for node in made.followers() if diverged(node)], why=made.told)
        ask_retried(made.leader, "put", key="then", id=4, n=7)  # of the same partition
        directories = [str(tmp_path / f"n{number_of(node)}") for node in (bad, made.leader())]
        with open_sides(RealFiles(), *directories) as sides:
            (table,) = diff(*sides, limit=9).tables
        assert [(change.kind, change.old, change.new) for change in table.examples] == [("changed", (1, 1), (1, 0))]


def test_rows_are_equal_after_leaders_that_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two that agree hold the same, and go on; what the third one did stays there, for a comparison."""
    with members(tmp_path, monkeypatch, count=3, app=drifting) as made:
        made.join_all()
        old = drift(made, odd=0)
        new = made.leader(other_than=number_of(old))
        for number in range(5):
            ask_retried(lambda: new, "put", key=f"p{number}", id=10 + number, n=number)
        partition = new.slots.partition_of(new.routes["put"].procedure, [1, 0])

        def held(node: Node) -> list[tuple[Any, ...]]:
            return rows(made.folder / f"n{number_of(node)}", partition, DRIFTS)

        others = [node for node in made.nodes.values() if node is not old]
        wait_for(lambda: held(others[0]) == held(others[1]) and held(new)[-1][0] >= 10)
        assert held(new)[0] == (1, 0)
        assert held(old) == [(1, 1)]
