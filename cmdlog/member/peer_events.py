"""What a member does with time and with what its peers say.

One rule: it is silent until every first member has said that it has met this disk (`cmdlog.cluster.transport.peer_book`), and
until each peer was called once after this start: one of them may have met a later start of this disk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from cmdlog.cluster.log_reserve import LoggedGroup, LogReserve
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_transport import NoticeKind, PeerNotice
from cmdlog.member.leading.leader_parts import LeaderParts
from cmdlog.member.membership.membership_parts import MembershipParts
from cmdlog.member.read_rounds import ReadRounds
from cmdlog.member.replica_reads import ReplicaProgress
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import Addressed
from cmdlog.wal.ids import PartitionId
from cmdlog.wal.log import Log

LOOK_TICKS: Final = 10  # between two looks at what the log must keep, consensus may forget, who should lead, and commits

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class EventParts:
    """Who is given time and messages."""

    driver: Replication
    reads: ReadRounds
    progress: ReplicaProgress
    leading: LeaderParts
    membership: MembershipParts
    hold_log: Callable[[], None]  # the log keeps what a restart needs
    wal: Log
    cores: Mapping[PartitionId, LoggedGroup]
    passing: Callable[[int], None] = lambda ticks: None  # time, also before this node speaks


class PeerEvents:
    """A `cmdlog.cluster.transport.peer_transport.PeerHandler`. The network's thread."""

    _parts: EventParts
    _reserve: LogReserve

    def __init__(self, unmet: Callable[[], bool]) -> None:
        """`unmet`: whether some first member has not met this disk yet."""
        self._unmet = unmet
        self.speaks = False  # this node takes part in consensus
        self._ticks = 0  # since the last look

    def serve(self, parts: EventParts) -> None:
        """These get everything from now on. Before the network starts."""
        self._parts, self._reserve = parts, LogReserve(parts.cores)

    @property
    def lacks_room(self) -> bool:
        """Entries were left out the last time that some came, for want of room in the log."""
        return self._reserve.lacks_room

    def on_tick(self, ticks: int) -> None:
        """See `PeerHandler`."""
        parts = self._parts
        parts.passing(ticks)
        if not self.speaks:
            parts.leading.look_at_lineage()
            self.speaks = not (self._unmet() or parts.leading.lineage.is_asked_for)
        if not self.speaks:
            return
        for _ in range(ticks):
            parts.driver.tick()
        parts.reads.tick(ticks)
        parts.progress.tick(ticks)
        parts.leading.note_ticks(ticks)
        parts.membership.note_ticks(ticks)
        self._ticks += ticks
        if self._ticks >= LOOK_TICKS:
            self._ticks = 0
            parts.hold_log()
            parts.leading.look_at_lineage()
            parts.leading.look_at_fitness()
            parts.leading.look_at_commits()

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        """See `PeerHandler`."""
        parts = self._parts
        with parts.driver.lock:  # a life that is over from the next entry on is heard before it, and not after
            heard = self.speaks and parts.membership.hears(peer)
            if heard:
                parts.driver.receive(self._reserve.take_fitting(messages, parts.wal.room_bytes - parts.driver.pending_bytes))
        if heard:
            parts.reads.begin_waiting()

    def on_notice(self, notice: PeerNotice) -> None:
        """See `PeerHandler`."""
        if notice.kind is NoticeKind.CONNECTED:
            self._parts.leading.meet_peer(notice.peer)
        self._parts.leading.look_at_lineage()
        log.info("peer", kind=notice.kind.value, node=notice.peer, detail=notice.detail)
