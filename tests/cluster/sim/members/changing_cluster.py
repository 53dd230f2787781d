"""A simulated cluster whose members change: nodes are added, removed, replaced, wiped, damaged, copied and demoted.

One rule: as `tests.cluster.sim.sim_cluster`. A node is a machine: it has a process that is a member, or one that is made again
from a copy, or none. A machine whose disk has lost something is *spoiled* until its node votes again; no more are spoiled at a
time than the voters that are left can do without.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, cast

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.cluster.copying.copied_groups import GroupReach, cluster_state, partition_state
from cmdlog.cluster.copying.copy_values import CopyManifest, CopyPlace, LogShape
from cmdlog.cluster.copying.wishes import CopyWish, WishRefusal
from cmdlog.member.rejoin.rejoin_record import RejoinReason
from cmdlog.raft import RaftCore
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import Corrupt, DiskFull, WalError, WriteFailed
from cmdlog.wal.fault_record import encode_fault
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.format.record import RecordKind, decode_record
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.manifest import Manifest
from tests.cluster.sim.list_images import encode_state, undisturbed
from tests.cluster.sim.list_sites import ListState
from tests.cluster.sim.members.changing_member import ChangingMember
from tests.cluster.sim.members.sim_rejoin import Copied, SimRejoin, wants_copy, wish_copy
from tests.cluster.sim.promises import Life
from tests.cluster.sim.sim_cluster import CLUSTER_ID, SimCluster
from tests.cluster.sim.sim_member import PARTITIONS, RAFT, Machine, SimMember, directory_of
from tests.wal.sim.simfiles import Fault, SimCrash, SimFiles

LETTERS_WAITING: Final = 12
SPARE: Final = 2  # nodes that may be added


class ChangingCluster(SimCluster):
    """See the module."""

    members: dict[int, ChangingMember]  # type: ignore[assignment]

    def __init__(
        self, seed: int, *, nodes: int = 3, clients: int = 3, segment_bytes: int = 256 << 10, segments: int = 16
    ) -> None:
        self.cluster_id, self.partitions, self.segment_bytes, self.segments = CLUSTER_ID, PARTITIONS, segment_bytes, segments
        self.first = nodes
        self.drawn = 0
        self.decided: set[tuple[int, int]] = set()
        self.rejoins: dict[int, SimRejoin] = {}
        self.spoiled: set[int] = set()  # nodes that have lost something since they voted last
        self.forgetful: Counter[Peer] = Counter()  # lives that an old copy of the directory has; how often one was brought back
        self.retired: set[int] = set()
        self.asked: dict[int, int] = {}  # node -> tick of its last wish
        self.going: set[int] = set()  # nodes whose vote an operator has given up
        self.peace = False
        self.unplaced: set[int] = set()  # nodes whose disk does not show that it was theirs: an operator has to say so
        self.muted: dict[int, tuple[int, bool]] = {}  # node -> until which tick nobody hears it; whether it is deaf, too
        self.saved: dict[int, tuple[SimFiles, dict[int, ListState], dict[int, ListState], int]] = {}  # old copies, with the start
        addresses = tuple(MemberAddress(node, (f"n{node}", 1), f"http://n{node}") for node in range(1, nodes + 1))
        self.cluster_file = ClusterFile(CLUSTER_ID, "lists", addresses, {"partitions": PARTITIONS}, "")
        super().__init__(seed, nodes=nodes, clients=clients, segment_bytes=segment_bytes, segments=segments)

    # -- nodes -----------------------------------------------------------------------------------------------------------

    def make_member(self, node: int, machine: Machine) -> SimMember:
        return ChangingMember(self, node, machine)

    def boot(self, node: int) -> None:
        """A process starts: it runs the member that is here, or makes one from a copy."""
        machine = self.machines[node]
        try:
            with undisturbed(machine.files):
                wanted = wants_copy(machine.files, node)
                if not wanted and not machine.files.exists(f"{directory_of(node)}/instance.json"):
                    wish_copy(machine.files, node, RejoinReason.EMPTY)
                    wanted = True
                if wanted:
                    self.rejoins[node] = SimRejoin(self, node, machine)
                    return
            super().boot(node)
        except Corrupt:
            if node not in self.spoiled:
                raise
            self.happened["damage found"] += 1
            self._release(node)
            self.wish_copy(node, RejoinReason.DAMAGED)
        except (DiskFull, WriteFailed):
            self._release(node)
            self.happened["no start"] += 1
        except SimCrash:
            machine.cut_power(self.rng)
            self.happened["crash at start"] += 1

    def _release(self, node: int) -> None:
        """A process that could not start leaves nothing locked."""
        self.machines[node].kill()

    def wish_copy(self, node: int, reason: RejoinReason) -> None:
        """The node's next start makes it again."""
        files = self.machines[node].files
        with undisturbed(files):
            if not wants_copy(files, node):
                wish_copy(files, node, reason)
        self.spoiled.add(node)

    def crash(self, node: int, *, power: bool) -> None:
        self.rejoins.pop(node, None)
        super().crash(node, power=power)

    def draw_incarnation(self, node: int) -> bytes:
        """Of a new life."""
        self.drawn += 1
        return b"%04d%04d" % (node, self.drawn)

    def life_of(self, node: int) -> Life:
        member = self.members.get(node)
        if member is not None and hasattr(member, "book"):
            return self._life(member.book.me)
        return self._life(Peer(NodeId(node), load_instance(self.machines[node].files, directory_of(node)).identity.incarnation))

    def _life(self, peer: Peer) -> Life:
        return int(peer.node), peer.incarnation + b" again" * self.forgetful[peer]

    # -- what happens ----------------------------------------------------------------------------------------------------

    def _mute(self) -> None:
        for node, (until, deaf) in list(self.muted.items()):
            if self.ticks >= until or self.faults is None:
                del self.muted[node]
                self.cut = {(a, b) for a, b in self.cut if node not in (a, b)}
                continue
            others = set(self.machines) - {node}
            self.cut |= {(node, other) for other in others} | ({(other, node) for other in others} if deaf else set())

    def step(self) -> None:
        if self.muted:
            self._mute()
        try:
            if self.rejoins and self.rng.random() < 0.08:
                self.copy_on()
            else:
                super().step()
        except WalError:  # while something was committed: the driver has failed, and the process ends
            assert any(member.driver.failure is not None for member in self.members.values())
        except SimCrash:
            for node, member in list(self.members.items()):
                if any(hit.fault is Fault.CRASH for hit in member.machine.files.hits):
                    self.crash(node, power=self.rng.random() < 0.5)

    def copy_on(self) -> None:
        """A node that is made again takes its next step."""
        node = self.rng.choice(sorted(self.rejoins))
        rejoin = self.rejoins[node]
        try:
            rejoin.step()
        except SimCrash:
            self.happened["crash in a copy"] += 1
            self.crash(node, power=self.rng.random() < 0.5)
            return
        if rejoin.done and self.rejoins.get(node) is rejoin:
            del self.rejoins[node]
            self.machines[node].kill()
            self.boot(node)

    def leader(self) -> ChangingMember | None:
        """Who takes calls, as far as it knows."""
        leading = [member for member in self.members.values() if member.leads and not member.paused]
        return max(leading, key=lambda member: member.groups.cores[CLUSTER_GROUP].term, default=None)

    def ask(self, node: int, incarnation: bytes, former: bytes) -> str:
        """A wish to be admitted: how it stands with the leader that is reached."""
        leader = self.leader()
        if (
            leader is None
            or (leader.node, node) in self.cut
            or (node, leader.node) in self.cut
            or self.asked.get(node) == self.ticks
        ):
            return "no leader"
        self.asked[node] = self.ticks
        with undisturbed(leader.machine.files):
            standing = leader.membership.take_wish(CopyWish(node, incarnation, former, "", f"n{node}:1", f"http://n{node}"))
        if standing.refusal is not None:
            self.happened[f"wish {standing.refusal.value}"] += 1
        if standing.refusal is WishRefusal.REMOVED:
            return "removed"
        if standing.refusal is WishRefusal.STALE_INCARNATION:
            return "over"
        if standing.refusal is WishRefusal.REPLACE_NEEDED:
            self.unplaced.add(node)
        of = standing.member
        here = of is not None and of.incarnation == incarnation and of.stage in (MemberStage.ADMITTED, MemberStage.MEMBER)
        return "admitted" if here else "waits"

    def begin_copy(self, node: int, incarnation: bytes) -> tuple[ChangingMember, Copied] | None:
        """A source that can be reached, and what it gives."""
        sources = [
            member for other, member in sorted(self.members.items())
            if other != node and (other, node) not in self.cut and not member.paused and other not in self.spoiled
            and member.driver.failure is None and member.failure is None
            and (of := member.roll.stated.get(node)) is not None and of.incarnation == incarnation
            and of.stage in (MemberStage.ADMITTED, MemberStage.MEMBER)
        ]  # fmt: skip
        if not sources:
            return None
        member = self.rng.choice(sources)
        copied = self._copy_of(member)
        return None if copied is None else (member, copied)

    def _copy_of(self, member: ChangingMember) -> Copied | None:
        for partition in range(PARTITIONS):
            if member.machine.captured[partition].index < member.groups.cores[partition].log.base:  # type: ignore[index]
                member.capture(partition)
        states = {partition: member.machine.captured[partition] for partition in range(PARTITIONS)}
        peers, reaches = (
            member.book.met,
            {
                int(group): GroupReach.of(core, member.sequenced.terms.get(int(group)))
                for group, core in member.groups.cores.items()
            },
        )
        try:
            cluster = cluster_state(member.log, reaches[CLUSTER_GROUP], last_txn=member.log.recovered.txn_id_max)
        except WalError:
            self.happened["copy waits"] += 1
            return None
        groups = {p: partition_state(reaches[p], cast(Manifest, state)) for p, state in states.items()}
        groups[CLUSTER_GROUP] = cluster
        places = {p: CopyPlace(state.index, state.term, state.checksum, state.txn_id) for p, state in states.items()}
        faults = tuple(encode_fault(self.cluster_id, record) for record in member.fault_log.records)
        shape = LogShape(self.segment_bytes, self.segments, 4096)
        manifest = CopyManifest(
            copy=bytes(16),
            source=member.node,
            groups=groups,
            faults=faults,
            log=shape,
            files=(),
            partitions=places,
            rate=0,
            peers=peers,
        )
        return Copied(manifest, {p: encode_state(state) for p, state in states.items()})

    # -- what is done to it ----------------------------------------------------------------------------------------------

    def note_decision(self, record: bytes) -> None:
        """A committed entry about members, once for all nodes."""
        of = decode_record(record)
        if (of.term, of.index) not in self.decided:
            self.decided.add((of.term, of.index))
            stage = ClusterMember.from_record(of).stage.value if of.kind is RecordKind.MEMBER else ""
            self.happened[f"member {stage}" if stage else "failure set"] += 1

    def can_spare(self, node: int) -> bool:
        """Whether every majority that may decide is left without the disk of this node."""
        cores: list[RaftCore] = [core for member in self.members.values() for core in member.groups.cores.values()]
        if len(self.members) < 2:
            return False
        lost = {*self.spoiled, *self.going, *self._unheard(), node}
        down = set(self.machines) - set(self.members) - lost
        for core in cores:
            for configuration in core.needed_configurations():
                for half in filter(None, (configuration.voters, configuration.outgoing)):
                    if len(set(half) - lost) < len(half) // 2 + 1:
                        return False
        return not down

    def _unheard(self) -> set[int]:
        """Nodes that the cluster may be about to give up."""
        silent = {
            int(peer)
            for member in self.members.values()
            for core in member.groups.cores.values()
            for peer, progress in core.progress.items()
            if core.ticks - progress.heard > RAFT.election_ticks
        }
        return silent | set(self.muted) | {node for node, member in self.members.items() if member.paused}

    def spoil(self, node: int) -> None:
        """The node's disk will have lost something."""
        self.spoiled.add(node)
        if node in self.members or node in self.rejoins:
            self.crash(node, power=False)

    def wipe(self, node: int) -> None:
        """A new disk."""
        self.spoil(node)
        self.machines[node] = Machine(SimFiles(self.rng.getrandbits(30)), {}, {}, self.machines[node].life)

    def retire(self, node: int) -> None:
        """The node was removed, and knows it."""
        self.members.pop(node, None)
        self.rejoins.pop(node, None)
        self.machines.pop(node, None)
        self.spoiled.discard(node)
        self.going.discard(node)
        self.retired.add(node)
        self.happened["retired"] += 1

    def add_machine(self) -> int | None:
        """An empty one."""
        node = 1 + max({*self.machines, *self.retired})
        if node > self.first + SPARE:
            return None
        self.machines[node] = Machine(SimFiles(self.rng.getrandbits(30)), {}, {})
        self.spoiled.add(node)
        self.clock_offsets[node] = self.rng.choice([0.0, 0.0, 3600.0, -3600.0])
        self.boot(node)
        return node

    # -- the end -----------------------------------------------------------------------------------------------------------

    def recover_members(self) -> None:
        """What an operator does: old copies and lives that are over are made again; who was removed is switched off."""
        leader = self.leader()
        if leader is None:
            return
        for node in sorted(self.machines):
            of = leader.roll.stated.get(node)
            if of is not None and of.stage is MemberStage.REMOVED:
                self.retire(node)
                continue
            if of is None and node > self.first and self.faults is None:
                self.retire(node)  # nobody wants it
                continue
            member = self.members.get(node)
            if member is None:
                continue
            me = member.book.me
            over = of is not None and me.incarnation != of.incarnation and me.incarnation in of.former
            if over or me in self.forgetful:
                self.wish_copy(node, RejoinReason.REPLACED)
                self.crash(node, power=False)
                self.boot(node)
        for node, of in sorted(leader.roll.stated.items()):
            if of.stage is MemberStage.EXPECTED and node not in self.machines and self.faults is None:
                leader.request("remove", node)  # it was added while its machine was switched off
        for node in sorted(self.unplaced & set(self.machines)):
            of = leader.roll.stated.get(node)
            joins = of is not None and of.stage in (MemberStage.JOINING, MemberStage.ADMITTED)  # with a disk that is gone
            if leader.request("replace", node, force=joins):
                self.happened["replace begun"] += 1
            self.unplaced.discard(node)
        for node in sorted(self.spoiled & set(self.members)):
            of = leader.roll.stated.get(node)
            member = self.members[node]
            if (
                of is not None
                and of.stage is MemberStage.MEMBER
                and of.incarnation == member.book.me.incarnation
                and member.book.me not in self.forgetful
            ):
                self.spoiled.discard(node)
                self.going.discard(node)

    def tick(self) -> None:
        super().tick()
        if self.faults is None and self.peace:
            for node in sorted(set(self.machines) - set(self.members) - set(self.rejoins)):
                self.boot(node)  # its supervisor starts it
        if self.ticks % 10 == 0:
            self.recover_members()

    def deliver(self) -> None:
        if self.faults is None and self.rejoins:
            self.copy_on()
        for _ in range(1 + len(self.mail) // LETTERS_WAITING):  # many nodes have much to say
            super().deliver()

    def heal(self) -> None:
        self.peace = True
        for node in list(self.rejoins):
            self.machines[node].files.heal()
        super().heal()

    def final_reads(self) -> None:
        client = self.clients[0]
        for _ in range(2):
            while True:
                operation = client.ask("values_of_all")
                self.settle()
                if operation.seen:
                    break

    def describe(self) -> str:
        leader = self.leader()
        roll, cores = (leader.roll, leader.groups.cores) if leader is not None else (None, {})
        stated = {n: (of.stage.value, of.incarnation) for n, of in (roll.stated.items() if roll else ())}
        seats = {g: (c.configuration.voters, c.configuration.learners) for g, c in cores.items()}
        return (
            f"machines {sorted(self.machines)} rejoins {[r._file.read_record() for r in self.rejoins.values()]} "
            f"spoiled {self.spoiled} forgetful {self.forgetful} "
            f"stated {stated} seats {seats} failed {roll and roll.faults}\n" + super().describe()
        )

    def is_level(self) -> bool:
        leader = self.leader()
        if leader is None or self.rejoins or self.spoiled:
            return False
        stated = leader.roll.stated
        if any(of.stage is not MemberStage.MEMBER and of.stage is not MemberStage.REMOVED for of in stated.values()):
            return False
        if leader.roll.faults is not None and leader.roll.faults.failed:
            return False
        present = {node for node, of in stated.items() if of.stage is MemberStage.MEMBER}
        if present != set(self.machines):
            return False
        for member in self.members.values():
            for core in member.groups.cores.values():
                if set(core.configuration.voters) != present or core.configuration.joint:
                    return False
        return super().is_level()
