"""Code and additions are deployed through the node that leads a cluster, and every node follows."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.node.deploying.deploy_errors import DeployNeedsMigration, SwitchUnfinished
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallRefused
from procedures.bundle import Bundle
from tests.member.members import Members, ask_retried, members, number_of
from tests.node.deployed import MIGRATION, RENAMED, make_version
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes of the first version."""
    with members(tmp_path, monkeypatch, count=3, app=make_version(tmp_path, 1)[0]) as made:
        made.join_all()
        assert ask_retried(made.leader, "hit", key="first", id=1) == 1
        yield made


def follows(node: Node, version: int) -> bool:
    """Whether calls of this node are bound to the version."""
    return node.status()["catalog_version"] == version and all(route.catalog == version for route in node.routes.values())


def deployed(cluster: Members, bundle: Bundle) -> int:
    """The version that the bundle gets, from the node that leads: that may change meanwhile, and asking again is safe."""
    versions: list[int] = []

    def attempt() -> bool:
        with contextlib.suppress(CallRefused, SwitchUnfinished):
            versions.append(cluster.leader().deployer.deploy(bundle)["version"])
        return bool(versions)

    wait_for(attempt, why=cluster.told)
    return versions[0]


def test_every_node_follows_what_the_leader_deploys(three: Members, tmp_path: Path) -> None:
    """Also a new leader, a node that restarts with its older program, and a second deploy; a follower refuses to deploy."""
    bundle = make_version(tmp_path, 2, columns=', Column("note", Text, server_default="none")')[1]
    with pytest.raises(CallRefused):
        three.followers()[0].deployer.deploy(bundle)
    assert deployed(three, bundle) == 2
    assert ask_retried(three.leader, "hit", key="second", id=1) == 2
    wait_for(lambda: all(follows(node, 2) for node in three.nodes.values()), why=three.told)
    former = number_of(three.leader())
    three.close(former)
    assert ask_retried(three.leader, "only_in_2", key="third", id=1) == 2
    three.join(former, app=make_version(tmp_path, 1)[0])
    wait_for(lambda: follows(three.nodes[former], 2), why=three.told)
    third = make_version(tmp_path, 3, columns=', Column("note", Text, server_default="none")')[1]
    assert deployed(three, third) == 3
    assert ask_retried(three.leader, "hit", key="fourth", id=1) == 3
    wait_for(lambda: all(follows(node, 3) for node in three.nodes.values()), why=three.told)


def test_a_cluster_refuses_to_pause(three: Members, tmp_path: Path) -> None:
    """A migration is refused, whether asked for or not; the way to make it is named, also by a plan; and no node changes."""
    deployer, bundle = three.leader().deployer, make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1]
    for migrate in (False, True):
        with pytest.raises(DeployNeedsMigration) as refused:
            deployer.deploy(bundle, migrate=migrate)
        assert "serve --migrate" in refused.value.hint
    assert "serve --migrate" in deployer.deploy(bundle, plan=True)["instead"]
    assert ask_retried(three.leader, "hit", key="second", id=1) == 1
    assert all(follows(node, 1) for node in three.nodes.values())
