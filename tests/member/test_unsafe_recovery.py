"""A majority is lost for good: one survivor becomes the only voter, and the cluster has another name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cmdlog.cli.cluster.unsafe_recover import survivor_of
from cmdlog.cluster.membership.operator_desk import RecoveryDesk
from cmdlog.member.lost_majority.unsafe_recovery import UnsafeRecovery, UnsafeRecoveryRefused
from cmdlog.node.node import Node
from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.wal.format.cluster_record import MemberStage
from cmdlog.wal.ids import CLUSTER_GROUP
from tests.member.members import Members, ask_retried, leads, member_of, members, number_of, status_of
from tests.node.rig import counters
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets


def last_one(cluster: Members) -> Node:
    """A follower of three that is left alone, once it hears from no leader."""
    cluster.join_all()
    ask_retried(cluster.leader, "bump", key="before", id=1, amount=5)
    survivor = cluster.followers()[0]
    for node in [number for number in cluster.nodes if number != number_of(survivor)]:
        cluster.close(node)
    cluster.wait_hurried(lambda: all(group["leader"] is None for group in status_of(survivor)["groups"].values()))
    return survivor


def recovery_of(node: Node) -> RecoveryDesk:
    """What an operator may ask of it."""
    desk = node.overview.operator_desk
    assert desk is not None
    return desk.recovery


def refused(node: Node, **asked: Any) -> str:
    """The code of the refusal."""
    with pytest.raises(UnsafeRecoveryRefused) as said:
        recovery_of(node).become_sole_voter(**{"yes_lose": True, **asked})
    return said.value.code


def test_the_last_survivor_takes_calls_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It needs nobody from then on, keeps what it held, and says so again after a restart; the request is repeated safely."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        survivor = last_one(cluster)
        number = number_of(survivor)
        assert refused(survivor, yes_lose=False) == "not_confirmed"
        done = recovery_of(survivor).become_sole_voter(yes_lose=True)
        assert not done["already"]
        assert done["epoch"]
        assert set(done["lost"]) == {1, 2, 3} - {number}
        cluster.wait_hurried(lambda: leads(survivor))
        assert ask_retried(lambda: survivor, "bump", key="after", id=1, amount=1) is not None
        wait_for(lambda: member_of(survivor).consensus.roll.stated[number].forced)
        for other in done["lost"]:
            stated = member_of(survivor).consensus.roll.stated[other]
            assert (stated.stage, stated.incarnation, len(stated.former)) == (MemberStage.EXPECTED, b"", 1)
        again = recovery_of(survivor).become_sole_voter(yes_lose=True)
        assert (again["already"], again["epoch"]) == (True, done["epoch"])
        cluster.close(number)
        survivor = cluster.join(number)
        cluster.wait_hurried(lambda: leads(survivor))
        assert member_of(survivor).consensus.network.name.current != cluster.cluster.cluster_id
        assert recovery_of(survivor).become_sole_voter(yes_lose=True)["epoch"] == done["epoch"]
        assert counters(survivor) == {1: 6}


def test_it_is_refused_while_a_leader_is_heard_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader itself refuses too: its majority is alive."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        leader = cluster.join_all()
        assert {refused(node, force=force) for node in (leader, *cluster.followers()) for force in (False, True)} == {
            "leader_alive"
        }


@pytest.mark.parametrize(("node", "voters", "forced"), [(3, (3,), [0]), (1, (3,), []), (3, (1, 3), [])])
def test_only_the_survivor_completes_its_recovery(node: int, voters: tuple[int, ...], forced: list[int]) -> None:
    """Another node that was copied since then may hold a snapshot from before it: that is no crash between the groups."""
    before = Configuration(voters=(NodeId(1), NodeId(2), NodeId(3)))
    after = Configuration(voters=tuple(map(NodeId, voters)), forced=True, epoch=77)
    asked: list[int] = []
    groups = SimpleNamespace(
        cores={0: held_group(node, 4, before), 1022: held_group(node, 1 << 20, after)}, ask=lambda group, _: asked.append(group)
    )
    driver: Any = SimpleNamespace(ask_groups=lambda request: request(groups))
    UnsafeRecovery(node, driver, SimpleNamespace()).resume()  # type: ignore[arg-type]
    assert asked == forced


def held_group(node: int, term: int, configuration: Configuration) -> SimpleNamespace:
    """A group of a node, as its log ends."""
    log = SimpleNamespace(configurations=[(1, configuration)], term_at=lambda _: term)
    return SimpleNamespace(id=node, log=log, configuration=configuration)


def test_members_of_before_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two that come back have a majority of the old cluster; neither side takes anything from the other any more."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        survivor = last_one(cluster)
        recovery_of(survivor).become_sole_voter(yes_lose=True)
        cluster.wait_hurried(lambda: leads(survivor))
        others = [cluster.join(node) for node in cluster.cluster.nodes if node != number_of(survivor)]
        cluster.wait_hurried(lambda: any(leads(node) for node in others))
        wait_for(lambda: member_of(survivor).consensus.network.status().faults.get("cluster", 0) > 1)
        assert leads(survivor)
        ends = [status_of(node)["groups"][str(CLUSTER_GROUP)] for node in (survivor, *others)]
        assert ends[0]["term"] > 1 << 20 > max(end["term"] for end in ends[1:])


def test_the_lesser_survivor_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What another survivor holds beyond this one would be lost; an operator can say so."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        survivor = last_one(cluster)
        mine = survivor_of(status_of(survivor))["ends"]
        better = {"node": 9, "ends": {**mine, "0": [mine["0"][0], mine["0"][1] + 1]}}
        assert refused(survivor, survivors=[better]) == "lesser_survivor"
        assert refused(survivor, survivors=[{"node": 9}]) == "bad_survivor"
        assert refused(survivor, survivors=[{"node": 9, "ends": mine}], yes_lose=False) == "not_confirmed"
        recovery_of(survivor).become_sole_voter(yes_lose=True, survivors=[better], force=True)
        cluster.wait_hurried(lambda: leads(survivor))


def test_a_crash_between_the_groups_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only some groups were forced when the machine lost power: the start forces the others, under the same epoch."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        survivor = last_one(cluster)
        number = number_of(survivor)
        member_of(survivor).consensus.driver.ask(0, lambda core: core.force_recovery(epoch=77))
        cluster.wait_hurried(lambda: status_of(survivor)["groups"]["0"]["leader"] == number)
        cluster.close(number)
        survivor = cluster.join(number)
        cluster.wait_hurried(lambda: leads(survivor))
        assert recovery_of(survivor).become_sole_voter(yes_lose=True)["epoch"] == 77


def test_the_others_come_back_by_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With emptied disks they are new lives, copy what the survivor has, and vote again under the cluster's new name."""
    with members(tmp_path, monkeypatch, count=3) as cluster:
        survivor = last_one(cluster)
        lost = recovery_of(survivor).become_sole_voter(yes_lose=True)["lost"]
        cluster.wait_hurried(lambda: leads(survivor))
        for node in lost:
            (tmp_path / f"n{node}").rename(tmp_path / f"old{node}")
            cluster.join(node)
        wait_for(
            lambda: {row["seat"] for row in member_of(survivor).membership.members()["members"]} == {"voter"}, why=cluster.told
        )
        ask_retried(cluster.leader, "bump", key="again", id=1, amount=1)
        names = {member_of(node).consensus.network.name.current for node in cluster.nodes.values()}
        assert len(names) == 1
        assert cluster.cluster.cluster_id not in names
        assert counters(cluster.leader()) == {1: 6}
