"""Which node's log decides for each group, and whether nothing acknowledged can be missing from it.

One rule: pure, and Raft's own argument. An entry that was acknowledged is durable on a majority of the voters of the
configuration in which it was committed. So if the logs at hand that still hold all they ever acknowledged include one voter of
every such majority, then one of them holds the entry, and so does whichever of them has the best end: (last term, last index), as
in an election (Raft paper, section 5.4.1). That is the whole of *proved*; all else here finds out which logs may be counted.

Which majorities there are, the configuration entries say: C, the newest one that some log knows to be committed, and each later
one at hand, since it may have been committed too. One that no log at hand holds was not committed, because configurations follow
each other so: a change is joint, or starts from an odd number of voters. From an even number, a change of one voter could commit
beside all logs that suffice here: A and B vote, D joins, and B and D acknowledge what A never saw.

Counted (*viable*) is the log of a voter whose directory is not known to have forgotten anything. Fault logs tell who was being
filled anew or was put back from an old copy; so do votes and commit marks that another log knows. What cannot be detected is an
old copy of a directory when no log at hand knows anything that it has forgotten: it looks like a node that lagged.

Nothing is discarded on a fault log's word alone (DESIGN.md "Replay" 1: A, B, C vote; x is on A and B; B is declared failed while
C lags; A's disk dies). Where completeness is not proved, the log with the best end wins whoever holds it: every log is a piece of
some leader's, so a better end never holds less of what was committed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, pairwise
from typing import Final

from cmdlog.wal.faultlog import FaultRecord
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX
from replay.errors import ConflictingCommits, ForeignDirectory, ForkedFaultLogs, NoLogs, TwoCopies
from replay.evidence import GroupEvidence, NodeEvidence, StatedConfiguration

BOOTSTRAP_INDEX: Final = 1  # of the configuration that a group is made with: it was never put to the vote
EMPTY: Final = GroupEvidence(group=0, term=0, commit=0, last_index=0, last_term=0, last_checksum=0, last_txn=0)


class Use(enum.Enum):
    """What becomes of a log."""

    CHOSEN = "chosen"
    AGREES = "agrees"  # viable, behind or equal; not needed
    DISCARDED = "discarded"  # no configuration in force, or that may be, lists its node as a voter
    UNUSABLE = "unusable"  # emptied, rejoining, an old copy, or its end cannot be read: not counted


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """Which log decides for a group."""

    group: int
    chosen: str  # directory
    last_index: int
    last_term: int
    last_checksum: int
    commit: int  # entries of the chosen log up to here are known committed, by any log at hand
    copies: tuple[str, ...]  # directories whose logs may serve pieces, best first, chosen first
    proved: bool
    why: str  # why this log; and, if not proved, what is missing
    uses: Mapping[str, tuple[Use, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the directories say together."""

    groups: Mapping[int, GroupVerdict]  # partitions and the cluster group, ascending
    sequence: int  # of the newest fault record; 0: none
    failed: frozenset[int]
    lineage: tuple[FaultRecord, ...]  # the newest unbroken piece of the chain
    refused: tuple[tuple[str, str], ...]  # (directory, why)


def decide(evidence: Sequence[NodeEvidence], *, accept_data_loss: bool = False) -> Verdict:
    """The authoritative log of every group. With `accept_data_loss` logs that contradict each other do not stop it.

    Raises: NoLogs, ForeignDirectory, TwoCopies, ForkedFaultLogs, ConflictingCommits.
    """
    refused = tuple((node.directory, node.refused.what) for node in evidence if node.refused is not None)
    nodes = [node for node in evidence if node.refused is None]
    check_directories(nodes, evidence)
    records = lineage_of(nodes)
    doubts = {node.directory: doubt_of(node, nodes, records) for node in nodes}
    verdicts = {}
    for group in _groups(nodes):
        view = GroupView.of(group, nodes, doubts)
        if (conflict := view.conflict()) and not accept_data_loss:
            raise ConflictingCommits(conflict)
        verdicts[group] = view.verdict(conflict)
    newest = records[-1] if records else None
    return Verdict(
        groups=verdicts,
        sequence=newest.sequence if newest else 0,
        failed=newest.failed if newest else frozenset(),
        lineage=_unbroken_end(records),
        refused=refused,
    )


# -- directories and fault logs --------------------------------------------------------------------------------------------------


def check_directories(nodes: Sequence[NodeEvidence], given: Sequence[NodeEvidence]) -> None:
    """At least one node, all of one cluster, none twice. Raises: NoLogs, ForeignDirectory, TwoCopies."""
    if not any(node.groups for node in nodes):
        told = "; ".join(
            f"{node.directory}: {node.refused.what if node.refused else 'its log holds nothing that can be read'}"
            for node in given
        )
        raise NoLogs(f"none of the directories holds a log that can be used ({told})", given[0].exit_code if given else 1)
    for one, other in combinations(nodes, 2):
        if one.cluster_id != other.cluster_id:
            raise ForeignDirectory(
                f"{one.directory} is of cluster {one.cluster_id}, {other.directory} of cluster {other.cluster_id}"
            )
        if one.node_id == other.node_id:
            raise TwoCopies(f"{one.directory} and {other.directory} are both of node {one.node_id}")


def lineage_of(nodes: Sequence[NodeEvidence]) -> tuple[FaultRecord, ...]:
    """The records of all fault logs as one chain, ascending; parts that nobody has any more may be missing.

    A mark that a node wrote about itself and that nobody took over is no fork when the others went on without it: the node marked
    itself, was broken off before it told them, and is not counted anyway. Raises: ForkedFaultLogs.
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
            raise ForkedFaultLogs(_told(before, one), _told(after, other))
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
        raise ForkedFaultLogs(_told(*one), _told(*other))


def _told(directory: str, record: FaultRecord) -> tuple[str, int, int]:
    return directory, record.sequence, record.checksum


def _unbroken_end(records: Sequence[FaultRecord]) -> tuple[FaultRecord, ...]:
    end = list(records[-1:])
    for record in reversed(records[:-1]):
        if record.sequence + 1 != end[0].sequence:
            break
        end.insert(0, record)
    return tuple(end)


def doubt_of(node: NodeEvidence, nodes: Sequence[NodeEvidence], lineage: Sequence[FaultRecord]) -> str:
    """Why none of the node's logs is counted; "" when nothing speaks against it."""
    if node.fault_problem:
        return f"its fault log cannot be relied on ({node.fault_problem})"
    newest = node.faults[-1] if node.faults else None
    if newest is not None and node.node_id in newest.failed:
        return f"its own fault record {newest.sequence} lists it: it was being filled anew, or was left behind"
    known = newest.sequence if newest is not None else 0
    return _forgotten_record(node.node_id, known, lineage) or _forgotten_vote(node, nodes)


def _forgotten_record(node: int, known: int, lineage: Sequence[FaultRecord]) -> str:
    """A node writes a record that it is the author of before it tells anybody, and takes over the one that declares it failed
    before the others declare it well again. One that has not is an old copy."""
    was_failed = 0
    for record in lineage:
        if record.sequence <= known:
            continue
        if record.author == node:
            return f"it is an old copy: it wrote fault record {record.sequence} and does not have it"
        if node in record.failed:
            was_failed = was_failed or record.sequence
        elif was_failed:
            return f"it is an old copy: it failed by fault record {was_failed}, was back by {record.sequence}, and knows neither"
    return ""


def _forgotten_vote(node: NodeEvidence, nodes: Sequence[NodeEvidence]) -> str:
    """Who is voted for was a candidate in that term, and had made the term durable before it asked."""
    for other in nodes:
        for group, stated in sorted(other.groups.items()):
            mine = node.groups.get(group, EMPTY)
            if other is not node and stated.vote == node.node_id and stated.term > mine.term:
                return (
                    f"it is an old copy: node {other.node_id} voted for it in term {stated.term}, and it knows term {mine.term}"
                )
    return ""


# -- one group -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """One node's log of the group."""

    directory: str
    node: int
    log: GroupEvidence
    doubt: str  # why it is not counted; "" when it is

    @property
    def end(self) -> tuple[int, int, bool, int, int]:
        """Greater is better."""
        return self.log.last_term, self.log.last_index, not self.doubt, self.log.commit, -self.node


@dataclass(frozen=True, slots=True)
class GroupView:
    """Everything about one group."""

    group: int
    held: tuple[Held, ...]  # of every directory, best end first
    known: StatedConfiguration | None  # C: the newest one known committed
    later: tuple[StatedConfiguration, ...]  # behind C, and not known to be void
    floor: int  # entries up to here are known committed
    places: Mapping[str, Mapping[int, tuple[int, int]]]  # directory -> index -> (term, checksum), known committed
    starts: frozenset[int]  # indexes at which there are snapshots

    @classmethod
    def of(cls, group: int, nodes: Sequence[NodeEvidence], doubts: Mapping[str, str]) -> GroupView:
        """Puts together what the directories say."""
        logs = {node.directory: node.groups.get(group, EMPTY) for node in nodes}
        stated = logs if any(log.configurations for log in logs.values()) else _cluster_logs(nodes)
        known, later = configurations_of(list(stated.values()))
        held = []
        for node in nodes:
            log = logs[node.directory]
            doubt = doubts[node.directory] or _doubt_of_log(log, stated is logs, _seen(logs.values()))
            held.append(Held(node.directory, node.node_id, log, doubt))
        held.sort(key=lambda one: one.end, reverse=True)
        places = {node.directory: _places(node, group) for node in nodes}
        floor = max(index for index in (0, *(log.commit for log in logs.values()), *(i for of in places.values() for i in of)))
        starts = frozenset(
            snap.index for node in nodes for snap in node.snapshots if snap.partition == group and not snap.problem
        )
        view = cls(group, tuple(held), known, later, floor, places, starts)
        return replace(view, held=view.without_the_forgetful())

    def without_the_forgetful(self) -> tuple[Held, ...]:
        """A committed entry is on a majority of the voters. If more of them lack it here than a majority can spare, one of
        those is an old copy; which one, nothing tells, so none of them is counted."""
        if self.known is None or self.later:
            return self.held
        lacking = {one.node for one in self.held if not one.doubt and one.log.last_index < self.floor}
        suspect = set().union(*(of & lacking for of in _halves(self.known) if len(of & lacking) > len(of) - _majority(of)))
        why = f"it or another voter is an old copy: too many of them lack entry {self.floor}, which is committed"
        held = (replace(one, doubt=why) if one.node in suspect and not one.doubt else one for one in self.held)
        return tuple(sorted(held, key=lambda one: one.end, reverse=True))

    def conflict(self) -> str:
        """Two logs that both know an entry to be committed, and hold another one there; "" when there are none."""
        if self.known is not None and (other := self._denial(self.known)):
            return f"{_name(self.group)}: {other}"
        for (one, mine), (other_one, theirs) in combinations(sorted(self.places.items()), 2):
            for index in sorted(set(mine) & set(theirs)):
                if _differ(mine[index], theirs[index]):
                    return (
                        f"{_name(self.group)}: entry {index} is known committed in {one} with term {mine[index][0]} and checksum "
                        f"{mine[index][1]:08x}, in {other_one} with term {theirs[index][0]} and checksum {theirs[index][1]:08x}"
                    )
        return ""

    def _denial(self, known: StatedConfiguration) -> str:
        """Which log knows another entry to be committed where the newest committed configuration stands."""
        for one in self.held:
            stated = [(c.index, c.term) for c in one.log.configurations if _is_committed(c, one.log) and not one.log.unseen]
            if stated and known.index <= one.log.commit and stated[-1] != (known.index, known.term):
                return (
                    f"{one.directory} knows entries up to {one.log.commit} to be committed, without the configuration of term "
                    f"{known.term} at index {known.index} that is committed in another log"
                )
        return ""

    def verdict(self, conflict: str) -> GroupVerdict:
        """The best end among those that count when they suffice, else the best end that can be read."""
        counted = [one for one in self.held if not one.doubt and self.votes(one.node)]
        chosen, missing = (counted[0], self.missing(counted)) if counted else (None, self.missing([]))
        if conflict:
            missing = conflict
        if chosen is None or missing:
            chosen = self.last_resort()
        return GroupVerdict(
            group=self.group,
            chosen=chosen.directory,
            last_index=chosen.log.last_index,
            last_term=chosen.log.last_term,
            last_checksum=chosen.log.last_checksum,
            commit=min(self.floor, chosen.log.last_index),
            copies=(chosen.directory, *(one.directory for one in self.held if one is not chosen and one.log.last_index)),
            proved=not missing,
            why=self._why(chosen, counted, missing),
            uses={one.directory: self._use(one, chosen) for one in self.held},
        )

    def votes(self, node: int) -> bool:
        """Whether C, or a later configuration that may be in force, lists the node as a voter."""
        return any(configuration.is_voter(node) for configuration in self._deciding())

    def missing(self, counted: Sequence[Held]) -> str:
        """Why these logs do not prove that nothing acknowledged is missing; "" when they do."""
        if self.known is None or not self.known.voters:
            return "no log at hand states a committed configuration, so nobody knows who votes"
        if counted and counted[0].log.last_index < self.floor:
            return f"entry {self.floor} is known committed, and no voter that counts holds it"
        nodes = {one.node for one in counted}
        for configuration in self._deciding():
            for half in _halves(configuration):
                needed = len(half) - _majority(half) + 1
                if len(half & nodes) < needed:
                    return (
                        f"of the voters {_set(half)} of configuration {configuration.index}, {needed} are needed that count; "
                        f"at hand are {_set(half & nodes)}, missing {_set(half - nodes)}"
                    )
        return ""

    def last_resort(self) -> Held:
        """Nothing is proved: the best end of all that can be reached from a snapshot or the beginning."""
        reachable = [one for one in self.held if self._is_reachable(one)]
        return (reachable or self.held)[0]

    def _is_reachable(self, one: Held) -> bool:
        """A log that is being filled anew may begin where nothing at hand leads to."""
        base = one.log.runs[-1].base_index if one.log.runs else 0
        runs = {(run.base_index, run.last_index) for other in self.held for run in other.log.runs}
        reached = 0  # everything up to here, or from a snapshot up to here, is at hand
        while reached < base:
            starts = (start for start in self.starts if base <= start <= one.log.last_index)
            longer = [last for low, last in runs if low <= reached < last]
            longer += [last for low, last in runs for start in self.starts if low <= start <= last and last > reached]
            if any(starts):
                return True
            if not longer:
                return False
            reached = max(longer)
        return one.log.last_index > 0

    def _deciding(self) -> tuple[StatedConfiguration, ...]:
        return (*(() if self.known is None else (self.known,)), *self.later)

    def _why(self, chosen: Held, counted: Sequence[Held], missing: str) -> str:
        end = f"node {chosen.node} has the best end, term {chosen.log.last_term} index {chosen.log.last_index}"
        if missing:
            return f"{end}, of all logs at hand; that nothing acknowledged is missing is not proved: {missing}"
        among = ", ".join(str(one.node) for one in sorted(counted, key=lambda one: one.node))
        return f"{end}, of the voters {among}, which meet every majority"

    def _use(self, one: Held, chosen: Held) -> tuple[Use, str]:
        end = f"it ends at term {one.log.last_term} index {one.log.last_index}"
        if one is chosen:
            return Use.CHOSEN, f"{end}, the best" + (f"; {one.doubt}" if one.doubt else "")
        if one.doubt:
            return Use.UNUSABLE, one.doubt
        if not self.votes(one.node):
            stated = f"configuration {self.known.index}" if self.known is not None else "no configuration at hand"
            return Use.DISCARDED, f"{stated} does not list node {one.node} as a voter; {end}"
        return Use.AGREES, end


def configurations_of(logs: Sequence[GroupEvidence]) -> tuple[StatedConfiguration | None, tuple[StatedConfiguration, ...]]:
    """(the newest configuration that a log knows to be committed, all later ones that are not known to be void).

    One is void when a log knows entries up to its index and beyond to be committed, and holds another entry there.
    """
    committed = [c for log in logs for c in log.configurations if _is_committed(c, log)]
    known = max(committed, key=lambda c: (c.index, c.term), default=None)
    after = known.index if known is not None else 0
    upto = _seen(logs)
    later = {(c.index, c.term): c for log in logs for c in log.configurations if c.index > max(after, upto)}
    return known, tuple(later[place] for place in sorted(later))


def _seen(logs: Iterable[GroupEvidence]) -> int:
    """Whatever configuration is committed up to here, a log states it, or a later one."""
    return max((log.commit for log in logs if not log.unseen), default=0)


def _is_committed(configuration: StatedConfiguration, log: GroupEvidence) -> bool:
    return configuration.index <= max(log.commit, BOOTSTRAP_INDEX)


def _cluster_logs(nodes: Sequence[NodeEvidence]) -> dict[str, GroupEvidence]:
    return {node.directory: node.groups.get(CLUSTER_GROUP, EMPTY) for node in nodes}


def _doubt_of_log(log: GroupEvidence, has_configuration: bool, seen: int) -> str:
    if log.last_index == 0 or (has_configuration and not log.configurations):
        return "it holds nothing of this group: its disk was emptied, or it never got anything"
    if log.unseen > seen:
        return f"its entries up to {log.unseen} cannot all be read, and may hold a configuration that no other log knows"
    return "" if log.end_known else "the end of its log cannot be read"


def _places(node: NodeEvidence, group: int) -> dict[int, tuple[int, int]]:
    """Entries that the node knows to be committed: (term, checksum) by index."""
    log = node.groups.get(group, EMPTY)
    ends = [(log.last_index, log.last_term, log.last_checksum, log.commit if log.end_known else 0)]
    for run in log.runs:
        base_commit = log.commit if run.base_commit is None else run.base_commit
        last_commit = log.commit if run.last_commit is None else run.last_commit
        ends.append((run.base_index, run.base_term, run.base_checksum, base_commit))
        ends.append((run.last_index, run.last_term, run.last_checksum, last_commit))
    found = {index: (term, checksum) for index, term, checksum, commit in ends if 0 < index <= commit}
    for snapshot in node.snapshots:
        if snapshot.partition == group and not snapshot.problem and snapshot.index:
            found.setdefault(snapshot.index, (snapshot.term, snapshot.checksum))
    return found


def _groups(nodes: Iterable[NodeEvidence]) -> list[int]:
    found = {group for node in nodes for group in node.groups}
    partitions = max((log.partitions for node in nodes for log in node.groups.values()), default=0)
    return sorted(found | set(range(min(partitions, PARTITIONS_MAX))))


def _halves(configuration: StatedConfiguration) -> list[frozenset[int]]:
    return [half for half in (configuration.voters, configuration.outgoing) if half]


def _majority(voters: frozenset[int]) -> int:
    return len(voters) // 2 + 1


def _differ(one: tuple[int, int], other: tuple[int, int]) -> bool:
    return one[0] != other[0] or (one[1] != other[1] and bool(one[1] and other[1]))


def _set(nodes: Iterable[int]) -> str:
    return "{" + ", ".join(map(str, sorted(nodes))) + "}" if nodes else "none"


def _name(group: int) -> str:
    return "cluster group" if group == CLUSTER_GROUP else f"partition {group}"
