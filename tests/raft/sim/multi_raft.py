"""Several groups per node over one shared log, as a node has them: rounds, parcels, a replay of the log at every start.

One rule: what one group is judged by is the oracle of single groups, one for each; here is only what is shared. A round is
durable as a whole and in order; a crash leaves a prefix of the rounds under way; a node starts from nothing but its one log.
"""

from __future__ import annotations

import random
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import Any, Final

from cmdlog.raft import (
    Configuration,
    EntriesWanted,
    Message,
    NodeId,
    ProposalRefused,
    RaftCore,
    RaftSettings,
)
from cmdlog.raft.configuration import nodes
from cmdlog.raft.messages import Bundle, SnapshotDescriptor
from cmdlog.raft.multi_raft import GroupId, GroupRecord, Parcel, RaftGroups
from cmdlog.wal.ids import Index
from tests.raft.cluster import read_entries
from tests.raft.sim.oracle import Oracle, Violation
from tests.raft.sim.world import Disk

UNITS_PER_TICK: Final = 4
CALM_UNITS_MAX: Final = 8_000


@dataclass(slots=True)
class Replica:
    """One group on one node, as its oracle wants to see it."""

    id: NodeId
    core: RaftCore | None = None
    disk: Disk = field(default_factory=Disk)
    applied: int = 0
    led: int = 0
    seen_commit: int = 0
    life: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Compaction:
    """A record of the shared log: a snapshot of one group is durable, and its log is gone up to `base`."""

    group: GroupId
    manifest: SnapshotDescriptor
    base: Index


@dataclass(frozen=True, slots=True)
class Installation:
    """A record of the shared log: the state of one group was copied, and its log begins after it."""

    group: GroupId
    manifest: SnapshotDescriptor


Record = GroupRecord | Compaction | Installation


class Host:
    """One machine: the shared log, and what runs from it."""

    def __init__(self, node: NodeId, groups: Iterable[GroupId], first: SnapshotDescriptor) -> None:
        self.id, self.first = node, first
        self.replicas = {group: Replica(node, disk=Disk(manifest=first)) for group in groups}
        self.log: list[Record] = []
        self.running: RaftGroups | None = None
        self.life = 0
        self.pending: deque[tuple[int, list[GroupRecord], int]] = deque()  # (round, records, unit in which they are durable)

    def write(self, records: Iterable[Record]) -> None:
        """They are durable."""
        for record in records:
            self.log.append(record)
            put(self.replicas[record.group].disk, record)

    def replay(self) -> None:
        """What each group's disk is comes from the one log. Raises: Violation when it is not what was made durable."""
        found = {group: Disk(manifest=self.first) for group in self.replicas}
        for record in self.log:
            put(found[record.group], record)
        for group, replica in self.replicas.items():
            if found[group] != replica.disk:
                raise Violation(f"node {self.id}: the replay of group {group} is not what was written [pitfall 40]")
            replica.disk = found[group]


def put(disk: Disk, record: Record) -> None:
    """Adds one record of the log to its group."""
    if isinstance(record, Compaction):
        disk.compact(record.manifest, record.base)
    elif isinstance(record, Installation):
        disk.install(record.manifest)
    else:
        disk.write(record)  # type: ignore[arg-type]  # it has a Ready's two fields


class ManyGroups:
    """All nodes and all groups of one seed."""

    def __init__(self, seed: int, story: Callable[[str], None] | None = None) -> None:
        self.rng = rng = random.Random(f"groups {seed}")
        self.now = 0
        self._wheel: dict[int, list[tuple[float, Callable[..., None], tuple[Any, ...]]]] = {}
        self.counts: Counter[str] = Counter()
        self.loss, self.doubling = rng.choice((0.0, 0.02, 0.1)), rng.choice((0.0, 0.1))
        self.delay_units_max, self.sync_units_max = rng.choice((1, 4, 10)), rng.choice((0, 4, 20))
        self.fault_rate = rng.choice((0.0, 0.004, 0.01))
        self.round_bytes_max, self.undurable_bytes_max = rng.choice((60, 1 << 20)), rng.choice((300, 1 << 20))
        self.settings = RaftSettings(
            pre_vote=rng.random() < 0.8,
            append_entries_max=rng.choice((1, 8, 1024)),
            ready_bytes_max=rng.choice((40, 8 << 20)),
            log_bytes_max=rng.choice((100, 64 << 20)),
            fetch_bytes_max=rng.choice((40, 4 << 20)),
        )
        self.groups = [GroupId(number) for number in range(rng.choice((2, 3, 8)))]
        members = nodes(range(1, rng.choice((3, 3, 5)) + 1))
        first = SnapshotDescriptor(configuration=Configuration(voters=members))
        self.hosts = {node: Host(node, self.groups, first) for node in members}
        self.blocked: set[tuple[NodeId, NodeId]] = set()
        self.oracles = {group: Oracle() for group in self.groups}
        for group, oracle in self.oracles.items():
            oracle.story = None if story is None else (lambda line, group=group: story(f"{self.now:6} group {group} {line}"))
            oracle.nodes = {node: host.replicas[group] for node, host in self.hosts.items()}  # type: ignore[misc]  # the same look
        for host in self.hosts.values():
            self.start(host)

    def after(self, units: int, what: Callable[..., None], *given: Any) -> None:
        """Something happens `units` from now; what is due at once happens in random order."""
        self._wheel.setdefault(self.now + units, []).append((self.rng.random(), what, given))

    def run_unit(self) -> None:
        """Everything that is due now."""
        while due := self._wheel.pop(self.now, None):
            for _, what, given in sorted(due, key=itemgetter(0)):
                what(*given)
        self.now += 1

    # Life

    def start(self, host: Host) -> None:
        """Replays the log, and starts every group."""
        if host.running is not None:
            return
        host.replay()
        host.running = RaftGroups(host.id, round_bytes_max=self.round_bytes_max, undurable_bytes_max=self.undurable_bytes_max)
        for group in self.rng.sample(self.groups, len(self.groups)):
            self.add(host, group)
        self.after(self.rng.randrange(1, UNITS_PER_TICK + 1), self._tick, host, host.life)
        self.drain(host)

    def add(self, host: Host, group: GroupId) -> None:
        """One group from its disk."""
        assert host.running is not None
        replica = host.replicas[group]
        chance = random.Random(self.rng.getrandbits(32))
        replica.core = RaftCore(host.id, rng=chance, settings=self.settings, restored=replica.disk.restored())
        replica.applied, replica.led, replica.life = replica.disk.manifest.index, 0, host.life
        host.running.add(group, replica.core)
        self.oracles[group].started(replica)  # type: ignore[arg-type]

    def crash(self, host: Host) -> None:
        """Kills the process. Of the rounds under way a random number, the oldest, turn out to be durable."""
        if host.running is None:
            return
        self.counts["crash"] += 1
        for _ in range(self.rng.randrange(len(host.pending) + 1)):
            host.write(host.pending.popleft()[1])
        host.pending.clear()
        host.running, host.life = None, host.life + 1
        for replica in host.replicas.values():
            replica.core = None
        self.after(self.rng.randrange(1, 200), self.start, host)

    def _tick(self, host: Host, life: int) -> None:
        if host.life == life and host.running is not None:
            self.after(UNITS_PER_TICK, self._tick, host, life)
            host.running.tick()
            self.drain(host)

    # Duties

    def drain(self, host: Host) -> None:
        """Collects rounds until there is none."""
        own = host.running
        if own is None:
            return
        for group, core in own.cores.items():
            self.oracles[group].watch(host.replicas[group], core)  # type: ignore[arg-type]
        while (made := own.collect()) is not None:
            self.counts["rounds"] += 1
            for record in made.records:
                self.oracles[record.group].writes(host.replicas[record.group], record)  # type: ignore[arg-type]
            self.send(host, made.send_now, durable=False)
            due = self.now + (self.rng.randrange(self.sync_units_max + 1) if made.records else 0)
            due = max(due, host.pending[-1][2] if host.pending else 0)
            host.pending.append((made.number, made.records, due))
            self.after(due - self.now, self.complete, host, host.life)
            for group, entries in made.committed:
                self.oracles[group].applies(host.replicas[group], entries)  # type: ignore[arg-type]
                host.replicas[group].applied = entries.last
            for group, manifest in made.copies:
                self.after(self.rng.randrange(1, 40), self.copied, host, host.life, group, manifest)
            for group, wanted in made.fetches:
                self.after(self.rng.randrange(1, 10), self.fetched, host, host.life, group, wanted)
        if own.failed:
            raise next(iter(own.failed.values()))

    def complete(self, host: Host, life: int) -> None:
        """Rounds whose time has come are durable, in order."""
        if host.life != life or host.running is None:
            return
        while host.pending and host.pending[0][2] <= self.now:
            number, records, _ = host.pending.popleft()
            host.write(records)
            self.send(host, host.running.durable(number), durable=True)
        self.drain(host)

    def copied(self, host: Host, life: int, group: GroupId, manifest: SnapshotDescriptor) -> None:
        """A copy has ended: the host starts again with it, unless the group's log has come so far meanwhile."""
        core = host.replicas[group].core
        if host.life == life and core is not None and core.log.commit < manifest.index:
            self.counts["copies"] += 1
            self.crash(host)
            host.write([Installation(group, manifest)])

    def fetched(self, host: Host, life: int, group: GroupId, wanted: EntriesWanted) -> None:
        """A read of the shared log has ended."""
        if host.life == life and host.running is not None and group in host.running.cores:
            self.counts["fetches"] += 1
            found = read_entries(host.replicas[group].disk.entries, wanted)
            host.running.ask(group, lambda core: core.report_entries(wanted, found))
            self.drain(host)

    def compact(self, host: Host) -> None:
        """Takes a snapshot of one group; the record of it is in the shared log at once."""
        group = self.rng.choice(self.groups)
        core = host.replicas[group].core
        if core is None or core.log.handed <= core.manifest.index or core.log.handed > host.replicas[group].applied:
            return
        manifest = core.manifest_at(core.log.handed)
        base = core.compact(manifest, Index(max(0, manifest.index - self.rng.randrange(6))))
        host.write([Compaction(group, manifest, base)])
        self.counts["compactions"] += 1

    # Network

    def send(self, host: Host, parcels: list[Parcel], *, durable: bool) -> None:
        """Each message by itself: parcels share a connection, and what is lost with it is any part of them."""
        for parcel in parcels:
            for group, message in parcel.messages:
                replica, oracle = host.replicas[group], self.oracles[group]
                if durable:
                    oracle.promises(replica, message)  # type: ignore[arg-type]
                oracle.sends(replica, message)  # type: ignore[arg-type]
                self._launch(self._deliver, parcel.receiver, group, message)
            for bundle in parcel.bundles:
                self._launch(self._deliver_bundle, parcel.receiver, bundle)

    def _launch(self, deliver: Callable[..., None], *given: Any) -> None:
        for _ in range(1 + (self.rng.random() < self.doubling)):
            if self.rng.random() >= self.loss:
                self.after(1 + self.rng.randrange(self.delay_units_max), deliver, *given)

    def _deliver(self, receiver: NodeId, group: GroupId, message: Message) -> None:
        host = self.hosts[receiver]
        if host.running is not None and (message.sender, receiver) not in self.blocked:
            host.running.step(group, message)
            self.drain(host)

    def _deliver_bundle(self, receiver: NodeId, bundle: Bundle) -> None:
        host = self.hosts[receiver]
        if host.running is not None and (bundle.sender, receiver) not in self.blocked:
            host.running.take_heartbeats(bundle)
            self.drain(host)

    # The rest of the world

    def propose(self) -> None:
        """Some node is asked for an entry of some group."""
        host, group = self.rng.choice(list(self.hosts.values())), self.rng.choice(self.groups)
        if host.running is None or group not in host.running.cores:
            return
        try:
            host.running.ask(
                group, partial(RaftCore.propose, payloads=[b"x" * self.rng.randrange(40)] * self.rng.randrange(1, 4))
            )
        except ProposalRefused as refused:
            self.counts[f"refused {refused.reason.value}"] += 1
            return
        self.counts["proposals"] += 1
        self.drain(host)

    def fault(self) -> None:
        """One thing goes wrong."""
        host = self.rng.choice(list(self.hosts.values()))
        kind = self.rng.randrange(3)
        if kind == 0:
            self.crash(host)
        elif kind == 1:
            self.compact(host)
        else:
            other = self.rng.choice(list(self.hosts))
            cut = {(host.id, other)} | ({(other, host.id)} if self.rng.random() < 0.5 else set())
            self.blocked |= cut
            self.after(self.rng.randrange(1, 400), self.blocked.difference_update, cut)

    def settled(self) -> bool:
        """Whether every group has one leader, and every node all of its log."""
        for group in self.groups:
            cores = [host.replicas[group].core for host in self.hosts.values()]
            known = {core.leader for core in cores if core is not None}
            if None in cores or None in known or len(known) != 1 or len({core.log.commit for core in cores if core}) != 1:
                return False
        return True


def run_groups(seed: int, *, units: int = 1_500, story: Callable[[str], None] | None = None) -> Counter[str]:
    """One history. Raises: Violation and InvariantBroken."""
    world = ManyGroups(seed, story)
    for _ in range(units):
        if world.rng.random() < world.fault_rate:
            world.fault()
        if world.rng.random() < 0.3:
            world.propose()
        world.run_unit()
    world.loss = 0.0
    world.blocked.clear()
    began = world.now
    fresh = {group: len(oracle.truth) for group, oracle in world.oracles.items()}
    while not (world.settled() and all(len(oracle.truth) > fresh[group] for group, oracle in world.oracles.items())):
        if world.now - began > CALM_UNITS_MAX:
            raise Violation(f"{CALM_UNITS_MAX} units after healing some group has no leader or no new entry")
        if world.now % 40 == 0:
            world.propose()
        world.run_unit()
    for group, oracle in world.oracles.items():
        oracle.check_together([host.replicas[group] for host in world.hosts.values()])  # type: ignore[misc]
        world.counts.update(oracle.counts)
    return world.counts
