"""Many groups of one node over one log and one connection per peer. Still sans-IO.

One rule: a *round* is what all groups want at one moment, as one block's worth of records; rounds are written in order, and what
was built on a write leaves, group by group, only when that round and all before it are durable.

    groups = Groups(node)                 groups.add(group, core); groups.tick(); groups.step(group, message); groups.take(bundle)
    round = groups.collect()              -> write in one block, send round.send_now, and do the rest of each Ready in round.taken
    parcels = groups.durable(round.number)  -> send them; they were built on what is durable now

A group that breaks one of its invariants is ended and named in `failed`; the others continue.

Heartbeats of all groups to one peer, and the answers to them, travel as columns of one bundle: a thousand groups cost one message
per peer and tick. Quiet groups cost one call of `tick` each.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from operator import attrgetter, itemgetter
from typing import Any, Final

from cmdlog.raft.configuration import NodeId
from cmdlog.raft.core import RaftCore
from cmdlog.raft.entries import payload_bytes
from cmdlog.raft.errors import Drop, InvariantBroken
from cmdlog.raft.messages import (
    Append,
    Bundle,
    Heartbeat,
    HeartbeatBundle,
    HeartbeatReply,
    HeartbeatReplyBundle,
    Message,
    value,
)
from cmdlog.raft.ready import Ready
from cmdlog.wal.ids import Index, PartitionId

GroupId = PartitionId
_RECEIVER: Final = attrgetter("receiver")
ROUND_BYTES_MAX: Final = 16 << 20  # a few blocks of the log: what one group writes must not make the others wait for long

UNDURABLE_BYTES_MAX: Final = 256 << 20  # of all groups: what a disk that stalls may cost in memory


Taken = list[tuple[GroupId, RaftCore, Ready]]
"""What groups want, ascending by group."""


@dataclass(slots=True)
class Parcel:
    """What goes to one peer: messages of groups in order, and heartbeats in bundles."""

    receiver: NodeId
    messages: list[tuple[GroupId, Message]] = field(default_factory=list)
    bundles: list[Bundle] = field(default_factory=list)


@value
class Round:
    """One moment of all groups. What its Readies want written is one write, all or nothing."""

    number: int
    taken: Taken
    entry_bytes: int  # to be written
    send_now: list[Parcel]  # ascending by receiver


class RaftGroups:
    """The groups of one node. One owner, one thread."""

    def __init__(self, node: NodeId) -> None:
        self.node = node
        self.round_bytes_max, self.undurable_bytes_max = ROUND_BYTES_MAX, UNDURABLE_BYTES_MAX
        self.undurable_bytes = 0  # of the entries in rounds that are not durable yet
        self.cores: dict[GroupId, RaftCore] = {}  # ascending by group
        self.failed: dict[GroupId, InvariantBroken] = {}
        self.drops: Counter[Drop] = Counter()  # messages for groups that are not here
        self._rounds: deque[Round] = deque()  # not durable yet
        self._number = 0
        self.touched: set[GroupId] = set()  # that may have changed since `take_touched`
        self._begin_with: GroupId | None = None  # the first group that the last round had no room for

    def add(self, group: GroupId, core: RaftCore) -> None:
        """Takes over a group. Raises: ValueError."""
        if group in self.cores or core.id != self.node:
            raise ValueError(f"group {group} of node {core.id} is here already, or is another node's than {self.node}")
        self.failed.pop(group, None)
        self.cores = dict(sorted([*self.cores.items(), (group, core)]))

    def tick(self) -> None:
        """One unit of time for every group."""
        for group, core in list(self.cores.items()):
            try:
                core.tick()
            except InvariantBroken as error:
                self._end(group, error)

    def step(self, group: GroupId, message: Message) -> None:
        """A peer's message for one group."""
        core = self.cores.get(group)
        if core is None:
            self.drops[Drop.STOPPED] += 1
            return
        if self.undurable_bytes >= self.undurable_bytes_max and type(message) is Append and message.entries.terms:
            self.drops[Drop.NO_ROOM] += 1  # its leader sends it again; votes and heartbeats are taken
            return
        try:
            core.step(message)
        except InvariantBroken as error:
            self._end(group, error)

    def take_heartbeats(self, bundle: Bundle) -> None:
        """A peer's heartbeats, or its answers to ours."""
        sender, receiver = bundle.sender, bundle.receiver
        if isinstance(bundle, HeartbeatBundle):
            for group, term, commit, round_ in zip(bundle.groups, bundle.terms, bundle.commits, bundle.rounds, strict=True):
                self.step(group, Heartbeat(sender, receiver, term, commit, round_))
        else:
            for group, term, round_ in zip(bundle.groups, bundle.terms, bundle.rounds, strict=True):
                self.step(group, HeartbeatReply(sender, receiver, term, round_))

    def ask(self, group: GroupId, request: Callable[[RaftCore], Any]) -> Any:
        """Runs a request of the caller on one group: `groups.ask(group, lambda core: core.propose(payloads))`.

        Raises: KeyError when the group is not here or has ended; what the request raises.
        """
        try:
            return request(self.cores[group])
        except InvariantBroken as error:
            self._end(group, error)
            raise

    def collect(self) -> Round | None:
        """What all groups want now, or None. Take it again until there is none: a group that is its own majority may continue.

        The entries to be written in one round, and those to be applied, are at most `round_bytes_max` and one entry. Groups that
        the round has no room for still send; the next round begins with their entries.
        """
        taken: Taken = []
        sent: list[tuple[GroupId, list[Message]]] = []
        to_write = to_apply = 0
        room = self.round_bytes_max
        begin, self._begin_with = self._begin_with, None
        # A group rests, ends, only sends because the round has no room left for entries, or takes part in the round.
        for group, core in list(self.cores.items()) if begin is None else self._in_turn(begin):
            if not core.dirty:
                continue
            self.touched.add(group)
            try:
                ready = core.ready(room)
            except InvariantBroken as error:
                self._end(group, error)
                continue
            if room <= 0 and self._begin_with is None and core.log.taken < core.log.last:
                self._begin_with = group
            if ready is None:
                continue
            taken.append((group, core, ready))
            if ready.send_now:
                sent.append((group, ready.send_now))
            if ready.entries is not None:
                to_write += payload_bytes(ready.entries)
                room = min(room, self.round_bytes_max - to_write)
            if ready.committed is not None:
                to_apply += payload_bytes(ready.committed)
                room = min(room, self.round_bytes_max - to_apply)
        if not taken:
            return None
        if begin is not None:
            taken.sort(key=itemgetter(0))
            sent.sort(key=itemgetter(0))
        self._number += 1
        self.undurable_bytes += to_write
        round_ = Round(self._number, taken, to_write, self._parcels(sent) if sent else [])
        self._rounds.append(round_)
        return round_

    def durable(self, number: int) -> list[Parcel]:
        """The round and all before it are durable; returns what may leave now. A round that wrote nothing is durable as soon as
        all before it are. Numbers that were reported before mean nothing."""
        released: list[tuple[GroupId, list[Message]]] = []
        while self._rounds and self._rounds[0].number <= number:
            round_ = self._rounds.popleft()
            self.undurable_bytes -= round_.entry_bytes
            for group, core, ready in round_.taken:
                if self.cores.get(group) is not core:
                    continue  # it ended meanwhile: nothing may leave in its name
                if ready.send_after_fsync:
                    released.append((group, ready.send_after_fsync))
                if ready.completion is None:
                    continue
                try:
                    core.advance(ready.completion)
                except InvariantBroken as error:
                    self._end(group, error)
        return self._parcels(released) if released else []

    def take_touched(self) -> set[GroupId]:
        """Groups whose role, term, leader or commit may differ from when this was called last: those that `collect` looked at,
        and those that are gone. The others are as they were."""
        touched, self.touched = self.touched, set()
        return touched

    def _in_turn(self, begin: GroupId) -> list[tuple[GroupId, RaftCore]]:
        cores = self.cores.items()
        return [*(each for each in cores if each[0] >= begin), *(each for each in cores if each[0] < begin)]

    def _end(self, group: GroupId, error: InvariantBroken) -> None:
        self.failed[group] = error
        self.touched.add(group)
        del self.cores[group]

    def _parcels(self, sent: Iterable[tuple[GroupId, list[Message]]]) -> list[Parcel]:
        parcels: dict[NodeId, Parcel] = {}
        beats: dict[NodeId, list[tuple[GroupId, Heartbeat]]] = {}
        answers: dict[NodeId, list[tuple[GroupId, HeartbeatReply]]] = {}
        for group, messages in sent:
            for message in messages:
                receiver = message.receiver
                parcel = parcels.get(receiver)
                if parcel is None:
                    parcel = parcels[receiver] = Parcel(receiver)
                if type(message) is Heartbeat:
                    beats.setdefault(receiver, []).append((group, message))
                elif type(message) is HeartbeatReply:
                    answers.setdefault(receiver, []).append((group, message))
                else:
                    parcel.messages.append((group, message))
        for receiver, of_beats in beats.items():
            parcels[receiver].bundles.append(self._bundle(receiver, of_beats))
        for receiver, of_answers in answers.items():
            parcels[receiver].bundles.append(self._reply_bundle(receiver, of_answers))
        return sorted(parcels.values(), key=_RECEIVER)

    def _bundle(self, receiver: NodeId, beats: list[tuple[GroupId, Heartbeat]]) -> HeartbeatBundle:
        groups, terms = [group for group, _ in beats], [beat.term for _, beat in beats]
        commits: list[Index] = [beat.commit for _, beat in beats]
        return HeartbeatBundle(self.node, receiver, groups, terms, commits, [beat.round for _, beat in beats])

    def _reply_bundle(self, receiver: NodeId, answers: list[tuple[GroupId, HeartbeatReply]]) -> HeartbeatReplyBundle:
        groups, terms = [group for group, _ in answers], [answer.term for _, answer in answers]
        return HeartbeatReplyBundle(self.node, receiver, groups, terms, [answer.round for _, answer in answers])
