"""Directories that do not count: what their fault logs, votes and starts show, and lives of a disk that are over.

One rule: pure, and about whole directories. One that was emptied, or restored from an old copy, has forgotten something of every
group, no matter which group shows it. What an ended life holds was true, so its log may still say what was committed and serve
entries; but a configuration that lists its node may mean the later life, so it is not counted as the voter.

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
from itertools import pairwise
from typing import Final

from cmdlog.wal.fault_log import FaultRecord
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import ForkedFaultLogs
from replay.log.evidence import BOOTSTRAP_INDEX, EMPTY, PINNED, KnownLife, NodeEvidence

FIRST_TERM: Final = 1  # of the entries that a cluster is made with, in which no one has voted
MADE_WITH_MAX: Final = 4  # entries of the cluster group: members, shape, code, environment
_UNMET: Final = "its log is as the cluster began, and no directory at hand has met it"


def lineage_of(nodes: Sequence[NodeEvidence]) -> tuple[FaultRecord, ...]:
    """The records of all fault logs as one chain, ascending; parts that no log still has may be missing.

    A mark that a node wrote about itself and that no other node copied is not a fork when the others continued without it: the
    node marked itself, stopped before it informed them, and is not counted anyway. Raises: ForkedFaultLogs.
    """
    chain: dict[int, tuple[str, FaultRecord]] = {}
    marks: list[tuple[str, FaultRecord]] = []
    for node in nodes:
        for record in node.faults:
            if record is node.faults[-1] and _is_own_mark(record, node):
                marks.append((node.directory, record))
            else:
                _check_same(chain.setdefault(record.sequence, (node.directory, record)), (node.directory, record))
    for (before, one), (after, other) in pairwise(chain[sequence] for sequence in sorted(chain)):
        if one.sequence + 1 == other.sequence and other.previous_checksum != one.checksum:
            raise ForkedFaultLogs(_describe_record(before, one), _describe_record(after, other))
    for directory, mark in marks:
        following, previous = chain.get(mark.sequence + 1), chain.get(mark.sequence - 1)
        fits = mark.sequence not in chain and (previous is None or previous[1].checksum == mark.previous_checksum)
        if fits and (following is None or following[1].previous_checksum == mark.checksum):
            chain[mark.sequence] = directory, mark
    return tuple(chain[sequence][1] for sequence in sorted(chain))


def _is_own_mark(record: FaultRecord, node: NodeEvidence) -> bool:
    return record.is_self_mark and record.author == node.node_id


def _check_same(one: tuple[str, FaultRecord], other: tuple[str, FaultRecord]) -> None:
    if one[1].checksum != other[1].checksum:
        raise ForkedFaultLogs(_describe_record(*one), _describe_record(*other))


def _describe_record(directory: str, record: FaultRecord) -> tuple[str, int, int]:
    return directory, record.sequence, record.checksum


def unbroken_end(records: Sequence[FaultRecord]) -> tuple[FaultRecord, ...]:
    """The newest records that follow each other without a gap."""
    end = list(records[-1:])
    for record in reversed(records[:-1]):
        if record.sequence + 1 != end[0].sequence:
            break
        end.insert(0, record)
    return tuple(end)


def doubt_of(node: NodeEvidence, nodes: Sequence[NodeEvidence], lineage: Sequence[FaultRecord]) -> str:
    """Why none of the node's logs is counted; "" when there is no reason."""
    if node.fault_problem:
        return f"its fault log cannot be relied on ({node.fault_problem})"
    newest = node.faults[-1] if node.faults else None
    if newest is not None and node.node_id in newest.failed:
        return f"its own fault record {newest.sequence} lists it as failed: it was being refilled, or left out by the cluster"
    if _began_again(node):
        return f"its log begins with node {node.node_id} as the only node, but its fault log knows others: it was emptied"
    known = max(newest.sequence if newest is not None else 0, _logged_sequence(node, lineage))
    return _forgotten_record(node.node_id, known, lineage) or _forgotten_vote(node, nodes)


def _logged_sequence(node: NodeEvidence, lineage: Sequence[FaultRecord]) -> int:
    """Of the newest failure set in its log, where that is the one that the cluster has committed; else 0. It may have died after
    the entry was in its log, which lets it vote, and before the record was in its fault log."""
    stated = node.logged_faults
    same = (
        record
        for record in lineage
        if stated is not None
        and (record.sequence, record.term, record.author) == (stated.sequence, stated.term, stated.author)
        and (tuple(sorted(record.failed)), record.demotions) == (stated.failed, tuple(sorted(stated.demotions)))
    )
    return max((record.sequence for record in same), default=0)


def _began_again(node: NodeEvidence) -> bool:
    """A cluster that other nodes were in has changed the configuration of one node that it may have been made with."""
    stated = node.groups.get(CLUSTER_GROUP, EMPTY).configurations
    first_only = bool(stated) and all(of.index == BOOTSTRAP_INDEX and of.voters == {node.node_id} for of in stated)
    return first_only and any(record.author != node.node_id or record.failed - {node.node_id} for record in node.faults)


def _forgotten_record(node: int, known: int, lineage: Sequence[FaultRecord]) -> str:
    """A node writes a mark about itself before it informs the others, and copies the record that declares it failed before the
    others declare it well again. A directory without them is an old copy. The author of another record may have died before it
    wrote it: the cluster group had the record then, and the others took it from there."""
    was_failed = 0
    for record in lineage:
        if record.sequence <= known:
            continue
        if record.author == node and record.is_self_mark:
            return f"it is an old copy: it wrote fault record {record.sequence} and does not have it"
        if node in record.failed:
            was_failed = was_failed or record.sequence
        elif was_failed:
            return f"it is an old copy: it failed by fault record {was_failed}, was back by {record.sequence}, and knows neither"
    return ""


def _forgotten_vote(node: NodeEvidence, nodes: Sequence[NodeEvidence]) -> str:
    """A node that got a vote was a candidate in that term, and had made the term durable before it asked."""
    for other in nodes:
        for group, stated in sorted(other.groups.items()):
            mine = node.groups.get(group, EMPTY)
            if other is not node and stated.vote == node.node_id and stated.term > mine.term:
                return (
                    f"it is an old copy: node {other.node_id} voted for it in term {stated.term}, and it knows term {mine.term}"
                )
    return ""


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
