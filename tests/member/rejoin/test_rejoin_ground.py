"""What a node that is made again works with."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.cluster.cluster_file import BadClusterFile
from cmdlog.cluster.copying.copy_client import SourceLost
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from tests.member.members import SECRET, a_cluster
from tests.member.rejoin.copykit import FILES, LIFE, ground_of


def test_node_that_nobody_listens_for_is_lost() -> None:
    """By a real connection."""
    cluster = a_cluster(2)
    ground = RejoinGround(FILES, "/", MemberGround(cluster, 2, SECRET))
    with pytest.raises(SourceLost), ground.connect(LIFE, cluster.member(1)):
        pass


def test_node_is_reached_where_the_cluster_file_says(tmp_path: Path) -> None:
    """A node that the file does not list is refused by name."""
    ground = ground_of(tmp_path, a_cluster(2))
    assert ground.address == ground.member.cluster.member(2)
    stranger = replace(ground, member=replace(ground.member, node=7))
    with pytest.raises(BadClusterFile, match="node 7"):
        _ = stranger.address
