"""Real nodes of which one should not lead: a state that diverged, a site that stands still, a log without room."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.leader_fitness import Unfitness
from cmdlog.member.leading import leadership_transfer
from cmdlog.member.leading.leadership_transfer import PAUSE_TICKS
from cmdlog.member.member_node import MemberNode
from cmdlog.node.outcome import NotReady
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.files import RealFiles
from replay.diff.diff import diff
from replay.diff.state_reader import open_sides
from tests.member.members import Members, ask_retried, leads, members, number_of
from tests.node.apps.drifting import db as drifting
from tests.node.rig import rows, send
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets

DRIFTS = "SELECT id, n FROM drifts ORDER BY id"


def drift(cluster: Members, *, odd: int) -> MemberNode:
    """A call that does another thing where it is executed as number `odd`; the node that led."""
    leader = cluster.leader()
    folder = cluster.folder / f"drift{odd}"
    folder.mkdir()
    send(leader, "drift", id=1, folder=str(folder), odd=odd).wait()
    return leader


def diverged(node: MemberNode) -> dict[str, Any]:
    """Partition -> entry that did something else."""
    return dict(node.cluster_status()["diverged"])


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
        wait_for(lambda: old._leading.transfer._fitness.of_peer(bad._ground.node))  # type: ignore[arg-type]
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


def test_leader_whose_site_stands_still_gives_leadership_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process is stopped by a signal: calls go on at another node, long before the site is killed for it."""
    with members(tmp_path, monkeypatch, count=3, call_timeout_s=60.0) as made:
        made.join_all()
        old = made.leader()
        (pid,) = old._sites.pids()
        os.kill(pid, signal.SIGSTOP)
        try:
            waiting = send(old, "bump", id=1, amount=1)
            new = made.leader(other_than=number_of(old))
            assert ask_retried(lambda: new, "bump", key="k", id=2, amount=3) == 3
            assert "stuck" in old._leading.transfer._fitness.own.names
        finally:
            os.kill(pid, signal.SIGCONT)
        assert not isinstance(waiting.wait(), NotReady)
        wait_for(lambda: old._leading.transfer._fitness.own == 0, why=made.told)


def test_leader_without_room_gives_leadership_to_one_that_has_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls go on; when no node has room leadership stays where it is."""
    with members(tmp_path, monkeypatch, count=3) as made:
        made.join_all()
        old = made.leader()
        monkeypatch.setattr(old._leading.checks, "_is_full", lambda: True)
        new = made.leader(other_than=number_of(old))
        assert ask_retried(lambda: new, "bump", key="k", id=2, amount=3) == 3
        for node in made.nodes.values():
            monkeypatch.setattr(node._leading.checks, "_is_full", lambda: True)
        known = [(node._leading.transfer._fitness, peer) for node in made.nodes.values() for peer in made.nodes]
        wait_for(
            lambda: all(Unfitness.LOG_FULL in fitness.of_peer(NodeId(peer)) for fitness, peer in known if peer != fitness.node)
        )
        offers: list[object] = []
        monkeypatch.setattr(leadership_transfer, "offer_groups", lambda _groups, target: offers.append(target))
        seen = [(node._leading.transfer, node._leading.transfer._ticks) for node in made.nodes.values()]
        wait_for(lambda: all(transfer._ticks > ticks + 2 * PAUSE_TICKS for transfer, ticks in seen))
        assert offers == []


def test_rows_are_equal_after_leaders_that_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The two that agree hold the same, and go on; what the third one did stays there, for a comparison."""
    with members(tmp_path, monkeypatch, count=3, app=drifting) as made:
        made.join_all()
        old = drift(made, odd=0)
        new = made.leader(other_than=number_of(old))
        for number in range(5):
            ask_retried(lambda: new, "put", key=f"p{number}", id=10 + number, n=number)
        partition = new.slots.partition_of(new.routes["put"].procedure, [1, 0])

        def held(node: MemberNode) -> list[tuple[Any, ...]]:
            return rows(made.folder / f"n{number_of(node)}", partition, DRIFTS)

        others = [node for node in made.nodes.values() if node is not old]
        wait_for(lambda: held(others[0]) == held(others[1]) and held(new)[-1][0] >= 10)
        assert held(new)[0] == (1, 0)
        assert held(old) == [(1, 1)]
