"""A source of copies whose node is made up: snapshots are files of chosen bytes, and what the cluster says is a dictionary."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cmdlog.cluster.copying.copied_groups import GroupReach
from cmdlog.cluster.copying.copy_client import CopyClient, CopyTimes
from cmdlog.cluster.copying.copy_desk import CopyDesk, CopyLimits
from cmdlog.cluster.copying.copy_frames import COPY_CHANNEL, copy_credentials
from cmdlog.cluster.copying.copy_source import CopyServer
from cmdlog.cluster.copying.copy_values import CopyManifest, CopyRequest, CopyStanding, LogShape
from cmdlog.cluster.copying.log_sums import SumsRequest
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.cluster.transport.handshake import HelloCredentials
from cmdlog.cluster.transport.peer_book import PeerRecord
from cmdlog.cluster.transport.peer_transport import PeerTls
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.secure_frames import Peer, Secret
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage
from cmdlog.wal.group_state import GroupState, LoggedCatalog, Stated
from cmdlog.wal.ids import CLUSTER_GROUP
from snapshot.catalog import FOLDER, Snapshot
from snapshot.manifest import FileEntry, Manifest, SnapshotKind, encode_manifest, size_and_crc, snapshot_name
from tests.cluster.transport.netkit import CLUSTER

SECRET = Secret(b"0123456789abcdef0123456789abcdef")
SOURCE, RECIPIENT = 1, 2
LIFE = b"new life"
WISH = CopyWish(RECIPIENT, LIFE, b"", "an empty disk", "127.0.0.1:7002", "http://two")
REQUEST = CopyRequest(RECIPIENT, LIFE)
TIMES = CopyTimes(connect_s=60.0, answer_s=60.0, begin_s=60.0)
SHAPE = LogShape(1 << 20, 8, 64 << 10)
CONFIGURATION: Mapping[str, Any] = {"voters": [1], "learners": [2]}


def admitted(life: bytes = LIFE, node: int = RECIPIENT, **more: Any) -> ClusterMember:
    """What the cluster says of a node that may copy."""
    return ClusterMember(node, life, "127.0.0.1:7002", "http://two", MemberStage.ADMITTED, **more)


def reach(handed: int = 100, *, base: int = 1, term: int = 3) -> GroupReach:
    """A group that has handed out so many entries."""
    return GroupReach(term, base, handed, term, (Stated(1, 1, dict(CONFIGURATION)),))


def make_snapshot(directory: Path, partition: int, index: int, content: bytes, base: Snapshot | None = None) -> Snapshot:
    """A snapshot whose file holds these bytes."""
    name = snapshot_name(partition, index)
    folder = directory / FOLDER / name
    folder.mkdir(parents=True)
    kind: SnapshotKind = "full" if base is None else "delta"
    data = folder / ("image.sqlite" if base is None else "delta.sqlite")
    data.write_bytes(content)
    size, crc32c = size_and_crc(str(data))
    manifest = Manifest(
        cluster_id=CLUSTER.hex(), node_id=SOURCE, incarnation=b"life of1".hex(), partition=partition, index=index, term=3,
        checksum=index + 7, txn_id=index << 20, log_block=index // 2, epoch=1, configuration=None, catalogs={}, environment=None,
        key_policy=None, schema=(), tables=(), files=(FileEntry(data.name, size, crc32c, ""),), created="", kind=kind,
        base=None if base is None or base.manifest is None else base.manifest.as_base(base.name),
    )  # fmt: skip
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    bases = () if base is None else base.chain
    return Snapshot(str(folder), partition, index, 1, manifest, bases=bases, name=name)


@dataclass
class MadeUpNode:
    """What a source asks of its node. Tests change it."""

    root: Path
    node: int = SOURCE
    shape: LogShape = SHAPE
    partitions: Sequence[int] = (0,)
    members: dict[int, ClusterMember] = field(default_factory=lambda: {RECIPIENT: admitted()})
    snapshots: dict[int, Snapshot] = field(default_factory=dict)
    anchors: dict[str, int] = field(default_factory=dict)
    asked: list[list[int]] = field(default_factory=list)  # snapshots that were asked for
    wishes: list[CopyWish] = field(default_factory=list)
    faults: list[bytes] = field(default_factory=list)
    peers: dict[NodeId, PeerRecord] = field(default_factory=dict)
    problem: str = ""
    is_short: bool = False
    now: float = 0.0

    def __post_init__(self) -> None:
        self.directory = str(self.root)
        self.reaches = {group: reach() for group in (*self.partitions, CLUSTER_GROUP)}
        self.taking: Future[dict[str, Any]] = Future()
        self.catalog: dict[str, Any] = {"version": 1, "bundle": ""}

    def desk(self, *, copies_max: int = 2, rate: int = 0) -> CopyDesk:
        """A desk whose clock is `now`."""
        return CopyDesk(self, CopyLimits(copies_max, rate), now=lambda: self.now)

    def hold(self, content: bytes, partition: int = 0, index: int = 90) -> Snapshot:
        """The partition's newest snapshot has these bytes from now on."""
        self.snapshots[partition] = made = make_snapshot(self.root, partition, index, content)
        return made

    def held_folders(self) -> list[str]:
        """Of copies."""
        return [name for name in os.listdir(self.root / FOLDER) if name.startswith("tmp-")]

    def newest(self, partition: int) -> Snapshot | None:
        return self.snapshots.get(partition)

    def member_of(self, node: int) -> ClusterMember | None:
        return self.members.get(node)

    def known_sums(self, request: SumsRequest) -> dict[int, int]:
        return {}

    def hold_log(self, name: str, block: int) -> None:
        self.anchors[name] = block

    def cluster_state(self, reach: GroupReach) -> GroupState:
        return GroupState(
            term=reach.term, commit=reach.handed, commit_term=reach.handed_term, last_index=reach.handed,
            last_term=reach.handed_term,
            catalogs={1: LoggedCatalog(2, self.catalog, 1)},
        )  # fmt: skip

    def let_log_go(self, name: str) -> None:
        self.anchors.pop(name, None)

    def request_snapshots(self, partitions: Sequence[int]) -> Future[dict[str, Any]]:
        self.asked.append(list(partitions))
        self.taking = Future()
        return self.taking

    def take_wish(self, wish: CopyWish) -> CopyStanding:
        self.wishes.append(wish)
        return CopyStanding(SOURCE, True, True, None, self.members.get(wish.node), None, ())


def peer(life: bytes = LIFE, node: int = RECIPIENT) -> Peer:
    """A recipient."""
    return Peer(NodeId(node), life)


def some_bytes(size: int, seed: int = 1) -> bytes:
    """The same each time."""
    return random.Random(seed).randbytes(size)


class ServedSource:
    """A source with a port of its own. Closes what it opened."""

    def __init__(self, node: MadeUpNode, *, copies_max: int = 2, rate: int = 0, tls: PeerTls | None = None) -> None:
        self.node, self.tls = node, tls
        ours = copy_credentials(CLUSTER, SOURCE, b"source 1", SECRET)
        self.source = CopyServer(ours, node, CopyLimits(copies_max, rate), tls=tls)
        self.source.serve()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = self._listener.getsockname()[:2]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        """As the peers' port does."""
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                assert sock.recv(1) in {COPY_CHANNEL.preface, b""}
                sock.setblocking(False)
                self.source.take_socket(sock)

    def client(
        self, life: bytes = LIFE, node: int = RECIPIENT, *, ours: HelloCredentials | None = None, times: CopyTimes = TIMES
    ) -> CopyClient:
        """A recipient that is not connected yet."""
        credentials = ours or copy_credentials(CLUSTER, node, life, SECRET)
        return CopyClient(credentials, SOURCE, self.address, tls=self.tls, times=times)

    def close(self) -> None:
        """Ends source and port."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.source.stop()
        self._thread.join()


def begin(client: CopyClient, request: CopyRequest = REQUEST) -> CopyManifest:
    """The manifest; it is there."""
    answer = client.begin_copy(request)
    assert isinstance(answer, CopyManifest), answer
    return answer


def fetch(client: CopyClient, manifest: CopyManifest) -> dict[str, bytes]:
    """Every file by its name."""
    return {file.name: b"".join(client.read_chunks(manifest.copy, file)) for file in manifest.files}
