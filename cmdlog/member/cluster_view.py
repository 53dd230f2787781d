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
from dataclasses import asdict, dataclass
from typing import Any, Final

from cmdlog.cluster.executed_marks import ExecutedMarks
from cmdlog.cluster.leader_fitness import LeaderFitness
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_transport import LinkStatus
from cmdlog.member.leadership import Leadership, Standing
from cmdlog.member.member_ground import MemberGround, MemberState
from cmdlog.member.member_roll import MemberRoll
from cmdlog.member.read_rounds import ReadRounds
from cmdlog.node.sequencing.admission import Admission
from cmdlog.node.telemetry.cluster_metrics import ClusterReading, MemberReadiness
from cmdlog.raft.core import RaftCore
from cmdlog.raft.entries import EntryLog
from cmdlog.raft.messages import KIND_NORMAL
from cmdlog.raft.multi_raft import RaftGroups
from cmdlog.raft.ready import GroupStatus, PeerStatus
from cmdlog.raft.state import Role
from cmdlog.wal.format.batch import batch_span
from cmdlog.wal.format.record import RecordKind, peek_record
from cmdlog.wal.ids import CLUSTER_GROUP, PartitionId, txn_millis

LIVE_S: Final = 5.0  # silence of a node whose copy still counts: a moment's stall is none
LOOK_AHEAD_MAX: Final = 64  # entries that are looked at for a call: skips and empty entries have no time
_BATCH: Final = bytes([RecordKind.BATCH])


@dataclass(frozen=True, slots=True)
class MemberParts:
    """What of a member the view looks at. `applied`: per partition the last index that its site has answered."""

    ground: MemberGround
    roll: MemberRoll
    groups: RaftGroups
    driver: Replication
    leadership: Leadership
    marks: ExecutedMarks
    applied: Callable[[], Mapping[int, int]]
    peers: Callable[[], Collection[LinkStatus]]
    too_far_back: Collection[int]  # groups whose missing entries no log holds
    speaks: Callable[[], bool]  # whether this node takes part in consensus
    fitness: LeaderFitness
    rounds: ReadRounds
    forwarding: Callable[[], Mapping[str, Any]]
    copies: Callable[[], Mapping[str, Any]]  # that others take of this node
    members: Callable[[], Mapping[str, Any]]  # what `OperatorDesk.describe_members` says
    admission: Admission
    tick_s: float


class ClusterView:
    """Any thread."""

    def __init__(self, parts: MemberParts, *, wall: Callable[[], float] = time.time) -> None:
        self._parts, self._wall = parts, wall

    def member_state(self) -> MemberState:
        """RUNNING: it takes part, and knows who leads."""
        parts = self._parts
        return MemberState.RUNNING if parts.speaks() and parts.leadership.leader is not None else MemberState.CONFIGURING

    def _shown_state(self) -> MemberState:
        """For operators: that some partition is not what the leader has, or that the whole directory went back."""
        state, parts = self.member_state(), self._parts
        differs = state is MemberState.RUNNING and parts.marks.divergences()
        return MemberState.DIVERGED if differs or _met_later(parts.peers()) else state

    def readiness(self) -> MemberReadiness:
        """Whether calls are served here: by this node, which leads, or by the leader that it follows."""
        parts = self._parts
        leadership = parts.leadership
        state, standing, leader = self.member_state(), leadership.standing, leadership.leader
        if state is not MemberState.RUNNING or leader is None:
            return MemberReadiness(serves=False, state=state.value, role="follower", leader="", why=self._why_leaderless())
        url = parts.roll.url_of(leader)
        if leader == parts.ground.node:
            refusal = parts.admission.suspension
            why = "it was elected, and is taking over" if standing is not Standing.LEADING else str(refusal or "")
            return MemberReadiness(serves=not why, state=state.value, role="leader", leader=url, why=why)
        return MemberReadiness(serves=True, state=state.value, role="follower", leader=url)

    def _why_leaderless(self) -> str:
        """With the reason for each peer that this node has no connection to."""
        apart = [peer for peer in self._parts.peers() if peer.connected_since_s is None and peer.last_error]
        reasons = [f"node {peer.node} at {peer.address}: {peer.last_error}" for peer in apart]
        return "; ".join(["it knows no leader: a majority is not reached, or some member has not started yet", *reasons])

    def reading(self) -> ClusterReading:
        """For metrics."""
        return ClusterReading(self.status(), self._parts.leadership.history.takeovers)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        parts = self._parts
        applied, peers = parts.applied(), parts.peers()
        return {
            "state": self._shown_state().value,
            "node": parts.ground.node,
            "standing": parts.leadership.standing.value,
            "leader": parts.leadership.leader,
            **parts.members(),
            "groups": {str(group): self._group(group, applied) for group in list(parts.groups.cores)},
            "election": self._election(),
            "too_far_back": sorted(parts.too_far_back),
            "diverged": {str(partition): index for partition, index in parts.marks.divergences().items()},
            "went_back": _met_later(peers),
            "unfit": parts.fitness.own.names,
            "peers": [asdict(peer) for peer in peers],
            "forwarding": dict(parts.forwarding()),
            "copying": dict(parts.copies()),
            "read_rounds": parts.rounds.begun,
            **parts.leadership.history.status(),
        }

    def _election(self) -> dict[str, float]:
        """The time-out, how slow disks and ways are, and how much more time campaigns get for that."""
        parts = self._parts
        with parts.driver.lock:
            all_of = [core.status() for core in parts.groups.cores.values()]
        tick_ms = 1000 * parts.tick_s

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
        parts = self._parts
        with parts.driver.lock:
            core = parts.groups.cores.get(group)
            if core is None:
                return {}
            status = core.status()
            run = status.applied if group == CLUSTER_GROUP else applied[group]
            last = status.last if group == CLUSTER_GROUP else max(status.last, parts.marks.leader_commit(group))
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
        silent_max = LIVE_S / self._parts.tick_s
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
            "silent_s": None if silent is None else round(silent * self._parts.tick_s, 3),
            "in_flight_bytes": peer.in_flight_bytes,
        }

    def _lag(self, log: EntryLog, after: int, last: int) -> dict[str, Any]:
        entries = max(0, last - after)
        called_s = first_call_s(log, after) if entries else None
        return {"lag_entries": entries, "lag_s": None if called_s is None else round(max(0.0, self._wall() - called_s), 3)}


def _met_later(peers: Collection[LinkStatus]) -> list[int]:
    """Nodes that have met a later start of this node's directory."""
    return sorted(int(peer.node) for peer in peers if peer.met_later)


def end_of(core: RaftCore) -> tuple[int, int]:
    """Term and index of the last entry: what survivors of a lost majority are compared by."""
    return int(core.log.last_term), int(core.log.last)


def first_call_s(log: EntryLog, after: int) -> float | None:
    """Unix time of the first call after that index which is in memory; None where there is none."""
    begin = max(0, after - log.held)
    kinds = log.kinds[begin + log.held - log.base :]
    for kind, payload in zip(kinds, log.payloads[begin : begin + LOOK_AHEAD_MAX], strict=False):
        if kind == KIND_NORMAL and payload[4:5] == _BATCH:
            return txn_millis(batch_span(peek_record(payload))[0]) / 1000
    return None
