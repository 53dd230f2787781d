"""Consensus between a node's sequencer and its log, built bottom-up: each part gets what it needs when it is made.

One rule: nothing is set on a part afterwards. A part with a thread of its own is given whom it serves when that is started.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cmdlog.cluster.entry_records import describe_batch
from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.membership.fault_sets import FaultSets
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.restored_groups import Place, restore_groups
from cmdlog.cluster.transport.peer_book import PeerBook
from cmdlog.cluster.transport.peer_network import Endpoint, PeerNetwork
from cmdlog.cluster.transport.peer_transport import LinkStatus, TransportSettings
from cmdlog.member.entry_reader import EntryReader
from cmdlog.member.lost_majority.forced_epoch import members_left_behind, name_of
from cmdlog.member.member_code import MemberCode, Program
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.partition_divergence import Divergences
from cmdlog.member.rejoin.life_end import LifeEnd
from cmdlog.member.sequenced_machine import SequencedMachine
from cmdlog.node.assembly import NodeGround, NodeParts
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.wal.divergence_file import DivergenceFile
from cmdlog.wal.format.call_places import TermTable
from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId
from procedures import Database
from replay.log.source import source_of
from replay.state.trust import read_position, state_path


@dataclass(frozen=True, slots=True, kw_only=True)
class Consensus:
    """What the parts of a member work with."""

    ground: MemberGround
    roll: MemberRoll
    network: PeerNetwork
    marks: ExecutedMarks
    reader: EntryReader
    machine: SequencedMachine
    driver: Replication
    fitness: LeaderFitness

    @property
    def node(self) -> NodeId:
        """This one."""
        return NodeId(self.ground.node)

    @property
    def groups(self) -> RaftGroups:
        """Under the driver's lock."""
        return self.driver.groups

    def peers(self) -> Sequence[LinkStatus]:
        """How each peer is reached."""
        return self.network.status().peers

    def missing_members(self) -> list[ClusterMember]:
        """What the log lacks of the members: first ones that this node has met, and those that a forced recovery left behind."""
        book = self.network.book
        met = {int(node): record.incarnation for node, record in book.records.items()}
        missing = self.roll.missing_members({**met, int(book.me.node): book.me.incarnation})
        configuration = self.driver.ask(CLUSTER_GROUP, lambda core: core.configuration)
        return members_left_behind(self.roll.stated, missing, configuration)


class StatedEntries:
    """What follows from a committed entry of the cluster group, in this order; under the driver's lock."""

    def __init__(self, faults: FaultSets, roll: MemberRoll, code: MemberCode) -> None:
        self._faults, self._roll, self._code = faults, roll, code

    def observe(self, index: int, record: bytes) -> int:
        """The newest version of the code that the sites have then. Raises: WalError; the node has failed."""
        self._faults.observe(record)
        self._roll.observe(index, record)
        self._code.observe(record)
        return self._code.versions.newest


def make_network(ground: NodeGround, member: MemberGround, roll: MemberRoll) -> PeerNetwork:
    """The peers' port, which does not listen yet, with the book of peers."""
    states = ground.wal.recovered.groups
    book = PeerBook.open(ground.outside.files, ground.directory, ground.wal.instance.identity)
    listen = member.listen or roll.member(member.node).peer
    settings, name = TransportSettings(tick_s=member.tick_s), name_of(states, member.cluster)
    return PeerNetwork(book, member.secret, Endpoint(*listen, tls=member.tls), settings, name=name)


def make_consensus(
    ground: NodeGround,
    parts: NodeParts,
    member: MemberGround,
    *,
    roll: MemberRoll,
    network: PeerNetwork,
    life: LifeEnd,
    stated: StatedEntries,
) -> Consensus:
    """Groups as the log has them; nothing runs yet. What diverged before the start is known again."""
    wal, states, partitions = ground.wal, ground.wal.recovered.groups, range(ground.settings.partitions)
    places = read_places(ground.directory, partitions)
    groups, blocks = restore_groups(
        member.node, source_of(wal), states, places, settings=member.consensus(ground.settings), rng=random.SystemRandom()
    )

    def describe(partition: int, index: int) -> str:
        return str(describe_batch(groups.cores[PartitionId(partition)].log, index, parts.sequencer.meter.names))

    divergences = Divergences(DivergenceFile(ground.outside.files, ground.directory), parts.desk, describe=describe)
    marks = ExecutedMarks(
        partitions, diverged=divergences.begin_divergence, agreed=divergences.end_divergence,
        contradicted=divergences.begin_contradiction, voters=len(roll.members),
    )  # fmt: skip
    divergences.restore_divergences(marks)
    reader = EntryReader(wal)
    machine = SequencedMachine(
        parts.sequencer, terms_of_states(states, places, partitions), blocks, marks=marks, leave_out=parts.desk.leave_out,
        stated=stated.observe, asked=reader.ask, copy_offered=life.end_too_far_back,
    )  # fmt: skip
    machine.learn_code(ground.boot.catalog)
    driver = Replication(
        groups, machine, send=network.send, kick=wal.kick, marks=marks, states=states, entry_blocks=blocks
    )  # fmt: skip
    return Consensus(
        ground=member, roll=roll, network=network, marks=marks, reader=reader, machine=machine, driver=driver,
        fitness=LeaderFitness(NodeId(member.node)),
    )  # fmt: skip


def make_code(ground: NodeGround, parts: NodeParts, program: Program) -> MemberCode:
    """Calls run the newest code that the log names. Raises: as `MemberCode.newest_database`."""
    stated = ground.wal.recovered.groups.state(CLUSTER_GROUP).environment

    def bind(db: Database, version: int) -> None:
        parts.sequencer.intake.switch_code(version, partial(parts.calls.bound.bind, db, version))

    code = MemberCode(
        program, ground.boot.code, {} if stated is None else stated.value, directory=ground.directory,
        partitions=ground.settings.partitions,
        known=lambda version, bundle, of: parts.sites.add_code(version, bundle, partitions=of), bound=bind,
    )  # fmt: skip
    code.run_newest()
    return code


def read_places(directory: str, partitions: Iterable[int]) -> dict[int, Place]:
    """By partition the last entry that its state holds; none of no state."""
    places = dict[int, Place]()
    for partition in partitions:
        position = read_position(state_path(directory, partition), partition)
        if not isinstance(position, str):
            places[partition] = Place(position.index, position.term)
    return places


def terms_of_states(states: GroupStates, places: Mapping[int, Place], partitions: Iterable[int]) -> dict[int, TermTable]:
    """By partition the terms of the entries that its state holds: these are committed, and the log's end may be void."""
    return {p: states.state(p).terms.upto(places[p].index if p in places else 0) for p in partitions}
