"""What a source answers: who may copy it, what a copy consists of, and which bytes are asked for.

One rule: a copy is given to that life of a node's disk alone which the cluster has admitted, as this node knows it from its own
committed log, and it is looked up again for every piece. What a copy needs is held before its manifest is given away: the files
of each partition's newest snapshot (`held_files`), and the log after it (`held_log`).

Everything here may block for a moment: it is called in threads for that, never in an event loop.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from cmdlog.cluster.copying.copied_groups import GroupReach, partition_state
from cmdlog.cluster.copying.copy_frames import COPY_ID_BYTES, ChunkPlace
from cmdlog.cluster.copying.copy_sessions import CopySession, CopySessions
from cmdlog.cluster.copying.copy_values import (
    CopyEnd,
    CopyEnding,
    CopyManifest,
    CopyPlace,
    CopyRefused,
    CopyRequest,
    CopyStanding,
    CopyWait,
    LogShape,
    RefusalCode,
)
from cmdlog.cluster.copying.held_files import FileLost, HeldFile, HeldFiles, HeldLog
from cmdlog.cluster.copying.log_sums import KnownSums, SumsRequest
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.secure_frames import Peer
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.catalog import Snapshot

WAIT_S: Final = 0.2  # between two questions of a recipient for a fresh snapshot; few rows need no longer
LAG_MAX: Final = (
    4096  # entries that a snapshot may lack of what its node had to have: the leader keeps as many for every follower
)

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """What copies may cost a source."""

    copies_max: int
    rate: int  # bytes per second, of all copies together; 0: no limit


class SourceNode(Protocol):
    """The node that is copied. Any thread; whatever is asked blocks for a moment at most."""

    node: int
    directory: str
    shape: LogShape
    partitions: Sequence[int]

    @property
    def reaches(self) -> Mapping[int, GroupReach]: ...  # of every group
    @property
    def faults(self) -> Sequence[bytes]: ...  # records of the fault log
    @property
    def peers(self) -> Mapping[NodeId, PeerRecord]: ...  # what the book of peers says, this node included
    @property
    def problem(self) -> str: ...  # why this node is not to be copied; "" where nothing is wrong
    @property
    def is_short(self) -> bool: ...  # the log has little room left

    def cluster_state(self, reach: GroupReach) -> GroupState: ...  # the cluster group, as far as it reaches
    def newest(self, partition: int) -> Snapshot | None: ...  # a partition's newest usable snapshot
    def request_snapshots(self, partitions: Sequence[int]) -> Future[dict[str, Any]]: ...
    def hold_log(self, name: str, block: int) -> None: ...  # an anchor of that name
    def let_log_go(self, name: str) -> None: ...
    def member_of(self, node: int) -> ClusterMember | None: ...  # what is committed of it
    def take_wish(self, wish: CopyWish) -> CopyStanding: ...
    def known_sums(self, request: SumsRequest) -> Mapping[int, int]: ...  # of the log, that its scrub has read


class CopyDesk:
    """Thread-safe."""

    def __init__(
        self,
        node: SourceNode,
        limits: CopyLimits,
        *,
        now: Callable[[], float] = time.monotonic,
        later: Callable[[Callable[[], None]], None] = lambda work: work(),
    ) -> None:
        """`later` runs work that may take long, and that nobody waits for."""
        self._node, self._limits, self._now, self._later = node, limits, now, later
        self._lock = threading.Lock()  # of the sessions
        self._beginning = threading.Lock()  # one copy begins at a time
        self._sessions = CopySessions(copies_max=limits.copies_max)
        self._held_log = HeldLog(node.hold_log, node.let_log_go)
        self._snapshots: Future[dict[str, Any]] | None = None  # those that were asked for last
        self._closed = False

    # -- recipients --------------------------------------------------------------------------------------------------------

    def ask(self, peer: Peer, wish: CopyWish) -> CopyStanding:
        """The state of the wish. Raises: CopyRefused."""
        _check_recipient(peer, wish.node, wish.incarnation)
        return self._node.take_wish(wish)

    def sums(self, request: SumsRequest) -> KnownSums:
        """What this node has read of these ranges of its log."""
        return KnownSums(self._node.known_sums(request))

    def begin_copy(self, peer: Peer, request: CopyRequest, link: object) -> CopyManifest | CopyWait:
        """Begins a copy; see the module. Raises: CopyRefused; WalError, BadRecord, OSError."""
        _check_recipient(peer, request.node, request.incarnation)
        with self._beginning:
            member = self._check_admitted(peer)
            reaches = self._node.reaches
            _check_terms(request, reaches)
            _check_need(request, reaches)
            if problem := self._node.problem:
                raise CopyRefused(RefusalCode.UNAVAILABLE, problem)
            self.expire()
            with self._lock:
                replaced = self._sessions.check_room(peer, link)
            self._end(replaced, RefusalCode.UNKNOWN_COPY, "a newer copy of the same node has begun")
            needed = {group: max(reach.base, _place_of(member, group) - LAG_MAX) for group, reach in reaches.items()}
            if lacking := [group for group, reach in reaches.items() if reach.handed < _place_of(member, group)]:
                return CopyWait(WAIT_S, f"node {self._node.node} has not caught up itself in groups {lacking}")
            if wait := self._await_snapshots({g: index for g, index in needed.items() if g != CLUSTER_GROUP}):
                return wait
            return self._begin_held(peer, link)

    def locate(self, peer: Peer, place: ChunkPlace, link: object) -> HeldFile:
        """The file of a chunk that exists. Raises: CopyRefused."""
        self._check_admitted(peer)
        with self._lock:
            session = self._sessions.find(place.copy, peer, link, self._now())
            if place.file >= len(session.held.files):
                raise CopyRefused(
                    RefusalCode.BAD_REQUEST, f"the copy has {len(session.held.files)} files, and no file {place.file}"
                )
            held = session.held.files[place.file]
        if place.offset + place.length > held.about.size:
            end = place.offset + place.length
            raise CopyRefused(RefusalCode.BAD_REQUEST, f"{held.about.name} has {held.about.size} bytes, and no byte {end - 1}")
        return held

    def note_sent(self, copy: bytes, size: int) -> None:
        """So many bytes are on their way."""
        with self._lock, contextlib.suppress(KeyError):
            self._sessions.get(copy).note_sent(size, self._now())

    def end(self, peer: Peer, end: CopyEnd, link: object) -> None:
        """The recipient is done with a copy. Raises: CopyRefused."""
        with self._lock:
            session = self._sessions.find(end.copy, peer, link, self._now())
        log.info("copy_ended", node=peer.node, copy=end.copy.hex(), outcome=end.ending.value, why=end.why, sent=session.sent)
        why = f"the copy ended: {end.ending.value}"
        self._end([session], RefusalCode.UNKNOWN_COPY, why, keeps_log=end.ending is CopyEnding.DONE)

    def leave(self, link: object) -> None:
        """A connection is over; its copies may be continued by another one."""
        with self._lock:
            self._sessions.leave(link)

    # -- the node ----------------------------------------------------------------------------------------------------------

    def cancel(self, node: int, why: str) -> int:
        """Ends the copies to a node, for an operator; their number."""
        with self._lock:
            sessions = self._sessions.of_node(node)
        log.warning("copy_cancelled", node=node, copies=len(sessions), why=why)
        return self._end(sessions, RefusalCode.CANCELLED, why)

    def expire(self) -> None:
        """Ends copies of which nothing is read any more, and lets go of log that is needed no more, or elsewhere. Called now and
        then."""
        with self._lock:
            silent = self._sessions.silent(self._now())
        for session in silent:
            log.warning("copy_expired", node=session.peer.node, copy=session.copy.hex(), sent=session.sent, size=session.size)
        self._end(silent, RefusalCode.UNKNOWN_COPY, "nothing was read of the copy for too long: begin again")
        with self._lock:
            self._held_log.release_done(self._now(), self._is_admitted)
            if (nodes := self._held_log.nodes) and self._node.is_short:
                log.warning("copy_log_released", nodes=nodes, remedy="a log of more segments holds more for a copy")
                for node in nodes:
                    self._held_log.release_node(node)

    def close(self) -> None:
        """Ends all copies, and begins none."""
        with self._beginning:
            self._closed = True
            with self._lock:
                sessions = self._sessions.all()
            self._end(sessions, RefusalCode.UNAVAILABLE, "the node is stopping")
            with self._lock:
                for node in self._held_log.nodes:
                    self._held_log.release_node(node)

    def status(self) -> dict[str, Any]:
        """Plain data."""
        with self._lock:
            sessions = [session.status(self._now()) for session in self._sessions.all()]
        return {"rate_max": self._limits.rate, "copies_max": self._limits.copies_max, "copies": sessions}

    # -- inside ------------------------------------------------------------------------------------------------------------

    def _check_admitted(self, peer: Peer) -> ClusterMember:
        """What the cluster says of a recipient that it has admitted. Raises: CopyRefused."""
        member = self._node.member_of(peer.node)
        name = f"incarnation {peer.incarnation.hex()} of node {peer.node}"
        if member is not None and member.stage is MemberStage.REMOVED:
            raise CopyRefused(RefusalCode.DELETED, f"node {peer.node} was removed from the cluster")
        if member is not None and (peer.incarnation in member.former or member.incarnation not in (b"", peer.incarnation)):
            raise CopyRefused(RefusalCode.WRONG_RECIPIENT, f"{name} is not the one that the cluster knows")
        if member is None or member.stage is not MemberStage.ADMITTED:
            said = "nothing" if member is None else f"{member.stage.value!r}"
            raise CopyRefused(RefusalCode.NOT_ADMITTED, f"{name} is not admitted: node {self._node.node} knows {said} of it")
        return member

    def _is_admitted(self, node: int) -> bool:
        """It may still lack entries: it does not vote again."""
        member = self._node.member_of(node)
        return member is not None and member.stage is MemberStage.ADMITTED

    def _await_snapshots(self, needed: Mapping[int, int]) -> CopyWait | None:
        """None: every partition has a snapshot at or after that index. Else they are being taken. Raises: CopyRefused."""
        lacking = [p for p, index in sorted(needed.items()) if (found := self._node.newest(p)) is None or found.index < index]
        if not lacking:
            return None
        asked, self._snapshots = self._snapshots, None
        if asked is not None and asked.done() and (error := asked.exception()) is not None:
            raise CopyRefused(RefusalCode.UNAVAILABLE, f"the snapshot that a copy needs cannot be taken: {error}")
        self._snapshots = asked if asked is not None and not asked.done() else self._node.request_snapshots(lacking)
        return CopyWait(WAIT_S, f"node {self._node.node} takes snapshots of partitions {lacking}")

    def _begin_held(self, peer: Peer, link: object) -> CopyManifest:
        held = HeldFiles(self._node.directory)
        try:
            if self._closed:
                raise CopyRefused(RefusalCode.UNAVAILABLE, "the node is stopping")
            manifest = self._manifest_of(held, self._hold(peer, held))
        except BaseException as error:
            self._later(held.release)
            with self._lock:
                self._held_log.release_node(peer.node)
            if isinstance(error, FileLost):
                raise CopyRefused(RefusalCode.FILE_LOST, str(error)) from error
            raise
        now = self._now()
        session = CopySession(manifest.copy, peer, held, manifest.size, now, now, link)
        with self._lock:
            self._sessions.add(session)
        log.info("copy_begun", node=peer.node, copy=manifest.copy.hex(), files=len(manifest.files), size=manifest.size)
        return manifest

    def _hold(self, peer: Peer, held: HeldFiles) -> dict[int, Snapshot]:
        """Files and log of the newest snapshots. Raises: FileLost."""
        snapshots: dict[int, Snapshot] = {}
        for partition in self._node.partitions:
            snapshot = self._node.newest(partition)
            if snapshot is None or snapshot.manifest is None:
                raise FileLost(f"partition {partition} has no snapshot any more")
            with self._lock:
                self._held_log.hold_partition(peer.node, partition, snapshot.manifest.log_block)
            held.hold_snapshot(snapshot)
            snapshots[partition] = snapshot
        return snapshots

    def _manifest_of(self, held: HeldFiles, snapshots: Mapping[int, Snapshot]) -> CopyManifest:
        """The groups are looked at after the snapshots are held, so they reach at least as far; and after the book of peers, so
        every life that it knows by the log is in the copy, too. Raises: FileLost, WalError."""
        node, peers, reaches = self._node, self._node.peers, self._node.reaches
        groups: dict[int, GroupState] = {CLUSTER_GROUP: node.cluster_state(reaches[CLUSTER_GROUP])}
        places: dict[int, CopyPlace] = {}
        for partition, snapshot in snapshots.items():
            about = snapshot.manifest
            assert about is not None
            if about.index < reaches[partition].base:
                raise FileLost(f"partition {partition} has moved beyond its snapshot meanwhile")
            groups[partition] = partition_state(reaches[partition], about)
            places[partition] = CopyPlace(about.index, about.term, about.checksum, about.txn_id)
        return CopyManifest(
            copy=os.urandom(COPY_ID_BYTES),
            source=node.node,
            groups=groups,
            faults=tuple(node.faults),
            log=node.shape,
            files=tuple(file.about for file in held.files),
            partitions=places,
            rate=self._limits.rate,
            peers=peers,
        )

    def _end(self, sessions: Sequence[CopySession], code: RefusalCode, why: str, *, keeps_log: bool = False) -> int:
        """They are over; how many of them were under way until now."""
        with self._lock:
            ended = [session for session in sessions if self._sessions.remove(session, code, why)]
            for session in ended:  # under the lock: the next copy of the same node sets the same names
                if keeps_log:
                    self._held_log.keep_for_catch_up(session.peer.node, self._now())
                else:
                    self._held_log.release_node(session.peer.node)
        for session in ended:
            self._later(session.held.release)
        return len(ended)


def _check_recipient(peer: Peer, node: int, incarnation: bytes) -> None:
    if (peer.node, peer.incarnation) != (node, incarnation):
        said = f"node {node}, incarnation {incarnation.hex()}"
        raise CopyRefused(RefusalCode.WRONG_RECIPIENT, f"the message is about {said}, and node {peer.node} with another one asks")


def _check_terms(request: CopyRequest, reaches: Mapping[int, GroupReach]) -> None:
    """A node that knows less than the recipient may be about to lose entries that the recipient has seen committed."""
    for group, (term, _) in sorted(request.groups.items()):
        if group in reaches and term > reaches[group].term:
            raise CopyRefused(
                RefusalCode.STALE_TERM,
                f"the recipient has seen term {term} of group {group}, this node term {reaches[group].term}",
            )


def _check_need(request: CopyRequest, reaches: Mapping[int, GroupReach]) -> None:
    """A recipient that says what it has lacks something that this node's consensus cannot send."""
    if not request.groups or set(reaches) - set(request.groups):
        return
    if all(request.groups[group][1] >= reach.base for group, reach in reaches.items()):
        raise CopyRefused(RefusalCode.NOT_BEHIND, "consensus sends all that the recipient lacks: start it as it is")


def _place_of(member: ClusterMember, group: int) -> int:
    """The entry that made the recipient a learner of the group; 0 where nothing says it."""
    return member.admitted.get(group, (0, 0))[1]
