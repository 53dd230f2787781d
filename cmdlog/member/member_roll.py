"""The roll of a cluster: who belongs to it, which life of each node's disk, and where the nodes are reached.

One rule: this is the only place that knows it while a node runs. The cluster file says who began the cluster; what is committed
in the log overrides it, but for the address of a node whose disk was never replaced: there the file at hand is the newer word,
since an operator may have edited it. Everybody else asks, and watches for changes.

The leader states what the log lacks of the first members, once it takes calls. What it states was pinned before anybody voted
(`cmdlog.cluster.transport.peer_book`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress, parse_address
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.format.record import RecordKind, decode_record, peek_record
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP

OF_MEMBERS: Final = frozenset({RecordKind.CONFIGURATION, RecordKind.MEMBER, RecordKind.FAULTS})

log = structlog.get_logger("cmdlog.cluster")


class MemberRoll:
    """Changed under the driver's lock; any thread may read, since what it gives is replaced as a whole."""

    def __init__(self, states: GroupStates, cluster: ClusterFile) -> None:
        """`states`: what the log says at the start. Of it only what is committed counts."""
        self._cluster = cluster
        self._watchers: list[Callable[[], None]] = []
        state = states.state(CLUSTER_GROUP)
        stated = [of.committed(state.commit) for of in state.members.values()]
        faults = None if state.faults is None else state.faults.committed(state.commit)
        known = [of for of in stated if of is not None]
        self.stated: Mapping[int, ClusterMember] = {
            member.node: member for member in (ClusterMember.from_json(of.value) for of in known)
        }
        self.faults = None if faults is None else FaultSet.from_json(faults.value)
        places = [of.index for of in (*known, *state.configurations, *([faults] if faults else ())) if of.index <= state.commit]
        self.version = max(places, default=0)  # index of the newest committed entry about members
        self.members: tuple[MemberAddress, ...] = self._present()

    def member(self, node: int) -> MemberAddress:
        """Where a present member is reached. Raises: KeyError."""
        for member in self.members:
            if member.node == node:
                return member
        raise KeyError(node)

    def url_of(self, node: int | None) -> str:
        """For clients; "" of a node that is no member."""
        return next((member.client for member in self.members if member.node == node), "")

    def watch(self, changed: Callable[[], None]) -> None:
        """`changed` is called after every committed entry about members, under the driver's lock: it must not block."""
        self._watchers.append(changed)

    def observe(self, index: int, record: bytes) -> None:
        """An entry of the cluster group is committed."""
        kind = peek_record(record).kind
        log.info("cluster_entry", index=index, kind=kind.name)
        if kind not in OF_MEMBERS:
            return
        if kind is RecordKind.MEMBER:
            member = ClusterMember.from_record(decode_record(record))
            self.stated = {**self.stated, member.node: member}
            self.members = self._present()
        elif kind is RecordKind.FAULTS:
            self.faults = FaultSet.from_record(decode_record(record))
        self.version = max(self.version, index)
        for changed in self._watchers:
            changed()

    def missing_members(self, incarnations: Mapping[int, bytes]) -> list[ClusterMember]:
        """First members that the log does not state yet, of those whose incarnations are known; ascending."""
        return [
            ClusterMember(of.node, incarnations[of.node], f"{of.peer[0]}:{of.peer[1]}", of.client)
            for of in self._cluster.members
            if of.node in incarnations and of.node not in self.stated
        ]

    def _present(self) -> tuple[MemberAddress, ...]:
        """Ascending by node. Removed ones are stated for ever, and no members."""
        present = {member.node: member for member in self._cluster.members}
        for node, member in self.stated.items():
            if member.stage is MemberStage.REMOVED:
                present.pop(node, None)
            elif node not in present or member.former:
                present[node] = MemberAddress(node, parse_address(member.peer), member.client)
        return tuple(present[node] for node in sorted(present))
