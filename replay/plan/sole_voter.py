"""Whether one directory decides alone: its node is the only voter of every group, and there is no sign that its log was lost.

One rule: the same answer for every command that reads or serves a single directory. A sole voter's durable entries are
committed, marked or not. Any other node's log may end with entries that its cluster never committed, or lack some that it did;
executing them alone would overrule the cluster.

A log that states no configuration is not a sole voter's: every node's log begins with one, so this one was emptied.

To *open* a directory alone (to serve it, to replay it in place, to let it take the place of its original) asks for more than
that. A directory of one of several members is started with `--join` or not at all: alone, it would write what its cluster knows
nothing of. So a voter among learners is refused, the survivor of a forced recovery while the others are expected back, a copy
that is not complete, and a node that the cluster has removed.
"""

from __future__ import annotations

import os
from typing import Final

from cmdlog.operator_error import full_text
from cmdlog.wal.directory.instance import CLUSTER_FOLDER, Identity
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.fault_log import FaultRecord, read_faults
from cmdlog.wal.files import Files
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import NotSoleVoter
from replay.log.evidence import GroupEvidence, NodeEvidence
from replay.log.source import fold_end, open_source
from replay.plan.authority import group_name, voter_list
from replay.plan.directory_lineage import doubt_of

REJOIN_PATH: Final = (CLUSTER_FOLDER, "rejoin.json")
TOMBSTONE_PATH: Final = (CLUSTER_FOLDER, "tombstone.json")
_JOIN: Final = "`cmdlog serve APP --data DIR --join cluster.json --node N` starts it with the others"
_WAYS: Final = (
    f"{_JOIN}; `cmdlog recover DIR DIR2 DIR3 --to OUT` makes a node of what all of them hold, and "
    "`cmdlog recover DIR --accept-data-loss --to OUT` of this one alone"
)


def why_not_alone(node: NodeEvidence) -> str:
    """Why the node's log does not decide by itself; "" when it does."""
    if node.refused is not None:
        return node.refused.what
    if doubt := doubt_of(node, [node], node.faults):
        return doubt
    cluster = node.groups.get(CLUSTER_GROUP)
    if cluster is None or not cluster.configurations:
        return "its log states no configuration, so it was emptied, or never held anything"
    for group, of in sorted(node.groups.items()):
        for stated in of.configurations:
            if stated.voters | stated.outgoing != {node.node_id}:
                voters = voter_list(stated.voters | stated.outgoing)
                return f"configuration {stated.index} ({group_name(group)}) lists the voters {voters}"
    return ""


def votes_alone(node: NodeEvidence) -> bool:
    """Whether no other node votes: then whatever is durable is committed, marked or not."""
    return not why_not_alone(node)


def check_alone(files: Files, directory: str, identity: Identity, groups: GroupStates) -> None:
    """The same for a log whose end was already folded. Raises: NotSoleVoter, which states why and names what can be done."""
    faults: tuple[FaultRecord, ...] = ()
    problem = ""
    try:
        faults = read_faults(files, directory, identity)
    except Corrupt as error:
        problem = full_text(error)
    stated = {group: GroupEvidence.from_state(group, state) for group, state in groups.by_partition.items()}
    node = NodeEvidence(directory, **identity.as_text(), groups=stated, faults=faults, fault_problem=problem)
    if why := why_not_alone(node):
        raise NotSoleVoter(f"{directory} (node {identity.node_id}) cannot decide alone: {why}")


def check_whole_member(files: Files, directory: str) -> None:
    """Of any directory, also an empty one. Raises: NotSoleVoter for a copy that is not complete, and for a removed node."""
    if files.exists(os.path.join(directory, *TOMBSTONE_PATH)):
        raise NotSoleVoter(f"{directory} is of a node that its cluster has removed", hint=_removed_hint())
    if files.exists(os.path.join(directory, *REJOIN_PATH)):
        raise NotSoleVoter(
            f"{directory} is of a node of a cluster that is being made again from a copy, and that is not complete",
            hint=f"{_JOIN}, and completes the copy; `cmdlog recover` of the other nodes' directories needs none of this one",
        )


def check_served_alone(files: Files, directory: str, identity: Identity, groups: GroupStates) -> None:
    """Of a log whose end is folded. Raises: NotSoleVoter, which states why and names the ways."""
    check_whole_member(files, directory)
    if others := other_members(groups, identity.node_id):
        raise NotSoleVoter(
            f"{directory} (node {identity.node_id}) is one of several members of a cluster: the others are {voter_list(others)}",
            hint=_WAYS,
        )
    check_alone(files, directory, identity, groups)


def check_adoptable(files: Files, directory: str) -> None:
    """Whether another life may take over what is here. A log that cannot be read is left to the one that opens it.

    Raises: NotSoleVoter, for a directory of one of several members: the others would refuse the new life.
    """
    check_whole_member(files, directory)
    try:
        source = open_source(files, directory, accept_data_loss=True)
        groups = fold_end(source)
    except (WalError, BadRecord):
        return
    node = source.instance.identity.node_id
    if others := other_nodes(groups, node):
        raise NotSoleVoter(
            f"{directory} (node {node}) is one of several members of a cluster: the others are {voter_list(others)}",
            hint=f"`cmdlog cluster replace {node}`, and a start with an empty data directory, brings the node back by copy",
        )


def other_nodes(groups: GroupStates, node_id: int) -> set[int]:
    """Members of the cluster beside this one, and voters of its groups."""
    voters = {n for state in groups.by_partition.values() for n in (state.configuration or {}).get("voters", ())}
    return (other_members(groups, node_id) | voters) - {node_id}


def other_members(groups: GroupStates, node_id: int) -> set[int]:
    """Nodes that belong to the cluster, or are expected back, as the log states it."""
    stated = groups.state(CLUSTER_GROUP).members.values()
    members = [ClusterMember.from_json(of.value) for of in stated]
    found = {member.node for member in members if member.stage is not MemberStage.REMOVED}
    for state in groups.by_partition.values():
        found |= {int(node) for node in (state.configuration or {}).get("learners", ())}
    return found - {node_id}


def _removed_hint() -> str:
    return (
        "`cmdlog cluster add` takes the machine in again, with an empty data directory; what this one holds by itself is made a "
        "node of its own by `cmdlog recover DIR --accept-data-loss --to OUT`"
    )
