"""The driver of consensus: it feeds the log with what all groups want written, and gives back what is durable and committed.

One rule: everything here happens under one lock, in the order of the log's blocks. What was built on a write leaves, is committed
or is answered only when that write and all before it are durable (`cmdlog.raft`, duties 1 to 5).

    a call      machine -> propose -> collect -----------------> round -> block -> durable -> advance -> committed -> machine
    a message   network -> step    -> collect -> sent at once                    `-> sent after the write

A *round* is what all groups want at one moment. It goes into one block where it fits, else into consecutive ones: a prefix is
legal on disk, since nothing of it was acknowledged; the round counts as durable with its last block. A round that writes nothing
is durable with the one before it.

The log pulls (`RecordSource`), so a block closes exactly when a log thread is free, and takes whatever has come until then. The
log's threads call, and the network's, which brings time and messages. Nothing in here blocks. Locks: driver, machine, log.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cmdlog.cluster.entry_records import LAST_ENTRY_KIND, EntryBlocks, check_entries, place_of
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.group_transfer import under_offer
from cmdlog.cluster.replicated_machine import GroupRequest, GroupStanding, Machine, Watcher
from cmdlog.cluster.rounds import BlockOfRounds, CommitMarks, RoundQueue, WaitingRound, records_of_round
from cmdlog.raft import InvariantBroken, ProposalRefused, RaftCore
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import KIND_CONFIGURATION, Append, Bundle, Executed, Fitness, Message
from cmdlog.raft.multi_raft import Parcel, RaftGroups, Round
from cmdlog.raft.ready import SoftState
from cmdlog.wal.errors import WalError
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import Index, PartitionId

KEPT_ENTRIES: Final = 4096  # in memory before what is committed, for followers that lag a little
ROUND_OVERHEAD_BYTES: Final = 256  # of each group in a round: hard state, empty entry, commit mark


class Replication:
    """See the module. The log's `RecordSource`."""

    def __init__(
        self,
        groups: RaftGroups,
        machine: Machine,
        *,
        send: Callable[[list[Parcel]], None],
        kick: Callable[[], None],
        marks: ExecutedMarks,
        states: GroupStates,
        entry_blocks: EntryBlocks,
    ) -> None:
        """`send` takes parcels for peers and never blocks; `kick` tells the log that there is something to take; `states`: every
        group as the log has it; `entry_blocks`: where its entries lie."""
        self.groups, self._machine = groups, machine  # groups: under the lock
        self._watchers: list[Watcher] = []
        self._send, self._kick, self.waits, self.lax = send, kick, True, False  # no answer before its block is durable
        self.lock = threading.RLock()
        self._waiting = RoundQueue()
        self._unwritten: deque[BlockOfRounds] = deque()
        self._undurable: deque[BlockOfRounds] = deque()
        self._votes = dict(states.votes)
        self._marks, self._executed = CommitMarks(), marks
        self.entry_blocks = entry_blocks  # read it under the lock
        self.marked = {group: state.commit for group, state in states.by_partition.items()}  # as durable marks state them
        self._views: dict[int, GroupStanding] = {}
        self._wants_block = self._offered = False  # offered: leadership of some group is on its way
        self.holds_proposals = False  # what the machine has stays there
        self.failure: BaseException | None = None
        self.bad_entries = 0  # messages of peers whose entries were not what they said

    def watch(self, watcher: Watcher) -> None:
        """It learns of changes of leaders, and says what is to be asked of groups then. Before the log is started."""
        self._watchers.append(watcher)

    # -- time, peers, requests -------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """One unit of time has passed."""
        with self.lock:
            if self.failure is None:
                self.groups.tick()
                self._pump()
                self._executed.find_contradictions(self.groups.cores)
                for watcher in self._watchers:
                    self._ask_each(watcher.ticked(self._views))
                self._pump()
                if parcels := self._executed.due(self.groups.node, self._peers):
                    self._send(parcels)
                if marks := self._marks.pass_tick(idle=not self._waiting.rounds and not self._undurable):
                    self._add_round(WaitingRound(0, deque(marks)))
        if self._wants_block:
            self.wake()

    def receive(self, messages: Sequence[tuple[int, Message | Bundle]]) -> None:
        """Messages of one peer, in order."""
        with self.lock:
            if self.failure is None:
                for group, message in messages:
                    self._step(PartitionId(group), message)
                self._pump()
        if self._wants_block:
            self.wake()

    def ask(self, group: int, request: Callable[[RaftCore], Any]) -> Any:
        """Runs a request on one group, and does what follows from it.

        Raises: KeyError when the group is not here or has ended; what the request raises.
        """
        return self.ask_groups(lambda groups: groups.ask(PartitionId(group), request))

    def ask_groups(self, request: Callable[[RaftGroups], Any]) -> Any:
        """Runs a request on all groups, and does what follows from it, in one round. Raises: what the request raises."""
        try:
            with self.lock:
                answer = request(self.groups)
                self._pump()
        finally:
            if self._wants_block:
                self.wake()
        return answer

    def hold_proposals(self) -> None:
        """Nothing is proposed before `let_propose`: what is under way can come to its end."""
        self.holds_proposals = True

    def let_propose(self) -> None:
        """What the machine has goes into the log again."""
        self.holds_proposals = False
        self.wake()

    def wake(self) -> None:
        """The log is to take what machine and rounds have for it."""
        self._wants_block = False
        try:  # noqa: SIM105 -- on the path of every block
            self._kick()
        except WalError:
            pass  # it has failed, or is closed: `failed` answers what was placed

    def ends(self) -> dict[int, tuple[int, int]]:
        """Of every group its term, and the index that its next entry gets if this node proposes it."""
        with self.lock:
            return {group: (core.term, core.log.last + 1) for group, core in self.groups.cores.items()}

    @property
    def last_txn(self) -> int:
        """The highest transaction id of what was committed in this run."""
        return self._marks.last_txn

    def first_needed_block(self, run_upto: Mapping[int, int]) -> int | None:
        """The first block that a restart needs: of entries that no durable mark calls committed, and of those after `run_upto`
        (index by group), which the state does not hold: they may be committed, and wait for other partitions or the leader.
        None: nothing is needed."""
        with self.lock:
            needed = {group: min(commit, run_upto.get(group, commit)) + 1 for group, commit in self.marked.items()}
            blocks = [self.entry_blocks.block_of(group, index) for group, index in needed.items()]
        return min((block for block in blocks if block is not None), default=None)

    def forget_run(self) -> None:
        """Lets go of entries in memory that every live follower has, but for the last ones; under the lock."""
        for group, core in self.groups.cores.items():
            handed = core.log.handed
            matched = min((progress.match for progress in core.progress.values()), default=handed)
            upto = min(handed - KEPT_ENTRIES, matched)
            if upto > core.log.base:
                core.compact(core.manifest_at(Index(handed)), Index(upto))
                self.entry_blocks.forget(group, min(upto, self.marked.get(group, 0)))

    def views(self) -> dict[int, GroupStanding]:
        """What every group is now."""
        with self.lock:
            return dict(self._views)

    def _step(self, group: PartitionId, message: Message | Bundle) -> None:
        if isinstance(message, Append):
            try:
                check_entries(group, message.entries)
            except BadRecord:
                self.bad_entries += 1
                return
        elif isinstance(message, Bundle):
            self.groups.take_heartbeats(message)
            return
        elif isinstance(message, Fitness):
            for watcher in self._watchers:
                watcher.take_fitness(message)
            return
        elif isinstance(message, Executed):
            leaders = {int(group): (view.term, view.leader) for group, view in self._views.items()}
            if touched := self._executed.take_marks(message, leaders):
                self._machine.run_marked(touched)
            return
        self.groups.step(group, message)

    def executed(self, partition: int, index: int, digest: int) -> None:
        """A site of this node has executed the entry. Any thread."""
        with self.lock:
            core = self.groups.cores.get(PartitionId(partition))
            if core is not None:
                self._executed.executed(partition, term=core.term, index=index, commit=core.log.handed, digest=digest)

    def _peers(self) -> list[NodeId]:
        """Every other node of any group."""
        return sorted({node for core in self.groups.cores.values() for node in core.configuration.members()} - {self.groups.node})

    # -- the log: cmdlog.wal.writing.watermarks.RecordSource -------------------------------------------------------------------

    @property
    def pending_bytes(self) -> int:
        return self._waiting.bytes + (0 if self.holds_proposals or self._offered else self._machine.pending_bytes)

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """The next block: the rest of rounds before, then a round with what the machine gives."""
        with self.lock:
            if self.failure is not None:
                return ()
            room = bytes_max - self._waiting.bytes - ROUND_OVERHEAD_BYTES * len(self.groups.cores)
            # A new round only where at least half a block is free for it: else the rest of former rounds fills this one.
            if room > bytes_max // 2 or not self._waiting.rounds:
                self._propose(max(room, 1))
            block = self._waiting.take_block(bytes_max)
            self._wants_block = bool(self._waiting.rounds)  # nobody is woken for what is in this block
            if block.records:
                self._unwritten.append(block)
                self._undurable.append(block)
        if self._wants_block:
            self.wake()
        return block.records

    def written(self, block: int) -> None:
        """The oldest taken block is in the page cache."""
        with self.lock:
            taken = self._unwritten.popleft()
            self.entry_blocks.add_block(block, taken.records)
            taken.records = []
            for waiting in taken.rounds:
                if waiting.from_machine:
                    self._machine.written(block)

    def durable(self, block: int) -> None:
        """The oldest taken block survives power loss: what was built on it leaves."""
        with self.lock:
            for waiting in self._undurable.popleft().rounds:
                self.marked.update(waiting.marks)
                self._release(waiting.number)
                if waiting.from_machine:
                    self._machine.durable(block)
            self._pump()
        if self._wants_block:
            self.wake()

    def failed(self, error: WalError) -> None:
        """The log is wedged: this node is silent from now on (duty 5)."""
        self._fail(error)

    # -- inside, under the lock ------------------------------------------------------------------------------------------

    def _propose(self, bytes_max: int) -> None:
        """What the machine gives becomes proposals, and a round together with whatever else the groups want."""
        if self.holds_proposals or self._offered:  # a group under offer would refuse
            return
        if not (taken := self._machine.take_records(bytes_max)):
            return
        notes = []
        for record in taken:
            kind, group, term, index = place_of(record)
            if kind > LAST_ENTRY_KIND:
                notes.append(record)
                continue
            placed = self.groups.ask(PartitionId(group), partial(RaftCore.propose, payloads=[record]))
            if (placed.term, placed.first) != (term, index):
                raise InvariantBroken("an entry is where the sequencer put it", f"{group}/{term}/{index}, proposed as {placed}")
        round_ = self.groups.collect()
        if round_ is None:
            self._add_round(WaitingRound(0, deque(notes), from_machine=True))
            return
        self._handle(round_, notes, from_machine=True)

    def _pump(self) -> None:
        """Takes from the groups until they want nothing more, and the watchers ask nothing more of them."""
        while True:
            while (round_ := self.groups.collect()) is not None:
                self._handle(round_)
            if self.groups.failed:
                group, error = next(iter(self.groups.failed.items()))
                self._fail(InvariantBroken(f"group {group}: {error}", "the group has ended"))
                return
            if not self.groups.touched or not (requests := self._notify_watchers()):
                return
            self._ask_each(requests)

    def _ask_each(self, requests: Sequence[GroupRequest]) -> None:
        """A group that has ended, or whose role forbids it by now, is left as it is."""
        for group, request in requests:
            with contextlib.suppress(ProposalRefused, KeyError):
                self.groups.ask(PartitionId(group), request)

    def _handle(self, round_: Round, notes: Sequence[bytes] = (), *, from_machine: bool = False) -> None:
        """Does what a round says, in the order of the duties."""
        if round_.send_now:
            self._send(round_.send_now)
        records = [*records_of_round(round_, self._votes, self._marks), *notes]
        try:
            for group, _, ready in round_.taken:
                written, committed = ready.entries, ready.committed
                if written is not None and not from_machine and KIND_CONFIGURATION in written.kinds:
                    self._machine.skip_places({group: written.last + 1})  # consensus placed it, not the machine
                if committed is not None:
                    self._marks.committed(group, committed)
                    self._machine.committed(group, committed)
        except WalError as error:  # what has to be durable before anything follows from the entry is not
            self._fail(error)
            raise
        if records or from_machine:
            self._add_round(WaitingRound(round_.number, deque(records), from_machine))
        elif (last := self._last_round()) is not None:
            last.number = round_.number
        else:
            self._release(round_.number)
        self._pass_on(round_)

    def _pass_on(self, round_: Round) -> None:
        """Gives machine and watchers what waits for nothing."""
        roles: list[tuple[int, SoftState, int]] = []
        for group, core, ready in round_.taken:
            for result in ready.reads:
                self._machine.read(group, result)
            if (wanted := ready.fetch) is not None:
                terms = core.log.terms[wanted.first - core.log.base - 1 : wanted.last - core.log.base]
                self._machine.fetch(group, wanted, terms, self.entry_blocks.block_of(group, wanted.first))
            if ready.copy is not None:
                self._machine.copy_offered(group, ready.copy)
            if ready.soft_state is not None:
                roles.append((group, ready.soft_state, core.term))
        if roles:
            for watcher in self._watchers:
                watcher.roles_changed(roles)

    def _add_round(self, waiting: WaitingRound) -> None:
        if self._marks.new:
            waiting.marks, self._marks.new = self._marks.new, {}
        self._waiting.add(waiting)
        self._wants_block = True

    def _last_round(self) -> WaitingRound | None:
        """The newest round that is not durable."""
        if self._waiting.rounds:
            return self._waiting.rounds[-1]
        for block in reversed(self._undurable):
            if block.rounds:
                return block.rounds[-1]
        return None

    def _release(self, number: int) -> None:
        """The round and all before it are durable."""
        if parcels := self.groups.durable(number):
            self._send(parcels)

    def _notify_watchers(self) -> list[GroupRequest]:
        """What watchers ask of groups when some group has another view. Only groups that were touched can have one: a node has
        many, and most of them rest."""
        changed: dict[int, GroupStanding | None] = {}
        offered = self._offered
        for group in self.groups.take_touched():
            core, known = self.groups.cores.get(group), self._views.get(group)
            if core is None or known is None or not known.is_of(core):
                changed[group] = None if core is None else GroupStanding.of(core)
            offered = offered or (core is not None and core.handover is not None)
        if offered:
            self._offered = under_offer(self.groups)
            self._wants_block = self._wants_block or not self._offered
        if changed:
            views = {**self._views, **changed}
            self._views = {group: view for group, view in sorted(views.items()) if view is not None}
            return [request for watcher in self._watchers for request in watcher.changed(self._views)]
        return []

    def _fail(self, error: BaseException) -> None:
        with self.lock:
            if self.failure is not None:
                return
            self.failure = error
        self._machine.failed(error)
