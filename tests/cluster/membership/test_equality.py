"""Directories of a cluster whose disks were replaced: recovery gives what was acknowledged, or says 17."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cmdlog.member.member_node import MemberNode
from cmdlog.node.assembly import MACHINE
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.plan.cluster_plan import JointPlan
from replay.plan.cluster_planner import make_joint_plan
from replay.recover.from_cluster import rebuild_jointly
from replay.state.trust import state_path
from snapshot.table_digest import open_image
from tests.member.members import Members, ask_retried, members, number_of
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets

FILES = MACHINE.files


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes that run."""
    with members(tmp_path, monkeypatch, count=3) as made:
        made.join_all()
        yield made


def bump_all(cluster: Members, first: int, last: int) -> None:
    """Acknowledged calls, one for each number."""
    for number in range(first, last):
        ask_retried(cluster.leader, "bump", key=f"k{number}", id=number % 16, amount=1)


def replace_disk(cluster: Members, node: int, to: str) -> None:
    """The node's directory is put aside under that name, and it comes back by copy with an empty one."""
    cluster.close(node)
    (cluster.folder / f"n{node}").rename(cluster.folder / to)
    cluster.leader().membership.request("replace", node)
    cluster.join(node)
    for one in cluster.nodes.values():  # also those that hear of it from the leader
        wait_for(partial(knows_members_alone, one), why=cluster.told)


def knows_members_alone(one: MemberNode) -> bool:
    """Whether the change is over, as far as this node has heard."""
    return {row["state"] for row in one.membership.members()["members"]} == {"member"}


def planned(cluster: Members, *names: str) -> JointPlan:
    """What these directories say."""
    return make_joint_plan(FILES, [str(cluster.folder / name) for name in names])


def total(cluster: Members, plan: JointPlan, out: str) -> int:
    """How often a counter was bumped, in what the plan makes."""
    target = str(cluster.folder / out)
    rebuild_jointly(plan, FILES, target, workers=0)
    found = 0
    for partition in range(2):
        connection = open_image(state_path(target, partition))
        ((sums,),) = connection.execute("SELECT coalesce(sum(n), 0) FROM counters")
        connection.close()
        found += int(sums)
    return found


def test_a_replaced_disk_counts_by_its_new_life_alone(three: Members) -> None:
    """The old directory beside one that lags would be a majority; each pair with the new one gives everything."""
    bump_all(three, 0, 10)
    node = number_of(three.followers()[0])
    replace_disk(three, node, "old")
    bump_all(three, 10, 30)
    others = [f"n{number}" for number in three.cluster.nodes if number != node]
    three.close_all()
    for other in others:
        plan = planned(three, "old", other)
        assert any("is over" in why and "old does not count" in why for why in plan.incomplete), plan.incomplete
        assert not planned(three, f"n{node}", other).incomplete
        assert not planned(three, f"n{node}", other, "old").incomplete
    assert total(three, planned(three, f"n{node}", others[0]), "out1") == 30
    assert total(three, planned(three, f"n{node}", "old", *others), "out2") == 30
    assert not planned(three, *others).incomplete


def test_generations_of_disks_that_do_not_overlap(three: Members) -> None:
    """Every disk was replaced once: the old directories together are all that there was, and prove nothing."""
    for round_, node in enumerate(three.cluster.nodes):
        bump_all(three, 10 * round_, 10 * round_ + 10)
        replace_disk(three, node, f"old{node}")
    bump_all(three, 30, 40)
    three.close_all()
    old = [f"old{node}" for node in three.cluster.nodes]
    new = [f"n{node}" for node in three.cluster.nodes]
    assert planned(three, *old).incomplete
    for left_out in range(3):
        some = [name for number, name in enumerate(new) if number != left_out]
        assert not planned(three, *some, *old).incomplete
        assert planned(three, new[left_out], *old).incomplete
    assert total(three, planned(three, *new[1:], *old), "out") == 40
    verdict = {choice.group: choice.chosen for choice in planned(three, *old, *new).choices}
    assert Path(verdict[CLUSTER_GROUP]).name in new
