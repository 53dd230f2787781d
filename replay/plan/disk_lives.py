"""Directories whose life of the disk is over: the node was replaced, or came back with an emptied disk, and another life counts.

One rule: pure, and about whole directories. What an ended life holds was true, so its log may still say what was committed and
serve entries; but a configuration that lists its node may mean the later life, so it is not counted as the voter.

That no ended life is counted by mistake: an old life is over by a MEMBER entry that a majority of the cluster group holds before
the new one is added anywhere. The configurations that list the new life follow that entry in the cluster group. So where the
cluster group is proved without it, nothing was committed after it.

A life that no entry at hand names, where an entry or a book of peers names another one, was never admitted: a disk that was
emptied and made as if the cluster began. So may be one that took part in nothing and that no one has met: a node votes, and
acknowledges, only after all first members have pinned its life.

An old copy of a directory may have forgotten what no log at hand knows. But a node counts each start durably before anybody
hears of it, and the others note the last one that they have met. A directory that has counted fewer is an old copy, and so is
one that has counted as many and was not the one that was met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from replay.log.evidence import NodeEvidence
from replay.log.known_lives import PINNED, KnownLife

FIRST_TERM: Final = 1  # of the entries that a cluster is made with, in which no one has voted
MADE_WITH_MAX: Final = 4  # entries of the cluster group: members, shape, code, environment
_UNMET: Final = "its log is as the cluster began, and no directory at hand has met it"


def ended_lives(nodes: Sequence[NodeEvidence]) -> dict[str, str]:
    """By directory why its life does not count, or it is an old copy of it; without those that count."""
    found = {node.directory: _why_ended(node, nodes) for node in nodes}
    return {directory: why for directory, why in found.items() if why}


def _why_ended(node: NodeEvidence, nodes: Sequence[NodeEvidence]) -> str:
    mine = {node.incarnation, *node.earlier}
    known = [(other.directory, life) for other in nodes for number, life in other.lives.items() if number == node.node_id]
    what = f"node {node.node_id}'s life {node.incarnation}"
    for directory, life in known:
        if node.incarnation in life.former:
            return f"{what} is over: {_place(directory, life)} says that another one has taken its place"
    for other in nodes:
        met = other.peer_starts.get(node.node_id)
        if met is not None and node.start is not None and node.start.is_older(met):
            starts = f"its start {node.start.number} is not start {met.number}, which {other.directory} met"
            return f"it is an old copy of {what}: {starts}"
    directory, newest = max(known, key=lambda one: one[1].place, default=("", None))
    if newest is None:
        return "" if node.met or not _may_be_emptied(node, nodes) else f"{what} may be of an emptied disk: {_UNMET}"
    if not newest.incarnation or newest.incarnation in mine:
        return ""
    if newest.place == PINNED and directory == node.directory:
        return ""
    return f"{what} is not the one that belongs to the cluster: {_place(directory, newest)} names {newest.incarnation}"


def _may_be_emptied(node: NodeEvidence, nodes: Sequence[NodeEvidence]) -> bool:
    """Whether the log is as it was made, with other voters that are not all at hand: these may know another life."""
    if any(of.term > FIRST_TERM or of.vote is not None or of.last_index > MADE_WITH_MAX for of in node.groups.values()):
        return False
    voters = {voter for of in node.groups.values() for stated in of.configurations for voter in stated.voters}
    return not voters <= {other.node_id for other in nodes}


def _place(directory: str, life: KnownLife) -> str:
    if life.place == PINNED:
        return f"the book of peers in {directory}"
    return f"the member entry of term {life.place[0]} at index {life.place[1]} in {directory}"
