"""The groups of a node at its start, from its log.

One rule: consensus gets exactly what is durable (`cmdlog.raft`, duty 6): term and vote, the entries that the log holds, and how
far they are known committed. What a state holds was committed, whether a mark says so or not.

A group begins in memory at a *base*: an entry that is committed and run here, so that what is committed and not run is handed
out. The log is read once, from the newest segment whose head is at or below the base of every group.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import orjson

from cmdlog.cluster.entry_records import EntryBlocks, entry_of
from cmdlog.cluster.group_transfer import patience_of
from cmdlog.cluster.replication import KEPT_ENTRIES
from cmdlog.raft import Configuration, HardState, PlacedProposals, RaftCore, RaftSettings, Restored, SnapshotDescriptor
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Entries
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.record import BadRecord, Record
from cmdlog.wal.group_state import GroupState, GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, Index, PartitionId, Term
from replay.log.source import LogSource


@dataclass(slots=True)
class _Line:
    """One group's entries after its base, as far as the log was read."""

    base: int
    base_term: int = -1  # of the entry at the base; -1: not met yet
    configuration: Configuration | None = None  # in force at the base
    entries: list[tuple[int, int, bytes]] = field(default_factory=list)  # term, kind, payload

    @property
    def last(self) -> int:
        return self.base + len(self.entries)

    def add(self, record: Record) -> None:
        """The group's next entry, or one that replaces a suffix."""
        index = record.index
        if index <= self.base:
            self.entries.clear()
            return
        if index > self.last + 1:
            return  # it follows void entries, and will be replaced: else `restored` raises
        del self.entries[index - self.base - 1 :]
        self.entries.append((record.term, *entry_of(record)))

    def note_base(self, state: GroupState) -> None:
        """The log so far says this of the group: at or before the base, that is what holds there."""
        if state.last_index <= self.base and state.configurations:
            self.base_term = state.last_term if state.last_index == self.base else -1
        if state.configurations and (self.configuration is None or state.last_index <= self.base):
            stated = next((s for s in reversed(state.configurations) if s.index <= self.base), state.configurations[0])
            self.configuration = Configuration.from_bytes(orjson.dumps(stated.value))

    def restored(self, group: int, state: GroupState, committed: Place, run: Place, admitted: PlacedProposals | None) -> Restored:
        """What consensus is given. Raises: BadRecord."""
        term = next((place.term for place in (committed, run) if place.index == self.base), self.base_term)
        if term < 0 or self.configuration is None:
            raise BadRecord(f"the log does not reach back to entry {self.base} of group {group}")
        if self.last != state.last_index:  # consensus would forget what it has acknowledged
            raise BadRecord(f"group {group} ends at entry {state.last_index}, and the log has no entry {self.last + 1} before it")
        entries = None
        if self.entries:
            terms, kinds, payloads = zip(*self.entries, strict=True)
            entries = Entries(Index(self.base + 1), [Term(term) for term in terms], bytes(kinds), list(payloads))
        vote = None if state.vote is None else NodeId(state.vote)
        manifest = SnapshotDescriptor(Index(self.base), Term(term), self.configuration)
        hard = HardState(Term(state.term), vote, Index(max(committed.index, self.base)))
        return Restored(hard, manifest, entries, admitted=admitted)


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """An entry of a group that is known committed, and its term."""

    index: int
    term: int


def restore_groups(
    node: int, source: LogSource, states: GroupStates, run: Mapping[int, Place], *, settings: RaftSettings, rng: random.Random
) -> tuple[RaftGroups, EntryBlocks]:
    """Makes the groups of a log that the caller has opened and not started; `states` is what all of it says, `run` the last entry
    that the state of a partition holds.

    Raises: BadRecord, when the log does not hold what it says; InvariantBroken; Corrupt.
    """
    committed = {group: _committed(state, run.get(group)) for group, state in states.by_partition.items()}
    done = {group: run.get(group, place) for group, place in committed.items()}  # a state may lack what is committed
    from_block, bases = _choose_bases(source, {group: max(place.index, 1) for group, place in done.items()})
    lines = {group: _Line(base) for group, base in bases.items()}
    fold, blocks = GroupStates(), EntryBlocks()
    for lsn, record in source.read(from_block=from_block):
        if (line := lines.get(record.partition)) is None:
            continue
        fold.observe(lsn, record)
        if record.is_entry:
            line.add(record)
            blocks.add(int(lsn.block), record.partition, record.index)
        line.note_base(fold.by_partition[record.partition])
    groups, admitted = RaftGroups(NodeId(node)), places_of_admission(states, source.instance.identity)
    for group, line in sorted(lines.items()):
        restored = line.restored(group, states.by_partition[group], committed[group], done[group], admitted.get(group))
        own = replace(settings, patience=patience_of(group, settings.patience))
        groups.add(PartitionId(group), RaftCore(NodeId(node), rng=rng, settings=own, restored=restored))
    return groups, blocks


def places_of_admission(states: GroupStates, me: Identity) -> dict[int, PlacedProposals]:
    """By group the entry that made this life of the node's disk a member again; none of the first life."""
    cluster = states.by_partition.get(CLUSTER_GROUP)
    stated = None if cluster is None else cluster.members.get(me.node_id)
    member = None if stated is None else ClusterMember.from_json(stated.value)
    if member is None or member.incarnation != me.incarnation:
        return {}
    return {group: PlacedProposals(Index(index), Term(term)) for group, (term, index) in member.admitted.items()}


def _committed(state: GroupState, run: Place | None) -> Place:
    """The newest entry of the group that is known committed here."""
    marked = Place(state.commit, state.commit_term)
    return max(marked, run or marked)


def _choose_bases(source: LogSource, done: Mapping[int, int]) -> tuple[int, dict[int, int]]:
    """The block from which the log is read, and where each group begins: a little before what is run here, or there."""
    wanted = {group: max(index - KEPT_ENTRIES, 1) for group, index in done.items()}
    heads: dict[int, int] = {}
    for first_block in reversed(source.first_blocks):
        ends = {group: state.last_index for group, state in source.checkpoint(first_block).by_partition.items()}
        if not ends:  # the log's first segment: entries begin at 1, or where a copy ended
            ends = source.beginnings()
        heads = {group: ends.get(group, 0) for group in wanted}
        if (
            all(heads[group] <= index for group, index in done.items())
            and max(done[group] - head for group, head in heads.items()) >= KEPT_ENTRIES
        ):
            break  # the busiest group has all that is kept: a follower that lacks more of a quiet one lacks too much of that
    return first_block, {group: min(max(base, heads[group]), done[group]) for group, base in wanted.items()}
