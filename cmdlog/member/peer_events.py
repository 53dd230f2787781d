"""What a member does with time and with what its peers say.

One rule: it is silent until every first member has said that it has met this disk (`cmdlog.cluster.transport.peer_book`), and
until each peer was called once after this start: one of them may have met a later start of this disk.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import structlog

from cmdlog.cluster.genesis import has_begun
from cmdlog.cluster.log_reserve import LogReserve
from cmdlog.cluster.transport.peer_transport import NoticeKind, PeerNotice
from cmdlog.member.consensus import Consensus
from cmdlog.member.leading.leading import Leading
from cmdlog.member.membership.membership import Membership
from cmdlog.member.read_rounds import ReadRounds
from cmdlog.member.rejoin.life_end import LifeEnd
from cmdlog.member.replica_reads import ReplicaProgress
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.layout import Addressed
from cmdlog.wal.log import Log

LOOK_TICKS: Final = 10  # between two looks at what the log must keep, consensus may forget, who should lead, and commits

log = structlog.get_logger("cmdlog.cluster")


class PeerEvents:
    """A `cmdlog.cluster.transport.peer_transport.PeerHandler`. The network's thread."""

    def __init__(
        self,
        consensus: Consensus,
        leading: Leading,
        membership: Membership,
        wal: Log,
        *,
        life: LifeEnd,
        reads: ReadRounds,
        progress: ReplicaProgress,
        hold_log: Callable[[], None],
    ) -> None:
        """`life` gets time before this node speaks, too; `hold_log`: the log keeps what a restart needs."""
        self._consensus, self._driver, self._leading, self._membership = consensus, consensus.driver, leading, membership
        self._wal, self._life, self._reads, self._progress, self._hold_log = wal, life, reads, progress, hold_log
        self._reserve = LogReserve(consensus.driver, wal)
        self.speaks = False  # this node takes part in consensus
        self._ticks = 0  # since the last look

    @property
    def _is_met(self) -> bool:
        """Whether every first member has met this disk."""
        others = len(self._consensus.ground.cluster.members) - 1
        return has_begun(self._wal.recovered.groups) or len(self._consensus.network.book.confirmed) >= others

    @property
    def lacks_room(self) -> bool:
        """Entries were left out the last time that some came, for want of room in the log."""
        return self._reserve.lacks_room

    def on_tick(self, ticks: int) -> None:
        """See `PeerHandler`."""
        leading = self._leading
        self._life.note_ticks(ticks, is_led=leading.leadership.leader is not None, stuck_at=self._stuck_at())
        if not self.speaks:
            leading.look_at_lineage()
            self.speaks = self._is_met and not leading.lineage.is_asked_for
        if not self.speaks:
            return
        for _ in range(ticks):
            self._driver.tick()
        self._reads.tick(ticks)
        self._progress.tick(ticks)
        leading.note_ticks(ticks)
        self._membership.note_ticks(ticks)
        self._ticks += ticks
        if self._ticks >= LOOK_TICKS:
            self._ticks = 0
            self._hold_log()
            leading.look_at_lineage()
            leading.look_at_fitness()
            leading.commits.check_commits()

    def _stuck_at(self) -> object:
        """How far a node has run whose log is full of entries that it may not run yet."""
        return self.lacks_room and self._consensus.marks.waits and self._progress.run_up_to()

    def on_messages(self, peer: NodeId, messages: list[Addressed]) -> None:
        """See `PeerHandler`."""
        driver = self._driver
        with driver.lock:  # a life that is over from the next entry on is heard before it, and not after
            heard = self.speaks and self._membership.hears(peer)
            if heard:
                driver.receive(self._reserve.take_fitting(messages))
        if heard:
            self._reads.begin_waiting()

    def on_notice(self, notice: PeerNotice) -> None:
        """See `PeerHandler`."""
        if notice.kind is NoticeKind.CONNECTED:
            self._leading.meet_peer(notice.peer)
        self._leading.look_at_lineage()
        log.info("peer", kind=notice.kind.value, node=notice.peer, detail=notice.detail)
