"""One replicated group as a small model, by seed: what each node's directory would say, and what was acknowledged.

One rule: Raft's rules and no others, in steps that nothing interrupts: elections, replication of any prefix to any node, commits,
changes of one voter (joint from an even number), declarations of failure, nodes that mark themselves, are emptied, filled and
promoted, lost disks, copies taken aside. No files: `tests.replay.histories` plays with real ones.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field, replace

from cmdlog.wal.fault_log import FaultRecord, make_record
from replay.log.evidence import BlockRun, GroupEvidence, NodeEvidence, SnapshotEvidence, StatedConfiguration
from replay.log.known_lives import PINNED, KnownLife, known_lives

CLUSTER = b"cluster-number-1"
Members = tuple[frozenset[int], frozenset[int], frozenset[int]]  # voters, outgoing, learners


@dataclass(frozen=True, slots=True)
class MemberEntry:
    """What a MEMBER entry says; stages as in the product."""

    node: int
    stage: str
    life: int  # 0: not known yet
    former: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Entry:
    """`members` of a configuration entry, `member` of a MEMBER entry. `number` is never given twice."""

    term: int
    number: int
    members: Members | None = None
    member: MemberEntry | None = None


@dataclass(slots=True)
class Node:
    """A node, and its directory."""

    id: int
    log: list[Entry] = field(default_factory=list)  # index 1 is log[0]
    term: int = 0
    vote: int | None = None
    commit: int = 0
    base: int = 0  # entries up to here are only in a snapshot
    faults: list[FaultRecord] = field(default_factory=list)
    leads: int = 0  # the term that it leads in
    match: dict[int, int] = field(default_factory=dict)
    up: bool = True
    empty: bool = False  # has lost what it acknowledged, and has not been made a voter since
    life: int = 1  # of its disk
    pins: dict[int, int] = field(default_factory=dict)  # node -> the life that it speaks with; others: the first one
    genesis: bool = False  # made as if the cluster began, and refused by all others

    def members(self) -> Members:
        """The configuration in force: the newest in the log."""
        return next((e.members for e in reversed(self.log) if e.members), (frozenset(), frozenset(), frozenset()))

    def pin(self, node: int) -> int:
        """The life of that node that this one speaks with."""
        return self.pins.get(node, 1)

    def speaks_with(self, other: Node) -> bool:
        """Whether both take the other for the node that it says it is."""
        return not (self.genesis or other.genesis) and self.pin(other.id) == other.life and other.pin(self.id) == self.life

    def stated(self, node: int) -> tuple[int, MemberEntry] | None:
        """The newest MEMBER entry of a node in the log, with its index."""
        found = ((n, e.member) for n, e in reversed(list(enumerate(self.log, 1))) if e.member and e.member.node == node)
        return next(found, None)

    def admit_stated(self) -> None:
        """Pins what is known committed."""
        for entry in self.log[: self.commit]:
            if entry.member and entry.member.stage in ("admitted", "member"):
                self.pins[entry.member.node] = entry.member.life

    def lives(self) -> dict[int, KnownLife]:
        """As a directory says them: the book of peers, and the log."""
        book = {n: KnownLife(name_of(n, self.pin(n)), frozenset(), PINNED) for n in range(1, 10) if n != self.id}
        log = dict[int, KnownLife]()
        for index, entry in enumerate(self.log, 1):
            if (of := entry.member) is not None:
                former = frozenset(name_of(of.node, life) for life in of.former)
                log[of.node] = KnownLife(name_of(of.node, of.life) if of.life else "", former, (entry.term, index))
        return known_lives(log, book if self.log and not self.genesis else {})

    def place(self, index: int) -> tuple[int, int]:
        """(term, checksum) of an entry."""
        return (self.log[index - 1].term, self.log[index - 1].number) if index else (0, 0)

    def directory(self, name: str) -> NodeEvidence:
        """What `gather` would find."""
        log, last = self.log, len(self.log)
        stated = [StatedConfiguration(n, e.term, *e.members) for n, e in enumerate(log, 1) if e.members]
        committed = [c for c in stated if c.index <= self.commit]
        newest = tuple(stated[max(len(committed) - 1, 0) :])
        run = BlockRun(1, 9, self.base, *self.place(self.base), last, *self.place(last))
        of = GroupEvidence(
            group=0, term=self.term, commit=self.commit, last_index=last, last_term=self.place(last)[0],
            last_checksum=self.place(last)[1], last_txn=0, configurations=newest, runs=(run,), vote=self.vote,
        )  # fmt: skip
        snapshot = SnapshotEvidence("s", 0, self.base, *self.place(self.base))
        return NodeEvidence(
            name, CLUSTER.hex(), self.id, name_of(self.id, self.life), {0: of} if log or self.term else {}, tuple(self.faults),
            snapshots=(snapshot,) if self.base else (), lives=self.lives(),
            met=frozenset() if self.genesis else frozenset(range(1, 10)),
        )  # fmt: skip

    @property
    def marked(self) -> bool:
        """Whether it has stated that it is being filled anew."""
        return bool(self.faults) and self.id in self.faults[-1].failed

    def copy(self) -> Node:
        """As it is now, to be put back later."""
        return replace(self, log=list(self.log), faults=list(self.faults), match={}, pins=dict(self.pins))


def name_of(node: int, life: int) -> str:
    """An incarnation."""
    return f"life-{node}-{life}"


class Group:
    """Some nodes, a few of which vote."""

    def __init__(self, seed: int, nodes: int, voters: int) -> None:
        self.rng = random.Random(seed)
        self.replacing = 24.0  # how often something happens to a node that is replaced, against the other things
        self.first = first = Entry(1, 1, (frozenset(range(1, voters + 1)), frozenset(), frozenset()))
        self.nodes = {n: Node(n, [first] if n <= voters else []) for n in range(1, nodes + 1)}
        self.acknowledged: list[Entry] = [first]  # by index
        self.lineage: list[FaultRecord] = []
        self.copies: list[Node] = []
        self.replaced: list[Node] = []  # earlier lives; those that are up still take part where they are let
        self.numbers = 1
        self.done = Counter[str]()  # what happened how often, for who doubts that anything does

    def step(self) -> None:
        """Something happens."""
        what = self.rng.choices(
            [
                self.elect,
                self.append,
                self.spread,
                self.change,
                self.fail,
                self.rejoin,
                self.lose,
                self.take_copy,
                self.toggle,
                self.replace_disk,
            ],
            [12, 16, 40, 3, 12, 24, 0.15, 1, 2, self.replacing],
        )[0]
        what()

    # -- Raft --------------------------------------------------------------------------------------------------------------

    def elect(self) -> None:
        """Somebody asks a random part of the others."""
        candidate = self.some()
        voters, outgoing, _ = candidate.members()
        if candidate.empty or candidate.id not in voters | outgoing or (self.leader() and self.rng.random() < 0.85):
            return
        candidate.term, candidate.vote, candidate.leads = candidate.term + 1, candidate.id, 0
        granted = {candidate.id}
        for node in self.part():
            if (
                node.empty
                or node is candidate
                or not node.speaks_with(candidate)
                or node.term > candidate.term
                or (node.term == candidate.term and node.vote)
            ):
                continue
            node.leads = 0
            node.term, node.vote = candidate.term, None
            if (node.log[-1].term if node.log else 0, len(node.log)) <= (candidate.log[-1].term, len(candidate.log)):
                node.vote = candidate.id
                granted.add(node.id)
        if self.is_quorum(candidate.members(), granted):
            candidate.leads, candidate.match = candidate.term, {}
            self.put(candidate)
            self.done["elected"] += 1

    def append(self) -> None:
        """A leader, perhaps a deposed one that does not know it, takes an entry."""
        if (leader := self.leader()) is not None:
            self.put(leader)

    def put(self, leader: Node, members: Members | None = None, member: MemberEntry | None = None) -> None:
        """Appends at the leader."""
        self.numbers += 1
        leader.log.append(Entry(leader.term, self.numbers, members, member))
        self.count(leader)

    def spread(self) -> None:
        """A leader sends some of its log to some nodes."""
        leader = self.leader()
        for node in self.part() if leader is not None else ():
            if leader is not None and node is not leader and leader.leads:
                self.send(leader, node)

    def send(self, leader: Node, node: Node) -> None:
        """One message, which arrives, and its answer."""
        voters, outgoing, learners = leader.members()
        if node.id not in voters | outgoing | learners or (node.empty and not (node.id in learners and node.marked)):
            return
        if not leader.speaks_with(node):
            return
        if node.term > leader.term:
            leader.leads = 0
            return
        if node.term < leader.term:
            node.term, node.vote = leader.term, None
        node.leads = 0
        upto = len(leader.log)
        if self.rng.random() < 0.4:
            upto = self.rng.randint(min(len(node.log), upto), upto)
        if not node.log and self.rng.random() < 0.5:
            node.base = min(upto, leader.commit)
        same = 0
        while same < min(upto, len(node.log)) and node.log[same] == leader.log[same]:
            same += 1
        if same < upto:
            assert same >= node.commit, "a committed entry would be overwritten"
            node.log[same:] = leader.log[same:upto]
        leader.match[node.id] = max(leader.match.get(node.id, 0), upto)
        self.count(leader)
        node.commit = max(node.commit, min(leader.commit, upto))
        node.admit_stated()

    def count(self, leader: Node) -> None:
        """The leader commits what a majority holds, and answers the callers."""
        for index in range(len(leader.log), leader.commit, -1):
            holds = {leader.id} | {n for n, match in leader.match.items() if match >= index}
            if leader.log[index - 1].term == leader.term and self.is_quorum(leader.members(), holds):
                leader.commit = index
                known = min(index, len(self.acknowledged))
                assert leader.log[:known] == self.acknowledged[:known], "the model itself lost an acknowledged entry"
                self.acknowledged += leader.log[known:index]
                leader.admit_stated()
                break
        voters, outgoing, learners = leader.members()
        if outgoing and leader.log[leader.commit - 1 :] and self.configured(leader):
            self.put(leader, (voters, frozenset(), learners))
            self.done["joint left"] += 1

    @staticmethod
    def is_quorum(members: Members, nodes: set[int]) -> bool:
        """Of both halves."""
        return all(len(half & nodes) * 2 > len(half) for half in members[:2] if half)

    # -- members -----------------------------------------------------------------------------------------------------------

    def configured(self, leader: Node) -> bool:
        """Whether it may change members: the last change is committed, and an entry of its own term."""
        newest = max(n for n, entry in enumerate(leader.log, 1) if entry.members)
        return newest <= leader.commit and leader.log[leader.commit - 1].term == leader.term

    def reconfigure(self, leader: Node, voters: frozenset[int], learners: frozenset[int]) -> None:
        """One voter more or less: from an even number through a joint configuration."""
        before, outgoing, _ = leader.members()
        if not self.configured(leader) or outgoing or not voters:
            return
        joint = before if len(before) % 2 == 0 or self.rng.random() < 0.2 else frozenset[int]()
        self.put(leader, (voters, joint, learners - joint))
        self.done["joint" if joint else "simple"] += 1

    def change(self) -> None:
        """Growth, by a learner first; or a voter leaves for good."""
        leader, node = self.leader(), self.some()
        if leader is None or node is leader:
            return
        voters, _, learners = leader.members()
        if node.id in voters:
            self.reconfigure(leader, voters - {node.id}, learners)
        elif node.id not in learners and not node.log and leader.stated(node.id) is None:
            self.reconfigure(leader, voters, learners | {node.id})
        elif (
            node.id in learners
            and leader.match.get(node.id, 0) >= leader.commit
            and not node.empty
            and not self.is_failed(node.id)
        ):
            self.reconfigure(leader, voters | {node.id}, learners - {node.id})

    def is_failed(self, node: int) -> bool:
        """As the newest record says."""
        return bool(self.lineage) and node in self.lineage[-1].failed

    def fail(self) -> None:
        """A voter is declared failed: demoted; when that is committed, the leader writes the set and others take it over."""
        leader, node = self.leader(), self.some(up=None)
        if leader is None or node is leader:
            return
        voters, outgoing, learners = leader.members()
        if node.id in voters:
            self.reconfigure(leader, voters - {node.id}, learners | {node.id})
        elif not outgoing and node.id in learners and not self.is_failed(node.id) and self.configured(leader) and node.log:
            self.write(leader, (self.lineage[-1].failed if self.lineage else frozenset()) | {node.id})

    def write(self, author: Node, failed: frozenset[int]) -> None:
        """The author first, then any others."""
        author.faults = list(self.lineage)
        last = self.lineage[-1] if self.lineage else None
        self.lineage.append(make_record(CLUSTER, last, failed=failed, epoch=0, term=author.term, author=author.id,
                                        demotions=((0, author.commit, author.term),)))  # fmt: skip
        author.faults = list(self.lineage)
        self.done["declared"] += 1
        self.tell()

    def tell(self) -> None:
        """Some take the records over."""
        for node in self.part():
            if not node.empty or node.marked:
                node.faults = list(self.lineage)

    def rejoin(self) -> None:
        """The next step of a failed node's way back: mark, discard; promoted when it is filled; the set without it."""
        leader, node = self.leader(), self.some()
        if leader is None or node is leader:
            return
        voters, outgoing, learners = leader.members()
        if node.id not in voters | outgoing | learners or not self.configured(leader):
            return
        if node.id in learners and not node.marked and (node.empty or self.is_failed(node.id)):
            last = self.lineage[-1] if self.lineage else None
            failed = (last.failed if last else frozenset()) | {node.id}
            self.lineage.append(make_record(CLUSTER, last, failed=failed, epoch=0, term=node.term, author=node.id))
            node.faults = list(self.lineage)
            node.log, node.commit, node.base, node.empty, node.leads = [], 0, 0, True, 0
            leader.match.pop(node.id, None)
            for other in self.nodes.values():
                other.match.pop(node.id, None)
            self.tell()
            self.done["marked"] += 1
        elif node.id in learners and node.empty and len(node.log) >= leader.commit > 0 and self.is_failed(node.id):
            if leader.match.get(node.id, 0) >= leader.commit:
                self.reconfigure(leader, voters | {node.id}, learners - {node.id})
                if node.id in leader.members()[0]:
                    node.empty = False
        elif node.id in voters and not node.empty and self.is_failed(node.id):
            self.write(leader, self.lineage[-1].failed - {node.id})
            self.done["back"] += 1
            node.faults = list(self.lineage)

    # -- another life of a disk ----------------------------------------------------------------------------------------------

    def replace_disk(self) -> None:
        """The next step of the node that is being replaced, or the first one of some node: the cluster's reconciler."""
        leader = self.leader()
        if leader is None or not self.configured(leader) or leader.members()[1]:
            return
        stated = {n: found for n in self.nodes if (found := leader.stated(n)) is not None}
        if any(index > leader.commit for index, _ in stated.values()):
            return  # undecided
        busy = [of for _, of in stated.values() if of.stage != "member"]
        if busy:
            self.move_on(leader, busy[0])
            return
        node = self.some(up=None)
        if node.id == leader.id or node.id not in leader.members()[0] | leader.members()[2] or self.rng.random() < 0.9:
            return
        of = stated[node.id][1] if node.id in stated else MemberEntry(node.id, "member", leader.pin(node.id))
        self.put(leader, member=replace(of, stage="leaving_old"))
        self.done["replacing"] += 1

    def move_on(self, leader: Node, of: MemberEntry) -> None:
        """As the state of the node says."""
        voters, _, learners = leader.members()
        if of.stage == "leaving_old":
            if of.node in voters | learners:
                self.reconfigure(leader, voters - {of.node}, learners - {of.node})
            else:
                self.put(leader, member=replace(of, stage="expected", life=0, former=of.former | {of.life}))
        elif of.stage == "expected":
            self.numbers += 1
            self.put(leader, member=replace(of, stage="joining", life=self.numbers))
        elif of.stage == "joining":
            if of.node not in learners:
                self.reconfigure(leader, voters, learners | {of.node})
            else:
                self.put(leader, member=replace(of, stage="admitted"))
        elif self.nodes[of.node].life != of.life:
            self.copy_disk(of)
        elif of.node in voters:
            self.put(leader, member=replace(of, stage="member"))
            self.done["replaced"] += 1
        elif leader.match.get(of.node, 0) >= leader.commit and len(self.nodes[of.node].log) >= leader.commit:
            self.reconfigure(leader, voters | {of.node}, learners - {of.node})

    def copy_disk(self, of: MemberEntry) -> None:
        """The new life is made as a whole of what some node knows committed, its own admission included."""
        old, source = self.nodes[of.node], self.some()
        stated = source.stated(of.node)
        if source.id == of.node or source.empty or stated is None or stated[1] != of or stated[0] > source.commit:
            return
        log = list(source.log[: source.commit])
        new = Node(of.node, log, source.term, None, source.commit, source.commit, list(source.faults), life=of.life)
        if not old.empty and old.term >= new.term and self.rng.random() < 0.5:
            new.term, new.vote = old.term, old.vote  # what the old directory says is merged where it can be read
        new.pins = dict(source.pins)
        if not old.empty:
            old.up = old.up and self.rng.random() < 0.5
            self.replaced.append(old)
        elif old.genesis:
            self.replaced.append(old)
        self.nodes[of.node] = new
        new.admit_stated()
        for other in self.nodes.values():
            other.match.pop(of.node, None)
        self.done["copied"] += 1

    # -- disks -------------------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """A disk is emptied; the node takes part again only when it was demoted and marked itself."""
        node = self.some(up=None)
        self.done["lost"] += 1
        if len([n for n in self.nodes.values() if n.empty]) >= (len(self.nodes) - 1) // 2:
            return
        initial = self.first.members[0] if self.first.members is not None else frozenset[int]()
        genesis = self.rng.random() < 0.3 and node.id in initial and len(initial) > 1  # alone nothing would show it
        self.nodes[node.id] = Node(
            node.id, [self.first] if genesis else [], up=node.up, empty=True, genesis=genesis,
            life=self.numbers + 1000 if genesis else node.life, pins=node.pins,
        )  # fmt: skip
        for other in self.nodes.values():
            other.match.pop(node.id, None)

    def take_copy(self) -> None:
        """A directory is copied aside."""
        self.copies.append(self.some(up=None).copy())

    def toggle(self) -> None:
        """A node stops, or starts."""
        node = self.some(up=None)
        node.up, node.leads = not node.up or self.rng.random() < 0.4, 0

    # -- choosing ----------------------------------------------------------------------------------------------------------

    def some(self, *, up: bool | None = True) -> Node:
        """A node that is up; any node with None."""
        return self.rng.choice([n for n in self.nodes.values() if up is None or n.up] or list(self.nodes.values()))

    def part(self) -> list[Node]:
        """Some of those that are up."""
        return [n for n in (*self.nodes.values(), *self.replaced) if n.up and self.rng.random() < 0.7]

    def leader(self) -> Node | None:
        """One that thinks so; mostly the newest."""
        found = sorted((n for n in self.nodes.values() if n.up and n.leads and n.leads == n.term), key=lambda n: n.term)
        return None if not found else found[-1] if self.rng.random() < 0.8 else self.rng.choice(found)

    def holds_all(self, node: Node) -> bool:
        """Whether its log holds every acknowledged entry."""
        return node.log[: len(self.acknowledged)] == self.acknowledged
