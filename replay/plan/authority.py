"""Which node's log decides for each group, and whether nothing acknowledged can be missing from it.

One rule: pure, and Raft's own argument. An entry that was acknowledged is durable on a majority of the voters of the
configuration in which it was committed. So if the logs at hand that still hold all they ever acknowledged include one voter of
every such majority, then one of them holds the entry, and so does whichever of them has the best end: (last term, last index), as
in an election (Raft paper, section 5.4.1). That is the whole of *proved*; all else here finds out which logs may be counted.

Which majorities there are, the configuration entries state: C, the newest one that some log knows to be committed, and each later
one at hand, since it may have been committed too. One that no log at hand holds was not committed, because configurations follow
each other so: a change is joint, or starts from an odd number of voters. From an even number, a change of one voter could commit
beside all logs that suffice here: A and B vote, D joins, and B and D acknowledge what A never saw.

Counted (*viable*) is the log of a voter whose directory is not known to have forgotten anything. Fault logs show which
directories were being refilled or were restored from an old copy; so do votes and commit marks that another log knows, and
starts that another node has met (`directory_lineage`). What cannot be detected is an old copy of a directory when none at hand
knows anything that it has forgotten: it looks like a node that lagged.

Nothing is discarded on a fault log's word alone (A, B, C vote; x is on A and B; B is declared failed while
C lags; A's disk dies). Where completeness is not proved, the log with the best end wins on any node: every log is a piece of
some leader's, so a better end never holds less of what was committed.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from itertools import combinations

from cmdlog.wal.fault_log import FaultRecord
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITIONS_MAX
from replay.errors import ConflictingCommits, ForeignDirectory, NoLogs, TwoCopies
from replay.log.evidence import BOOTSTRAP_INDEX, EMPTY, GroupEvidence, NodeEvidence, StatedConfiguration
from replay.plan.contradiction import contradiction_of, is_committed
from replay.plan.directory_lineage import doubt_of, ended_lives, lineage_of, unbroken_end


class Use(enum.Enum):
    """How a log is used."""

    CHOSEN = "chosen"
    AGREES = "agrees"  # viable, with an older or equal end; not needed
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
    doubt: str = ""  # why the chosen log has lost something, where that is so of every log at hand


@dataclass(frozen=True, slots=True)
class ClusterVerdict:
    """What the directories state together."""

    groups: Mapping[int, GroupVerdict]  # partitions and the cluster group, ascending
    sequence: int  # of the newest fault record; 0: none
    failed: frozenset[int]
    lineage: tuple[FaultRecord, ...]  # the newest unbroken piece of the chain
    refused: tuple[tuple[str, str], ...]  # (directory, why)


def decide(evidence: Sequence[NodeEvidence], *, accept_data_loss: bool = False) -> ClusterVerdict:
    """The authoritative log of every group. With `accept_data_loss` logs that contradict each other do not stop it.

    Raises: NoLogs, ForeignDirectory, TwoCopies, ForkedFaultLogs, ConflictingCommits.
    """
    refused = tuple((node.directory, node.refused.what) for node in evidence if node.refused is not None)
    nodes = [node for node in evidence if node.refused is None]
    ended = ended_lives(nodes)
    check_directories(nodes, evidence, ended.keys())
    records = lineage_of(nodes)
    doubts = {node.directory: ended.get(node.directory) or doubt_of(node, nodes, records) for node in nodes}
    verdicts = {}
    for group, view in _views(nodes, doubts).items():
        if (conflict := view.conflict()) and not accept_data_loss:
            raise ConflictingCommits(conflict)
        verdicts[group] = view.verdict(conflict)
    newest = records[-1] if records else None
    return ClusterVerdict(
        groups=verdicts,
        sequence=newest.sequence if newest else 0,
        failed=newest.failed if newest else frozenset(),
        lineage=unbroken_end(records),
        refused=refused,
    )


def _views(nodes: Sequence[NodeEvidence], doubts: dict[str, str]) -> dict[int, GroupAuthority]:
    """Every group. A directory that one group shows to be an old copy is one in all of them, and may show more then."""
    while True:
        views = {group: GroupAuthority.of(group, nodes, doubts) for group in _groups(nodes)}
        found = {directory: why for view in views.values() for directory, why in view.forgetful().items()}
        if not found:
            return views
        doubts |= found


# -- directories --------------------------------------------------------------------------------------------------


def check_directories(nodes: Sequence[NodeEvidence], given: Sequence[NodeEvidence], ended: Set[str] = frozenset()) -> None:
    """At least one node, all of one cluster, no life of a disk twice, and of a node one life in addition to its `ended` ones.

    Raises: NoLogs, ForeignDirectory, TwoCopies.
    """
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
        apart = one.incarnation != other.incarnation and not ended.isdisjoint({one.directory, other.directory})
        if one.node_id == other.node_id and not apart:
            raise TwoCopies(f"{one.directory} and {other.directory} are both of node {one.node_id}")


# -- one group -------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodeCopy:
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
class GroupAuthority:
    """Everything about one group."""

    group: int
    held: tuple[NodeCopy, ...]  # of every directory, best end first
    known: StatedConfiguration | None  # C: the newest one known committed
    later: tuple[StatedConfiguration, ...]  # after C, and not known to be void
    floor: int  # entries up to here are known committed
    places: Mapping[str, Mapping[int, tuple[int, int]]]  # directory -> index -> (term, checksum), known committed
    starts: frozenset[int]  # indexes at which there are snapshots

    @classmethod
    def of(cls, group: int, nodes: Sequence[NodeEvidence], doubts: Mapping[str, str]) -> GroupAuthority:
        """Puts together what the directories state."""
        logs = {node.directory: node.groups.get(group, EMPTY) for node in nodes}
        stated = logs if any(log.configurations for log in logs.values()) else _cluster_logs(nodes)
        known, later = configurations_of(list(stated.values()))
        held = []
        for node in nodes:
            log = logs[node.directory]
            doubt = doubts[node.directory] or _doubt_of_log(log, stated is logs, _seen(logs.values()))
            held.append(NodeCopy(node.directory, node.node_id, log, doubt))
        held.sort(key=lambda one: one.end, reverse=True)
        places = {node.directory: _places(node, group) for node in nodes}
        floor = max(index for index in (0, *(log.commit for log in logs.values()), *(i for of in places.values() for i in of)))
        starts = frozenset(
            snap.index for node in nodes for snap in node.snapshots if snap.partition == group and not snap.problem
        )
        return cls(group, tuple(held), known, later, floor, places, starts)

    def forgetful(self) -> dict[str, str]:
        """Directories that may be old copies, with why: their logs, taken together, have forgotten something.

        A committed entry is on a majority of the voters, and so is the term of a leader, whose entries any log may hold. If more
        voters lack it here than a majority can spare, one of those is an old copy; which one is unknown.
        """
        if self.known is None or self.later:
            return {}
        counted = [one for one in self.held if not one.doubt]
        led = max((one.log.last_term for one in self.held if one.log.last_index > BOOTSTRAP_INDEX), default=0)
        old = "it or another voter is an old copy: too many of them"
        found = self._too_many(
            [one for one in counted if max(one.log.term, one.log.last_term) < led],
            f"{old} do not know term {led}, which had a leader",
        )
        lacking = [one for one in counted if one.log.last_index < self.floor]
        return found | self._too_many(lacking, f"{old} lack entry {self.floor}, which is committed")

    def _too_many(self, lacking: Sequence[NodeCopy], why: str) -> dict[str, str]:
        """Those of them that no majority can do without, with why."""
        nodes = {one.node for one in lacking}
        halves = _halves(self.known) if self.known is not None else []
        suspect = set().union(*(of & nodes for of in halves if len(of & nodes) > len(of) - _majority(of)))
        return {one.directory: f"{why} ({group_name(self.group)})" for one in lacking if one.node in suspect}

    def conflict(self) -> str:
        """What two logs that know entries to be committed contradict each other in; "" when they do not."""
        found = contradiction_of(self.known, {one.directory: one.log for one in self.held}, self.places)
        return f"{group_name(self.group)}: {found}" if found else ""

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
            doubt=chosen.doubt if all(one.doubt for one in self.held) else "",
        )

    def votes(self, node: int) -> bool:
        """Whether C, or a later configuration that may be in force, lists the node as a voter."""
        return any(configuration.is_voter(node) for configuration in self._deciding())

    def missing(self, counted: Sequence[NodeCopy]) -> str:
        """Why these logs do not prove that nothing acknowledged is missing; "" when they do."""
        if self.known is None or not self.known.voters:
            return "no log at hand states a committed configuration, so the voters are unknown"
        if counted and counted[0].log.last_index < self.floor:
            return f"entry {self.floor} is known to be committed, and no voter that counts holds it"
        nodes = {one.node for one in counted}
        for configuration in self._deciding():
            for half in _halves(configuration):
                needed = len(half) - _majority(half) + 1
                if len(half & nodes) < needed:
                    return (
                        f"{needed} voters of {voter_list(half)} in configuration {configuration.index} have to count; at hand "
                        f"are {voter_list(half & nodes)}, missing {voter_list(half - nodes)}"
                    )
        return ""

    def last_resort(self) -> NodeCopy:
        """Nothing is proved: the best end of all that can be reached from a snapshot or the beginning."""
        reachable = [one for one in self.held if self._is_reachable(one)]
        return (reachable or self.held)[0]

    def _is_reachable(self, one: NodeCopy) -> bool:
        """A log that is being refilled may begin at an entry that nothing at hand leads to."""
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

    def _why(self, chosen: NodeCopy, counted: Sequence[NodeCopy], missing: str) -> str:
        end = f"node {chosen.node} has the best end, term {chosen.log.last_term} index {chosen.log.last_index}"
        if missing:
            return f"{end}, of all logs at hand; it is not proved that nothing acknowledged is missing: {missing}"
        among = ", ".join(str(one.node) for one in sorted(counted, key=lambda one: one.node))
        return f"{end}, of the voters {among}, which meet every majority"

    def _use(self, one: NodeCopy, chosen: NodeCopy) -> tuple[Use, str]:
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
    committed = [c for log in logs for c in log.configurations if is_committed(c, log)]
    known = max(committed, key=lambda c: (c.index, c.term), default=None)
    after = known.index if known is not None else 0
    upto = _seen(logs)
    later = {(c.index, c.term): c for log in logs for c in log.configurations if c.index > max(after, upto)}
    return known, tuple(later[place] for place in sorted(later))


def _seen(logs: Iterable[GroupEvidence]) -> int:
    """Up to here a log states every committed configuration, or a later one."""
    return max((log.commit for log in logs if not log.unseen), default=0)


def _cluster_logs(nodes: Sequence[NodeEvidence]) -> dict[str, GroupEvidence]:
    return {node.directory: node.groups.get(CLUSTER_GROUP, EMPTY) for node in nodes}


def _doubt_of_log(log: GroupEvidence, has_configuration: bool, seen: int) -> str:
    if log.last_index == 0 or (has_configuration and not log.configurations):
        return "it holds nothing of this group: its disk was emptied, or it never received anything"
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


def voter_list(nodes: Iterable[int]) -> str:
    """Node ids as text, ascending."""
    return "{" + ", ".join(map(str, sorted(nodes))) + "}" if nodes else "none"


def group_name(group: int) -> str:
    """Name of a group as text."""
    return "cluster group" if group == CLUSTER_GROUP else f"partition {group}"
