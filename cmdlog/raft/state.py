"""The state of one node in one group, and the only functions that change its role.

One rule: only `become_*` changes `role`, and only they and a granted vote change `term` and `vote`. What a role does with
messages is in the module of its name; all of them work on this state and put what they want sent into one of its two mailboxes.
"""

from __future__ import annotations

import enum
import random
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import pairwise

from cmdlog.raft.configuration import Configuration, NodeId
from cmdlog.raft.entries import EntryLog, decoded_configurations
from cmdlog.raft.errors import BadConfiguration, Drop, InvariantBroken
from cmdlog.raft.messages import KIND_EMPTY, NO_INDEX, Entries, HardState, Message, SnapshotDescriptor
from cmdlog.raft.progress import FollowerProgress
from cmdlog.raft.reads import Reads
from cmdlog.raft.ready import EntriesWanted, GroupStatus, PeerStatus, PlacedProposals, ReadResult, Role, RoleReason, SoftState
from cmdlog.raft.settings import Pace, RaftSettings
from cmdlog.wal.ids import Index, Term

EMPTY_KINDS = bytes([KIND_EMPTY])


class Franchise(enum.Enum):
    """Whether this node may vote and campaign at all."""

    FULL = "full"
    NO_WORD = "no_word"  # a peer has met a later start of its directory: what it takes it has, but it neither votes nor campaigns
    NONE = "none"  # its disk may have forgotten a vote (wiped, restored from a backup): it is as good as gone, and silent


@dataclass(frozen=True, slots=True)
class Restored:
    """What was durable. A new group starts on every first member from a manifest at index 0 with the first configuration; a node
    that joins starts from nothing.

    `entries` may begin at or before the manifest: what the log still has there is kept for followers that are a little behind.
    When they do not begin at index 1, the first one itself is given up: its term says where the log in memory begins.

    A node whose disk was replaced gets its word back by `admitted`: the committed entry that made it a member again after a
    committed configuration without it. Those who lack that entry take its word for that of its lost disk; so it has none in an
    earlier term, and gives none in an election before its own log has the entry, which every log that it votes for then has too.
    """

    hard_state: HardState = field(default_factory=HardState)
    manifest: SnapshotDescriptor = field(default_factory=SnapshotDescriptor)
    entries: Entries | None = None
    franchise: Franchise = Franchise.FULL
    admitted: PlacedProposals | None = None  # given at every start from then on
    applied: Index = NO_INDEX  # what the state machine has by itself: entries up to there are not handed out again


@dataclass(slots=True)
class Handover:
    """Leadership on its way to `target`; given up at tick `deadline`."""

    target: NodeId
    deadline: int


class State:
    """One node's part of one group."""

    __slots__ = (
        "admitted",
        "after",
        "asked_at",
        "contradicted",
        "copying",
        "dirty",
        "drops",
        "elapsed",
        "failed",
        "fetch_for",
        "fetched",
        "fetched_for",
        "fetching",
        "franchise",
        "give_way_from",
        "handed_hard",
        "handed_soft",
        "handover",
        "heartbeat_elapsed",
        "id",
        "judged",
        "leader",
        "log",
        "manifest",
        "now",
        "offered_copy",
        "offered_fetch",
        "pace",
        "progress",
        "proposed",
        "proposed_bytes",
        "read_number",
        "read_results",
        "reads",
        "reason",
        "removed",
        "removed_at",
        "rng",
        "role",
        "settings",
        "soft_changed",
        "term",
        "ticks",
        "timeout",
        "vote",
        "votes",
        "write_number",
    )

    def __init__(self, node: NodeId, *, rng: random.Random, settings: RaftSettings, restored: Restored) -> None:
        self.id, self.rng, self.settings, self.franchise = node, rng, settings, restored.franchise
        self.admitted = restored.admitted
        self.failed: InvariantBroken | None = None
        self.drops: Counter[Drop] = Counter()
        self.contradicted = NO_INDEX  # a committed entry of this log that a leader has not
        self.now: list[Message] = []  # may leave at once
        self.after: list[Message] = []  # built on what is being written
        self.read_results: list[ReadResult] = []
        self.dirty = True  # something may have come for a Ready
        self.ticks = self.asked_at = self.give_way_from = 0  # when votes were asked for; for the last see `roles.voting`
        self.pace = Pace(settings.election_ticks)
        self.manifest = restored.manifest  # Invariant: manifest.index >= log.base; what a far follower is given
        self.copying: SnapshotDescriptor | None = None  # the one that was offered last
        self.offered_copy: SnapshotDescriptor | None = None  # for the next Ready
        self._restore(restored)
        self.read_number = rng.getrandbits(62)  # of the latest read that was passed on; begins at random with every start
        self.write_number = rng.getrandbits(48)  # of the latest write
        self.leader: NodeId | None = None
        self.role, self.reason = Role.FOLLOWER, RoleReason.STARTED
        self.removed_at = Index(0)  # a peer knows of a committed configuration there, and that this node is in none from there on
        self.removed = False  # whether the committed configuration `judged` is without this node
        self.handed_soft = SoftState(self.role, self.leader, self.removed, self.reason)  # what the caller knows
        self.judged = Configuration()
        self.reads = Reads()
        self._leave_role()
        self._wait_for_nobody()

    def _restore(self, restored: Restored) -> None:
        hard, self.log = restored.hard_state, EntryLog(restored.manifest)
        self.term, self.vote = hard.term, hard.vote
        self.handed_hard = hard
        if (entries := restored.entries) is not None and entries.last >= self.log.base and entries.terms:
            if entries.first > self.log.base + 1:
                raise self.broken("a log begins where its snapshot ends", f"{entries.first} after {self.log.base}")
            if any(later < earlier for earlier, later in pairwise(entries.terms)):
                raise self.broken("terms never fall along the log", f"entries {entries.first}..{entries.last}")
            try:
                self.log.restore(entries)
            except BadConfiguration as error:
                raise self.broken("a configuration entry of the log can be read", str(error)) from error
        if hard.commit > self.log.last:
            raise self.broken("what was committed is in the log", f"commit {hard.commit}, last {self.log.last}")
        if self.log.last_term > hard.term:
            raise self.broken("no entry is newer than the term", f"entry of {self.log.last_term}, term {hard.term}")
        self.log.commit_to(hard.commit)
        if restored.applied > self.log.handed:
            if restored.applied > self.log.stable:
                raise self.broken("what was applied is in the log", f"applied {restored.applied}, last {self.log.last}")
            self.log.commit_to(restored.applied)  # nothing else is ever applied
            self.log.handed = restored.applied
        if (admitted := self.admitted) is not None and admitted.term > self.term:
            self.term, self.vote = admitted.term, None  # leaders of earlier terms may count on the lost disk

    # What holds now

    @property
    def configuration(self) -> Configuration:
        """The configuration in force: the last one in the log, committed or not."""
        return self.log.configurations[-1][1]

    @property
    def configuration_index(self) -> Index:
        """Where it is in the log."""
        return self.log.configurations[-1][0]

    @property
    def promotable(self) -> bool:
        """Whether this node may campaign: a learner, a removed node and one that may have forgotten a vote may not.

        A node whose removal is not known to be committed must, although it does not count itself: those who stay may lack the
        entry that removes it, and then only it can win and bring that entry to them (dissertation, section 4.2.2).
        """
        if self.contradicted or (self.removed_at and self.removed_at >= self.configuration_index):
            return False  # those who stay have the entry, so nobody needs this node any more
        return self.enfranchised and any(value.is_voter(self.id) for value in self.needed_configurations())

    @property
    def enfranchised(self) -> bool:
        """Whether this node has a word in elections: its disk forgot nothing, or its log has what made it a member again."""
        if self.franchise is not Franchise.FULL:
            return False
        admitted, log = self.admitted, self.log
        return admitted is None or log.base >= admitted.first or log.term_at(admitted.first) == admitted.term

    @property
    def term_committed(self) -> bool:
        """Whether an entry of the present term is committed: what a leader needs before reads and changes (dissertation 6.4)."""
        return self.log.term_at(self.log.commit) == self.term

    def take_entries(self, bytes_max: int | None) -> tuple[Entries | None, Entries | None]:
        """The next entries to write and the next to apply, as far as they fit (see `ready`)."""
        log, settings = self.log, self.settings
        most, limit = settings.ready_entries_max, settings.ready_bytes_max
        if bytes_max is not None and bytes_max < limit:
            limit = bytes_max
            if limit <= 0:
                return None, None
        entries = log.take_unstable(most, limit) if log.taken < log.last else None
        committed = log.take_committed(most, limit) if log.handed < log.commit else None
        if log.held_bytes > settings.log_bytes_max:
            log.evict(settings.log_bytes_max)
        return entries, committed

    def take_soft_state(self) -> SoftState | None:
        """The soft state, when it has changed since it was last taken."""
        self.soft_changed = False
        at, configuration = self.log.configurations[-1]
        if configuration is not self.judged and at <= self.log.commit:
            self.judged = configuration
            self.removed = bool(configuration.voters) and self.id not in configuration.members()
        if self.removed_at and self.removed_at >= at:
            self.removed = True
        handed = self.handed_soft
        if handed.role is self.role and handed.leader == self.leader and handed.removed is self.removed:
            return None
        self.handed_soft = SoftState(self.role, self.leader, self.removed, self.reason)
        return self.handed_soft

    def status(self) -> GroupStatus:
        """The group as this node sees it now; changes nothing."""
        log, handover = self.log, self.handover
        peers = tuple(_peer_status(peer, progress, self.ticks) for peer, progress in self.progress.items())
        return GroupStatus(
            self.id, self.role, self.term, self.leader, self.removed, log.base, log.handed, log.stable, log.commit, log.last,
            self.configuration, handover.target if handover is not None else None, self.copying, peers,
            self.settings.election_ticks, self.pace.sync_ticks, self.pace.answer_ticks, self.pace.extra_ticks,
        )  # fmt: skip

    def needed_configurations(self) -> list[Configuration]:
        """The last configuration that is known to be committed, and those after it."""
        committed = next(at for at, _ in reversed(self.log.configurations) if at <= self.log.commit)
        return [value for at, value in self.log.configurations if at >= committed]

    def broken(self, invariant: str, detail: str) -> InvariantBroken:
        """Ends this group; the caller raises what it gets."""
        self.dirty = True  # the next call of `ready` raises it
        self.failed = InvariantBroken(invariant, f"node {self.id}: {detail}")
        return self.failed

    def drop(self, reason: Drop) -> None:
        """Counts a message that nothing is done with."""
        self.drops[reason] += 1

    def decoded(self, entries: Entries) -> list[tuple[Index, Configuration]] | None:
        """The configurations among a peer's entries, or None (counted) when one is none."""
        try:
            return decoded_configurations(entries)
        except BadConfiguration:
            self.drop(Drop.BAD_CONFIGURATION)
            return None

    # Changes of role

    def _leave_role(self) -> None:
        """Forgets what only the present role or leader made sense of, and begins a new wait."""
        self.read_results += [ReadResult(context, None) for context in self.reads.contexts(self.id)]
        self.reads = Reads()
        self.votes: dict[NodeId, bool] = {}
        self.progress: dict[NodeId, FollowerProgress] = {}  # ascending by node: the order in which messages are made
        self.handover: Handover | None = None
        self.fetching: EntriesWanted | None = None  # what the caller reads from its log
        self.offered_fetch: EntriesWanted | None = None  # for the next Ready
        self.fetched: Entries | None = None  # what it read last
        self.fetch_for = self.fetched_for = NodeId(0)  # the peer that the read is for, and the one that the last was for
        self.proposed: deque[tuple[Index, int]] = deque()  # (last index, bytes) of what is not committed yet
        self.proposed_bytes = 0
        self.restart_timer()
        self.dirty = self.soft_changed = True

    def restart_timer(self, extra_ticks: int = 0) -> None:
        """A new random wait, so that equal time-outs do not split votes for ever (paper, section 5.2)."""
        election, patience = self.settings.election_ticks, self.settings.patience
        self.elapsed = self.heartbeat_elapsed = 0
        self.timeout = election * (1 + patience) + self.rng.randrange(election) + extra_ticks

    def become_follower(self, term: Term, leader: NodeId | None, reason: RoleReason = RoleReason.STEPPED_DOWN) -> None:
        """Follows `leader`, or the one that will win. A new term has no vote yet.

        News of a term without leader ends no wait (paper, section 5.2: only a leader or a granted vote does): else a fast
        candidate with a worse log, which asks again and again, would keep the one that can win from ever campaigning.
        """
        if term < self.term:
            raise self.broken("terms never fall", f"{self.term} to {term}")
        waited = self.elapsed, self.timeout
        goes_on = term > self.term and leader is None and self.role is not Role.LEADER
        self._leave_role()
        if goes_on:
            self.elapsed, self.timeout = waited
        if term > self.term:
            self.term, self.vote = term, None
        if leader is not None:
            self.pace.undecided = 0
        self.role, self.leader, self.reason = Role.FOLLOWER, leader, reason
        self._wait_for_nobody()

    def _wait_for_nobody(self) -> None:
        """A single voter campaigns with its next tick; as a candidate it waits for its own disk, as any other."""
        if all(value.voters == (self.id,) and not value.joint for value in self.needed_configurations()):
            self.timeout = 1

    def become_pre_candidate(self, reason: RoleReason) -> None:
        """Asks whether it would win; neither term nor vote change (dissertation, section 9.6)."""
        self._leave_role()
        self.role, self.leader, self.reason = Role.PRE_CANDIDATE, None, reason
        self.votes[self.id] = True

    def become_candidate(self, term: Term | None = None, *, reason: RoleReason) -> None:
        """Spends a term, the next one, on a campaign. Its own vote counts when it is durable, like any other (`core.advance`)."""
        self._leave_role()
        self.term, self.vote = Term(self.term + 1) if term is None else term, self.id
        self.role, self.leader, self.reason = Role.CANDIDATE, None, reason

    def become_leader(self) -> None:
        """Leads; begins its term with an empty entry, because it may commit earlier terms' entries only after one of its own."""
        self._leave_role()
        self.role, self.leader = Role.LEADER, self.id
        self.copying = self.offered_copy = None  # its log has everything committed, so it needs no copy (paper, section 5.4)
        self.refresh_progress(self.log.last)
        size = sum(map(len, self.log.payloads[self.log.commit - self.log.held :]))
        self.count_proposed(size)
        self.log.append(Entries(Index(self.log.last + 1), [self.term], EMPTY_KINDS, [b""]), [])

    # What only a leader keeps

    def refresh_progress(self, following: Index) -> None:
        """One progress per peer that gets the log: every member of the configurations from the last committed one on, so that a
        removed node still gets the entry that says so. New peers are sent what follows index `following`."""
        settings = self.settings
        wanted = {member for value in self.needed_configurations() for member in value.members()}
        kept = self.progress
        self.progress = {}
        for node in sorted(wanted - {self.id}):
            self.progress[node] = kept.get(node) or FollowerProgress(
                following,
                heard=self.ticks,
                messages_max=settings.window_messages_max,
                bytes_max=settings.window_bytes_max,
            )
        if self.handover is not None and self.handover.target not in self.progress:
            self.handover = None

    def active(self) -> set[NodeId]:
        """The nodes heard from within the last election time-out, this one included."""
        since = self.ticks - self.settings.election_ticks
        return {self.id, *(peer for peer, progress in self.progress.items() if progress.heard > since)}

    def live(self) -> set[NodeId]:
        """Of the active nodes, those that have said something in this leader's own term: nothing is known of others yet."""
        since = self.ticks - self.settings.election_ticks
        return {self.id, *(peer for peer, each in self.progress.items() if each.answered and each.heard > since)}

    def best_successor(self) -> NodeId | None:
        """The live voter, but for this node, whose log is known to reach furthest."""
        live, configuration = self.live(), self.configuration
        voters = [peer for peer in self.progress if peer in live and configuration.is_voter(peer)]
        return max(voters, key=lambda peer: self.progress[peer].match, default=None)

    def count_proposed(self, size: int) -> None:
        """Counts bytes as proposed until the present end of the log is committed."""
        self.proposed.append((self.log.last, size))
        self.proposed_bytes += size


def _peer_status(peer: NodeId, progress: FollowerProgress, now: int) -> PeerStatus:
    silent = now - progress.heard if progress.answered else None
    return PeerStatus(peer, progress.match, progress.next, progress.sending, silent, progress.in_flight_bytes, progress.manifest)
