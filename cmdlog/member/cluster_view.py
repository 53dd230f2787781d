"""What a member says about its cluster: its own state, who leads, the members, each group as it is here, its peers.

One rule: gathered when somebody asks, one group at a time under the driver's lock, so heartbeats never wait for it. *Lag* is what
this node knows to be in the leader's log and has not applied, in entries, and as the age of the oldest call among them: the wall
clock of this node minus the time in the call's transaction id, which the leader's clock gave. Of a peer it is what the peer has
not on disk, as far as it has said so: a node that is cut off does not know what it lacks, so its leader says it. Times of arrival
would say nothing there, and samples of positions would cost every tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict
from typing import Any, Final

from cmdlog.cluster.transport.peer_transport import LinkStatus
from cmdlog.member.consensus import Consensus
from cmdlog.member.leading.leadership import Leadership, Standing
from cmdlog.member.lost_majority.unsafe_recovery import end_of
from cmdlog.member.member_ground import MemberState
from cmdlog.node.sequencing.intake import Admission
from cmdlog.node.telemetry.cluster_metrics import ClusterReading, MemberReadiness
from cmdlog.raft.core import RaftCore
from cmdlog.raft.entries import EntryLog
from cmdlog.raft.messages import KIND_NORMAL
from cmdlog.raft.ready import GroupStatus, PeerStatus, Role
from cmdlog.wal.format.batch import batch_span
from cmdlog.wal.format.record import RecordKind, peek_record
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId, txn_millis

LIVE_S: Final = 5.0  # silence of a node whose copy still counts: a moment's stall is none
LOOK_AHEAD_MAX: Final = 64  # entries that are looked at for a call: skips and empty entries have no time
_BATCH: Final = bytes([RecordKind.BATCH])


class ClusterView:
    """Any thread."""

    def __init__(
        self,
        consensus: Consensus,
        leadership: Leadership,
        admission: Admission,
        *,
        applied: Callable[[], Mapping[int, int]],
        speaks: Callable[[], bool],
        parts: Callable[[], Mapping[str, Any]],
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`applied`: per partition the last index that its site has answered; `speaks`: whether this node takes part in
        consensus; `parts`: what the member's other parts show of themselves."""
        self._consensus, self._leadership, self._admission = consensus, leadership, admission
        self._applied, self._speaks, self._parts, self._wall = applied, speaks, parts, wall

    def member_state(self) -> MemberState:
        """RUNNING: it takes part, and knows who leads."""
        return MemberState.RUNNING if self._speaks() and self._leadership.leader is not None else MemberState.CONFIGURING

    def _shown_state(self) -> MemberState:
        """For operators: that some partition is not what the leader has, or that the whole directory went back."""
        state = self.member_state()
        differs = state is MemberState.RUNNING and self._consensus.marks.divergences()
        return MemberState.DIVERGED if differs or _met_later(self._consensus.peers()) else state

    def readiness(self) -> MemberReadiness:
        """Whether calls are served here: by this node, which leads, or by the leader that it follows."""
        leadership = self._leadership
        state, standing, leader = self.member_state(), leadership.standing, leadership.leader
        if state is not MemberState.RUNNING or leader is None:
            return MemberReadiness(serves=False, state=state.value, role="follower", leader="", why=self._why_leaderless())
        url = self._consensus.roll.url_of(leader)
        if leader == self._consensus.node:
            refusal = self._admission.suspension
            why = "it was elected, and is taking over" if standing is not Standing.LEADING else str(refusal or "")
            return MemberReadiness(serves=not why, state=state.value, role="leader", leader=url, why=why)
        return MemberReadiness(serves=True, state=state.value, role="follower", leader=url)

    def _why_leaderless(self) -> str:
        """With the reason for each peer that this node has no connection to."""
        apart = [peer for peer in self._consensus.peers() if peer.connected_since_s is None and peer.last_error]
        reasons = [f"node {peer.node} at {peer.address}: {peer.last_error}" for peer in apart]
        return "; ".join(["it knows no leader: a majority is not reached, or some member has not started yet", *reasons])

    def reading(self) -> ClusterReading:
        """For metrics."""
        return ClusterReading(self.status(), self._leadership.history.takeovers)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        consensus, leadership = self._consensus, self._leadership
        applied, peers = self._applied(), consensus.peers()
        return {
            "state": self._shown_state().value,
            "node": consensus.ground.node,
            "standing": leadership.standing.value,
            "leader": leadership.leader,
            "groups": {str(group): self._group(group, applied) for group in list(consensus.groups.cores)},
            "election": self._election(),
            "diverged": {str(partition): index for partition, index in consensus.marks.divergences().items()},
            "went_back": _met_later(peers),
            "unfit": consensus.fitness.own.names,
            "peers": [asdict(peer) for peer in peers],
            **self._parts(),
            **leadership.history.status(),
        }

    def _election(self) -> dict[str, float]:
        """The time-out, how slow disks and ways are, and how much more time campaigns get for that."""
        consensus = self._consensus
        with consensus.driver.lock:
            all_of = [core.status() for core in consensus.groups.cores.values()]
        tick_ms = 1000 * consensus.ground.tick_s

        def most(of: Callable[[GroupStatus], int]) -> float:
            return round(max(map(of, all_of), default=0) * tick_ms, 1)

        return {
            "timeout_ms": most(lambda status: status.election_ticks),
            "slowest_sync_ms": most(lambda status: status.sync_ticks),
            "slowest_answer_ms": most(lambda status: status.answer_ticks),
            "campaign_extra_ms": most(lambda status: status.campaign_extra_ticks),
        }

    def _group(self, group: PartitionId, applied: Mapping[int, int]) -> dict[str, Any]:
        """One group; {} when it has ended meanwhile."""
        consensus = self._consensus
        with consensus.driver.lock:
            core = consensus.groups.cores.get(group)
            if core is None:
                return {}
            status = core.status()
            run = status.applied if group == CLUSTER_GROUP else applied[group]
            last = status.last if group == CLUSTER_GROUP else max(status.last, consensus.marks.leader_commit(group))
            return {
                "role": status.role.value,
                "term": status.term,
                "leader": status.leader,
                "last": last,
                "end": list(end_of(core)),
                "durable": status.durable,
                "commit": status.commit,
                "applied": run,
                **self._lag(core.log, run, last),
                "transfer": status.transfer,
                "read_round": core.reads.round,
                "reads_waiting": core.reads.count + len(core.reads.asked),
                "voters": [*status.configuration.voters],
                "learners": [*status.configuration.learners],
                "whole": self._whole_copies(status),
                "peers": [self._peer(core, peer) for peer in status.peers],
            }

    def _whole_copies(self, status: GroupStatus) -> list[int]:
        """Nodes that are heard from and are known to hold everything that is committed, ascending; at the leader alone."""
        silent_max = LIVE_S / self._consensus.ground.tick_s
        live = [of for of in status.peers if of.silent_ticks is not None and of.silent_ticks <= silent_max]
        whole = [int(of.node) for of in live if of.match >= status.commit]
        return sorted([*whole, int(status.node)]) if status.role is Role.LEADER else []

    def _peer(self, core: RaftCore, peer: PeerStatus) -> dict[str, Any]:
        """As this node, which leads the group, knows it."""
        silent = peer.silent_ticks
        return {
            "node": peer.node,
            "match": peer.match,
            **self._lag(core.log, peer.match, core.log.last),
            "sending": peer.sending.value,
            "silent_s": None if silent is None else round(silent * self._consensus.ground.tick_s, 3),
            "in_flight_bytes": peer.in_flight_bytes,
        }

    def _lag(self, log: EntryLog, after: int, last: int) -> dict[str, Any]:
        entries = max(0, last - after)
        called_s = first_call_s(log, after) if entries else None
        return {"lag_entries": entries, "lag_s": None if called_s is None else round(max(0.0, self._wall() - called_s), 3)}


def _met_later(peers: Collection[LinkStatus]) -> list[int]:
    """Nodes that have met a later start of this node's directory."""
    return sorted(int(peer.node) for peer in peers if peer.met_later)


def first_call_s(log: EntryLog, after: int) -> float | None:
    """Unix time of the first call after that index which is in memory; None where there is none."""
    begin = max(0, after - log.held)
    kinds = log.kinds[begin + log.held - log.base :]
    for kind, payload in zip(kinds, log.payloads[begin : begin + LOOK_AHEAD_MAX], strict=False):
        if kind == KIND_NORMAL and payload[4:5] == _BATCH:
            return txn_millis(batch_span(peek_record(payload))[0]) / 1000
    return None
