"""Whether one directory decides alone: its node is the only voter of every group, and there is no sign that its log was lost.

One rule: the same answer for every command that reads or serves a single directory. A sole voter's durable entries are
committed, marked or not. Any other node's log may end with entries that its cluster never committed, or lack some that it did;
executing them alone would overrule the cluster.

A log that states no configuration is not a sole voter's: every node's log begins with one, so this one was emptied.
"""

from __future__ import annotations

from cmdlog.operator_error import full_text
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.fault_log import FaultRecord, read_faults
from cmdlog.wal.files import Files
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import NotSoleVoter
from replay.log.evidence import GroupEvidence, NodeEvidence
from replay.plan.authority import group_name, voter_list
from replay.plan.fault_lineage import doubt_of


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
    """The same for a log whose end was already folded. Raises: NotSoleVoter, which says why and names what can be done."""
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
