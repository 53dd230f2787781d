"""Calls at any node of a cluster: forwarded to the node that leads, with the answers that it would give."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cmdlog.node.member.member_node import MemberNode
from tests.node.members import Members, ask_retried, members, number_of
from tests.node.rig import ask
from tests.waiting import wait_for

pytestmark = pytest.mark.slow  # sites and sockets


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Members]:
    """Three nodes that run. A test leaves them so."""
    with pytest.MonkeyPatch.context() as patch, members(tmp_path_factory.mktemp("three"), patch, count=3) as made:
        made.join_all()
        yield made


def follower(cluster: Members) -> MemberNode:
    """One that knows who leads."""
    leader = cluster.leader()
    node = cluster.followers()[0]
    wait_for(lambda: node.cluster_status()["leader"] == number_of(leader))
    wait_for(node._calls.elsewhere)
    return node


def test_follower_answers_calls_reads_and_calls_on_all(three: Members) -> None:
    """As the leader does."""
    ask_retried(three.leader, "bump", key="warm", id=1, amount=1)
    node = follower(three)
    assert ask(node, "bump", key="a", id=1, amount=2) == 3
    assert ask(node, "bump", key="a", id=1, amount=2) == 3, "a repeated key gets the first answer"
    assert ask(node, "peek", id=1) == 3
    assert ask(node, "set_rate", name="forwarded", value=3) == [0, 0]
    assert ask(three.leader(), "set_rate", name="forwarded", value=4) == [3, 3]
