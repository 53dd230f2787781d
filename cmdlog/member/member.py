"""One of several nodes: the `Replicator` with consensus between a node's sequencer and its log.

One rule: a call is logged by the leader alone, is run when a majority has it, and is answered by the node that proposed it. A
node that does not lead sends calls on, or refuses them and says who leads.

    BOOTSTRAPPING   states are brought to what was executed here before; consensus does not run
    CONFIGURING     consensus runs; no leader takes calls yet
    RUNNING         this node takes calls, or knows who does
"""

from __future__ import annotations

from asyncio import AbstractEventLoop
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import orjson

from cmdlog.cluster.executed_marks import digest_of
from cmdlog.cluster.membership.operator_desk import OperatorDesk
from cmdlog.member.cluster_view import ClusterView
from cmdlog.member.consensus import Consensus
from cmdlog.member.leading.leadership import Standing
from cmdlog.member.leading.leading import Leading
from cmdlog.member.lost_majority.unsafe_recovery import UnsafeRecovery
from cmdlog.member.member_calls import MemberCalls, place_apart
from cmdlog.member.member_code import MemberCode
from cmdlog.member.member_copies import MemberCopies
from cmdlog.member.member_ground import MemberState
from cmdlog.member.membership.membership import Membership
from cmdlog.member.peer_events import PeerEvents
from cmdlog.member.read_rounds import ReadRounds
from cmdlog.member.rejoin.life_end import LifeEnd
from cmdlog.member.replica_reads import ReplicaProgress, ReplicaReads
from cmdlog.node.assembly import NodeGround, NodeParts, SelfChecks
from cmdlog.node.deploying.deployer import Deployer
from cmdlog.node.forwarding.forwarded_calls import Placing
from cmdlog.node.outcome import Done, Durability, NoLeader
from cmdlog.node.placing.local_calls import StaleReads
from cmdlog.node.placing.router import Encoded, Placed
from cmdlog.node.sequencing.intake import Closed
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.slot_map import Route
from cmdlog.wal.ids import BlockNumber, Lsn
from snapshot.errors import PointRefused

HAND_OVER_S: Final = 3.0  # for another node to take the leadership that an orderly stop offers
ANCHOR: Final = "consensus"


class Member:
    """See the module; also what the sites report to (`cmdlog.node.site_events.Replica`)."""

    durabilities: Sequence[Durability] = ("sync",)  # a majority has an entry before it is executed

    def __init__(
        self,
        ground: NodeGround,
        parts: NodeParts,
        checks: SelfChecks,
        *,
        consensus: Consensus,
        leading: Leading,
        membership: Membership,
        code: MemberCode,
        life: LifeEnd,
    ) -> None:
        settings, calls, driver = ground.settings, parts.calls, consensus.driver
        self._ground, self._local, self._parts = ground, calls, parts
        self.consensus, self.leading, self.membership, self.code, self.life = consensus, leading, membership, code, life
        self.reads = ReadRounds(driver, consensus.machine, reads_max=settings.inflight_calls_max)
        self._replicated, self._admission = parts.sequencer.replicated, parts.sequencer.admission
        self._progress = ReplicaProgress(driver, consensus.machine, self._replicated.run_up_to)
        self.stale = ReplicaReads(
            StaleReads(ground.directory, settings, calls.router, calls.readiness.check_ready), self._progress, driver.lock,
            diverged=consensus.marks.divergences, current=self._is_current,
            leader=lambda: consensus.roll.url_of(leading.leadership.leader),
        )  # fmt: skip
        self.deployer = Deployer(ground, parts, leading.code_log.changes, leading.code_log.begin_deploy)
        placing = Placing(self._place_forwarded, self.reads.add, calls.clock.observe, parts.desk.failures.trace_of)
        self.calls = MemberCalls(
            consensus.ground, consensus.roll, settings, placing, bound=calls.bound, slots=calls.router.slots,
            admission=self._admission, name=consensus.network.name,
        )  # fmt: skip
        self.copies = MemberCopies(
            consensus, settings, ground.wal, leadership=leading.leadership, snapshots=parts.snapshots,
            too_far_back=life.too_far_back, membership=membership, known_sums=checks.scrub.known_sums,
        ).make_server()  # fmt: skip
        self.events = PeerEvents(
            consensus, leading, membership, ground.wal, life=life, reads=self.reads, progress=self._progress,
            hold_log=self.hold_log,
        )  # fmt: skip
        self._recovery = UnsafeRecovery(consensus.ground.node, driver, consensus.network)
        self.operators = OperatorDesk(membership, self.copies, self._recovery)
        self.cluster = ClusterView(
            consensus, leading.leadership, self._admission, applied=self._replicated.run_up_to,
            speaks=lambda: calls.readiness.ready and self.events.speaks, parts=self._describe_parts,
        )  # fmt: skip
        calls.readiness.watch_failure(lambda _error: self._lose_reads())

    def _describe_parts(self) -> Mapping[str, Any]:
        return {
            **self.operators.describe_members(),
            "too_far_back": sorted(self.life.too_far_back),
            "forwarding": self.calls.status(),
            "copying": self.copies.status(),
            "read_rounds": self.reads.begun,
        }

    # -- beginning and end ---------------------------------------------------------------------------------------------------

    def start_log(self) -> None:
        """The log writes what consensus wants; a start adds nothing. Calls are refused until there is a leader."""
        wal, settings = self._ground.wal, self._ground.settings
        self._parts.facts.note_logged()
        self._parts.desk.serve_replica(self)
        self.hold_log()  # before the log is started, and may let anything go
        self._parts.sequencer.intake.refuse(Closed.LEADER, NoLeader("the cluster has no leader yet"))
        wal.start(
            self.consensus.driver, threads=settings.log_threads, timed=self._parts.sequencer.meter.synced.append,
            whole_ring=settings.preallocate == "ring",
        )  # fmt: skip

    def attach(self, loop: AbstractEventLoop | None) -> None:
        """Begins to speak with the other nodes; calls are accepted once a leader has taken over."""
        consensus = self.consensus
        self.leading.start()
        self.membership.start()
        consensus.reader.start(consensus.driver)
        self.calls.start(consensus.network, loop)
        self.copies.start(consensus.network)
        self._recovery.resume()
        consensus.network.start(self.events)

    def hand_over(self) -> bool:
        """Another node gets what this one leads. Blocking, for `HAND_OVER_S` at most."""
        return self.leading.transfer.hand_over(HAND_OVER_S)

    def stop(self, hurried: Callable[[], bool]) -> None:
        """A leader hands over first; then nothing of consensus runs."""
        self.hand_over()
        self._replicated.leave(hurried, self.consensus.network.stop)
        self.copies.stop()
        self._lose_reads()
        self.leading.takeover.stop()
        self.code.stop()
        self.membership.stop()
        self.consensus.reader.stop()

    def finish(self) -> None:
        """Sends the answers that others wait for."""
        self.calls.stop()

    def _lose_reads(self) -> None:
        """Those that wait are refused."""
        self.reads.lose_all()
        self._progress.lose_all()

    # -- the log, and the sites ----------------------------------------------------------------------------------------------

    def hold_log(self) -> None:
        """The log keeps what a restart needs from it, and consensus lets go of what every live follower has."""
        driver, wal = self.consensus.driver, self._ground.wal
        with driver.lock:
            oldest = driver.first_needed_block(self._replicated.run_up_to())
            driver.forget_run()
        wal.anchors.set(ANCHOR, Lsn(BlockNumber(wal.durable_block if oldest is None else oldest), 0))

    def executed(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        """A site has applied an entry."""
        digest = 0 if answer is None else digest_of(answer.rows_digest, answer.result_hashes)
        self.consensus.driver.executed(partition, index, digest)
        self._progress.executed(partition, index)

    def may_skip(self, partition: int, index: int) -> bool:
        """Whether this node proposed the call, and still leads: nobody else has executed it."""
        return self.leading.leadership.standing is Standing.LEADING and self._replicated.proposed(partition, index)

    # -- calls ---------------------------------------------------------------------------------------------------------------

    def call(
        self, route: Route, params: list[Any], *, key: bytes = b"", done: Done, txn: int | None = None,
        durability: Durability | None = None,
    ) -> int | None:  # fmt: skip
        """Here or on the node that leads. A read is placed once a majority has confirmed that this one still leads."""
        local = self._local
        local.readiness.check_ready()
        if (where := self.calls.elsewhere((route,))) is not None:
            return self.calls.send(where, [(route, params, key, done, durability)], txn=txn)[0]
        if not route.read_only:
            return local.call(route, params, key=key, done=done, txn=txn, durability="sync")
        self._admission.raise_refusal()
        if txn is not None:
            local.clock.observe(txn)
        self.reads.place_confirmed(partial(local.call, route, params, key=key, done=done), done)
        return None if route.everywhere else local.router.slots.partition_of(route.procedure, params)

    def call_many(self, calls: Sequence[Placed]) -> list[int | None]:
        """As `call`, all of them at one place."""
        self._local.readiness.check_ready()
        if (where := self.calls.elsewhere(call[0] for call in calls)) is not None:
            return self.calls.send(where, calls)
        return place_apart(calls, self.call, self._local.call_many)

    def call_encoded(self, calls: Sequence[Encoded]) -> None:
        """Calls that may have to be sent on are bound once more."""
        self.call_many([(route, orjson.loads(body), key, done, durability) for route, _, body, key, done, durability in calls])

    def _place_forwarded(self, calls: Sequence[Encoded]) -> None:
        """Places calls that another node has sent. Raises: CallRefused, and then none of them is placed."""
        self._local.readiness.check_ready()
        self._admission.raise_refusal()
        self._local.call_encoded([(*call[:5], "sync") for call in calls])

    def confirm_query(self) -> None:
        """By the leader alone: what it reads includes every call that was answered before."""
        self._admission.raise_refusal()
        self.reads.wait_until_confirmed()
        self._admission.raise_refusal()  # it may have led, followed and begun to lead again since

    def check_point(self) -> None:
        """Raises: PointRefused: a point is a moment of all partitions, and the log of a cluster states none yet."""
        raise PointRefused(
            "recovery points are taken on a node alone; `cmdlog recover DIR... --until` reaches any moment of a cluster's log"
        )

    def _is_current(self, route: Route) -> bool:
        """Whether the procedure is of the code that the sites have."""
        return self.code.is_bound and self._local.bound.routes.get(route.name) is route

    # -- what others see -----------------------------------------------------------------------------------------------------

    @property
    def state(self) -> MemberState:
        """Of its life as a member."""
        return self.cluster.member_state()
