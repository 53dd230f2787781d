"""What the log of a recovered node says of its cluster: a new one of this node alone, which other nodes can join.

One rule: pure. Every group has the node as its only voter, and the shape has its own place in the log, apart from who votes: so
the same directory is served alone, or as the first member of a cluster whose configurations change.

The lives of all disks of before are over. Their nodes are no longer members, and may be added again. This node's own life is a
new one, which it states when it leads, with the address that it has then. So none of the old directories counts beside this one
(`replay.plan.disk_lives`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.fault_log import FaultRecord, make_record
from cmdlog.wal.format.cluster_record import ClusterMember, FaultSet, MemberStage
from cmdlog.wal.group_state import GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP

OF_VOTERS: Final = frozenset({"voters", "outgoing", "learners", "learners_next", "auto_leave", "epoch", "forced"})
"""Of a configuration's members: who votes. The others are the shape."""


def begin_alone(groups: GroupStates, identity: Identity) -> None:
    """Every group as the new log begins. The newest configurations already name this node alone."""
    cluster = groups.state(CLUSTER_GROUP)
    newest = cluster.configurations[-1] if cluster.configurations else None
    shape = {name: value for name, value in (cluster.configuration or {}).items() if name not in OF_VOTERS}
    if newest is not None and shape:
        cluster.shape = Stated(newest.index, newest.term, shape)
    for state in groups.by_partition.values():
        state.configurations = [_voters_alone(stated) for stated in state.configurations[-1:]]
    ended = {group: (state.last_term, state.last_index) for group, state in groups.by_partition.items()}
    cluster.members.pop(identity.node_id, None)
    members = {node: ClusterMember.from_json(stated.value) for node, stated in cluster.members.items()}
    for node, member in members.items():
        former = tuple(dict.fromkeys((*member.former, *([member.incarnation] if member.incarnation else []))))
        after = replace(member, stage=MemberStage.REMOVED, incarnation=b"", former=former, admitted={}, ended=ended)
        cluster.members[node] = Stated(cluster.last_index, cluster.last_term, after.to_json())


def with_stated_set(records: Sequence[FaultRecord], stated: Stated | None, cluster_id: bytes) -> tuple[FaultRecord, ...]:
    """The records of fault logs, and the set that the cluster group states, where a crash came before its record."""
    records = tuple(records)
    last = records[-1] if records else None
    said = FaultSet.from_json(stated.value) if stated is not None else None
    if said is None or said.sequence != (last.sequence if last is not None else 0) + 1:
        return records
    record = make_record(
        cluster_id, last, failed=said.failed, epoch=said.epoch, term=said.term, author=said.author, demotions=said.demotions,
        reason=said.reason,
    )  # fmt: skip
    return (*records, record)


def _voters_alone(stated: Stated) -> Stated:
    """A node alone counts its generations as `epoch`, which is something else where nodes agree on configurations."""
    value = stated.value
    forced = value.get("forced") is True
    said = {"voters": value.get("voters", []), "outgoing": [], "learners": [], "learners_next": [], "auto_leave": False}
    return Stated(stated.index, stated.term, {**said, "forced": forced, "epoch": int(value.get("epoch", 0)) if forced else 0})
