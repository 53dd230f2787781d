"""What a member says of its cluster is plain data, also before it speaks with anybody."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.node.member.cluster_view import ClusterView
from cmdlog.node.member.leadership import Standing
from cmdlog.node.member.member_ground import MemberState


@pytest.mark.parametrize(
    ("leader", "speaks", "state"),
    [(None, True, MemberState.CONFIGURING), (2, False, MemberState.CONFIGURING), (2, True, MemberState.RUNNING)],
)
def test_state_needs_a_leader_and_a_voice(leader: int | None, speaks: bool, state: MemberState) -> None:
    """A node runs when it takes part and knows who leads."""
    members = (MemberAddress(1, ("127.0.0.1", 7000), "http://one"),)
    parts: dict[str, Any] = {
        "ground": SimpleNamespace(node=1, cluster=SimpleNamespace(members=members)),
        "driver": SimpleNamespace(views=lambda: {7: SimpleNamespace(term=3, leader=leader)}),
        "leadership": SimpleNamespace(leader=leader, standing=Standing.FOLLOWING),
        "marks": SimpleNamespace(divergences=lambda: {0: 41}),
    }
    view = ClusterView(**cast(Any, parts), too_far_back={7}, peers=tuple)
    assert view.member_state(speaks=speaks) is state
    assert view.status(speaks=speaks) == {
        "state": state.value, "node": 1, "standing": "following", "leader": leader,
        "members": [{"node": 1, "client": "http://one", "peer": "127.0.0.1:7000"}],
        "groups": {"7": {"term": 3, "leader": leader}}, "too_far_back": [7], "diverged": {"0": 41}, "peers": [],
    }  # fmt: skip
