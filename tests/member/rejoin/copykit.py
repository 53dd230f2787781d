"""A copy of a real node's directory as a source gives it, without a wire: to be fetched, interrupted, and made a node of."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from cmdlog.cluster.cluster_file import ClusterFile, MemberAddress
from cmdlog.cluster.copying.copy_client import SourceLost
from cmdlog.cluster.copying.copy_values import (
    CopyEnding,
    CopyFile,
    CopyManifest,
    CopyPlace,
    CopyRequest,
    CopyStanding,
    CopyWait,
    LogShape,
    RollAddress,
)
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.member.member_ground import MemberGround
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.fault_record import encode_fault, make_record
from cmdlog.wal.files import Files, RealFiles
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupState, GroupStates, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.log.source import fold_end, open_source
from snapshot.catalog import list_snapshots
from tests.member.members import SECRET, members
from tests.node.rig import ask

FILES = RealFiles()
SOURCE, RECIPIENT = 1, 2
LIFE = b"life-two"
CHUNK_BYTES = 50_000


@dataclass
class OfferedCopy:
    """What a source gives, held in memory."""

    cluster: ClusterFile
    directory: Path  # of the source
    manifest: CopyManifest
    contents: list[bytes]

    def admitting(self, life: bytes, stage: MemberStage = MemberStage.ADMITTED) -> CopyManifest:
        """The manifest of a source whose log states that the recipient is so far."""
        groups = {group: GroupState.from_json(state.to_json()) for group, state in self.manifest.groups.items()}
        cluster = groups[CLUSTER_GROUP]
        places = {group: (state.term, state.last_index) for group, state in groups.items()}
        member = member_of(self.cluster, RECIPIENT, life, stage, places)
        cluster.members[RECIPIENT] = Stated(cluster.last_index, cluster.last_term, member.to_json())
        return replace(self.manifest, groups=groups)


def member_of(
    cluster: ClusterFile, node: int, life: bytes, stage: MemberStage, admitted: dict[int, tuple[int, int]] | None = None
) -> ClusterMember:
    """As a log states it."""
    address = cluster.member(node)
    return ClusterMember(node, life, f"{address.peer[0]}:{address.peer[1]}", address.client, stage, admitted or {})


def offer_copy(folder: Path, monkeypatch: pytest.MonkeyPatch, *, calls: int = 40) -> OfferedCopy:
    """Of a cluster of one node that has run calls and taken snapshots, a second one a while after the first."""
    with members(folder, monkeypatch) as made:
        node = made.join_all()
        for upto in (calls, 2 * calls):
            for number in range(upto - calls, upto):
                ask(node, "bump", id=number % 16, amount=number)
            node.take_snapshot()
        cluster = made.cluster
    directory = folder / "n1"
    address = MemberAddress(RECIPIENT, ("127.0.0.1", 1), "http://node2")
    return read_offer(replace(cluster, members=(*cluster.members, address)), directory)


def read_offer(cluster: ClusterFile, directory: Path) -> OfferedCopy:
    """What a closed node's directory offers."""
    instance = load_instance(FILES, str(directory))
    groups = fold_end(open_source(FILES, str(directory))).by_partition
    files, contents, places = list[CopyFile](), list[bytes](), dict[int, CopyPlace]()
    newest = {snapshot.partition: snapshot for snapshot in list_snapshots(FILES, str(directory), instance.identity)}
    for partition, snapshot in sorted(newest.items()):
        manifest = snapshot.manifest
        assert manifest is not None
        places[partition] = CopyPlace(manifest.index, manifest.term, manifest.checksum, manifest.txn_id)
        for link in snapshot.chain:
            for name in sorted(os.listdir(link.path)):
                content = (Path(link.path) / name).read_bytes()
                crc = int(google_crc32c.value(content))
                files.append(CopyFile(len(files), partition, f"{link.name}/{name}", len(content), crc))
                contents.append(content)
    record = make_record(instance.identity.cluster_id, None, failed=[3], epoch=1, term=2, author=1)
    log = LogShape(instance.segment_bytes, instance.segments, instance.log_reserve_bytes)
    offered = CopyManifest(
        copy=bytes(16),
        source=SOURCE,
        groups=groups,
        faults=(encode_fault(instance.identity.cluster_id, record),),
        log=log,
        files=tuple(files),
        partitions=places,
        rate=0,
        peers={NodeId(SOURCE): PeerRecord(b"life-one", start=ProcessStart(4, b"process4")), NodeId(3): PeerRecord(b"lifethre")},
    )
    return OfferedCopy(cluster, directory, offered, contents)


@dataclass
class ScriptedSource:
    """A node that answers as it is set, and notes what it is asked."""

    offer: OfferedCopy
    node: int = SOURCE
    begun: bool = True
    standing: Callable[[CopyWish], CopyStanding] | None = None
    answers: list[CopyManifest | CopyWait | Exception] = field(default_factory=list)  # to BEGIN, before the usual one
    lost_after: int = -1  # chunks until the connection is lost; -1: never
    damage: bool = False  # bytes arrive that the manifest does not state
    wishes: list[CopyWish] = field(default_factory=list)
    requests: list[CopyRequest] = field(default_factory=list)
    chunks: list[tuple[int, int]] = field(default_factory=list)  # file, offset
    endings: list[CopyEnding] = field(default_factory=list)

    def ask(self, wish: CopyWish) -> CopyStanding:
        self.wishes.append(wish)
        if self.standing is not None:
            return self.standing(wish)
        member = member_of(self.offer.cluster, RECIPIENT, wish.incarnation, MemberStage.ADMITTED) if wish.reason else None
        return standing_of(self, member)

    def begin_copy(self, request: CopyRequest) -> CopyManifest | CopyWait:
        self.requests.append(request)
        if self.answers:
            answer = self.answers.pop(0)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return replace(self.offer.admitting(request.incarnation), source=self.node)

    def read_chunks(self, copy: bytes, file: CopyFile, offset: int = 0) -> Iterator[bytes]:
        content = self.offer.contents[file.file]
        for at in range(offset, len(content), CHUNK_BYTES):
            if self.lost_after >= 0 and len(self.chunks) >= self.lost_after:
                raise SourceLost("the connection is over")
            self.chunks.append((file.file, at))
            piece = content[at : at + CHUNK_BYTES]
            yield bytes(len(piece)) if self.damage else piece

    def end(self, copy: bytes, ending: CopyEnding, why: str = "") -> None:
        self.endings.append(ending)


def standing_of(source: ScriptedSource, member: ClusterMember | None, **changed: Any) -> CopyStanding:
    """The answer of a leader."""
    cluster = source.offer.cluster
    roll = tuple(RollAddress(of.node, f"{of.peer[0]}:{of.peer[1]}", of.client) for of in cluster.members)
    return replace(CopyStanding(source.node, source.begun, True, None, member, None, roll), **changed)


class Clock:
    """Time passes only while somebody waits."""

    def __init__(self) -> None:
        self.now_s, self.paused_s = 0.0, 0.0

    def now(self) -> float:
        return self.now_s

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.paused_s += seconds


@dataclass(frozen=True, slots=True)
class ScriptedGround(RejoinGround):
    """Reaches these sources and no other node."""

    sources: tuple[ScriptedSource, ...] = ()

    def connect(self, incarnation: bytes, address: MemberAddress) -> Any:
        found = next((source for source in self.sources if source.node == address.node), None)
        if found is None:
            raise SourceLost(f"node {address.node} does not answer")
        return contextlib.nullcontext(found)


def ground_of(
    directory: Path,
    cluster: ClusterFile,
    *sources: ScriptedSource,
    files: Files = FILES,
    progress: Callable[[Any], None] | None = None,
) -> RejoinGround:
    """The recipient of a test."""
    clock = Clock()
    return ScriptedGround(
        files, str(directory), MemberGround(cluster, RECIPIENT, SECRET), progress, clock.pause, clock.now, sources
    )


def folded(directory: Path) -> GroupStates:
    """What a directory's log says."""
    return fold_end(open_source(FILES, str(directory)))
