"""The roll of a cluster: which life of each node's disk belongs to it, and where the node is reached, as the log states it.

One rule: the leader states what the log lacks, once it takes calls. What it states was pinned before anybody voted
(`cmdlog.cluster.transport.peer_book`), so the log only repeats it, for those who read a directory.
"""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from cmdlog.cluster.cluster_file import ClusterFile
from cmdlog.wal.format.control_record import ClusterMember
from cmdlog.wal.format.record import RecordKind, decode_record, peek_record
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP

log = structlog.get_logger("cmdlog.cluster")


class MemberRoll:
    """Under the driver's lock."""

    def __init__(self, states: GroupStates, cluster: ClusterFile) -> None:
        """`states`: what the log says at the start."""
        self._cluster = cluster
        stated = states.state(CLUSTER_GROUP).members.values()
        self._stated = {member.node: member for member in (ClusterMember.from_json(of.value) for of in stated)}

    def observe(self, index: int, record: bytes) -> None:
        """An entry of the cluster group is committed."""
        kind = peek_record(record).kind
        log.info("cluster_entry", index=index, kind=kind.name)
        if kind is RecordKind.MEMBER:
            member = ClusterMember.from_record(decode_record(record))
            self._stated[member.node] = member

    def missing_members(self, incarnations: Mapping[int, bytes]) -> list[ClusterMember]:
        """What the log does not state yet of the nodes whose incarnations are known, ascending."""
        wanted = [
            ClusterMember(of.node, incarnations[of.node], f"{of.peer[0]}:{of.peer[1]}", of.client)
            for of in self._cluster.members
            if of.node in incarnations
        ]
        return [member for member in wanted if self._stated.get(member.node) != member]
