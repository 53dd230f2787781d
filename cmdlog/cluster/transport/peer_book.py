"""`cluster/peers.json`: which life of every peer's disk this node has met, and which peers have met this one's.

One rule: nothing of a peer is processed before its incarnation is durable here. The first one that is seen of a node id is
*pinned*; another one of that id is refused by name until `admit` replaces it, because an emptied disk, or one restored from a
backup, has forgotten its votes.

A pin alone is not enough: two of three disks may be emptied at once and come back as strangers to each other. So a peer also
*confirms* that it has pinned this node's incarnation, and a node takes part in no election before all initial members have
(`confirmed`). From then on each of them refuses whatever comes back in its place.

The book also counts the starts of its own directory, and names the process of each. A copy of the directory counts on from the
same number, so two processes with the same number are two copies, and a lower number after a higher one is a copy or a restored
backup: a peer refuses both. It also refuses a higher number where the start that it has met was another process's: a copy that is
refused and started again counts on, and would pass what was met.

A disk that was made by copy has met nobody itself, and would hear an old copy that every other node refuses. So its book begins
with what the source of the copy had met (`begin_book`).

A recovery from several directories reads the same from their books (`replay.log.collect_evidence`).
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from cmdlog.operator_error import OperatorError
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.wire.control_frames import ProcessStart, RefusalReason
from cmdlog.raft.wire.secure_frames import EARLIER_MAX, PROCESS_BYTES, Peer
from cmdlog.wal.directory.instance import CLUSTER_FOLDER, Identity
from cmdlog.wal.errors import Corrupt, DiskFull, Foreign, NewerFormat, Wedged
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import decode_checked, encode_checked
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX, BadJson, fixed_bytes

FORMAT: Final = 1
BOOK_NAME: Final = "peers.json"
INCARNATION_BYTES: Final = 8
FORMER_MAX: Final = 64  # incarnations of one node that are known to be over; older ones are refused as unknown


class PeerRefused(OperatorError):
    """A peer that this node does not speak with, and why."""

    hint = "compare the node's directory with what `cluster/peers.json` of the others names; a replaced disk has to be admitted"

    def __init__(self, peer: Peer, reason: RefusalReason, detail: str) -> None:
        self.peer, self.reason = peer, reason
        super().__init__(
            f"node {peer.node}, incarnation {peer.incarnation.hex()}, refused: {reason.name.lower()}: {detail}",
            kind=reason.name.lower(),
        )


@dataclass(frozen=True, slots=True)
class PeerRecord:
    """What is known of one node."""

    incarnation: bytes  # [8]
    confirmed: bool = False  # it has pinned our incarnation
    start: ProcessStart | None = None  # the last one that was accepted
    former: tuple[bytes, ...] = ()  # incarnations that were replaced, oldest first
    met_later: bool = False  # it refused our start: it has met a later one of our directory, or a copy of it

    def to_json(self) -> dict[str, Any]:
        start = self.start
        return {
            "incarnation": self.incarnation.hex(),
            "confirmed": self.confirmed,
            "start": None if start is None else [start.number, start.process.hex()],
            "former": [former.hex() for former in self.former],
            "met_later": self.met_later,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: KeyError, TypeError, ValueError."""
        start = None if value["start"] is None else _start_of(*value["start"])
        former = tuple(fixed_bytes(incarnation, INCARNATION_BYTES) for incarnation in value["former"])
        confirmed, met_later = value["confirmed"] is True, value["met_later"] is True
        return cls(fixed_bytes(value["incarnation"], INCARNATION_BYTES), confirmed, start, former, met_later)

    def newer(self, other: PeerRecord) -> PeerRecord:
        """The same node as this book and another one know it, confirmed to neither; where they disagree without saying which life
        is the later one, this book counts."""
        first, second = (other, self) if self.incarnation in other.former else (self, other)
        start = first.start
        if second.incarnation == first.incarnation and second.start is not None:
            start = second.start if start is None or start.number < second.start.number else start
        former = dict.fromkeys((*second.former, *first.former))
        former.pop(first.incarnation, None)
        return replace(first, confirmed=False, met_later=False, start=start, former=tuple(former)[-FORMER_MAX:])


class PeerBook:
    """The open book of a node. Any thread; a call that changes something returns when the change is durable."""

    def __init__(
        self, files: Files, path: str, identity: Identity, records: dict[NodeId, PeerRecord], start: ProcessStart
    ) -> None:
        self.identity, self.start, self._files, self._path = identity, start, files, path
        self.records = records  # what is known of every node, by id; replaced as a whole, never changed
        self._guard = threading.Lock()
        self._wedged: Exception | None = None

    @classmethod
    def open(cls, files: Files, directory: str, identity: Identity) -> PeerBook:
        """Opens the book of a node directory, makes it where there is none, and counts this start; durable on return.

        The caller holds the directory's lock. Raises: Corrupt, Foreign, NewerFormat, DiskFull, WriteFailed.
        """
        path = _make_folder(files, directory)
        records, last = _read_book(files, path, identity) if files.exists(path) else ({}, None)
        book = cls(files, path, identity, records, _next_start(last))
        book._save(records)
        return book

    @property
    def me(self) -> Peer:
        """This node."""
        return Peer(NodeId(self.identity.node_id), self.identity.incarnation)

    @property
    def confirmed(self) -> frozenset[NodeId]:
        """Peers that have pinned our incarnation durably."""
        return frozenset(node for node, record in self.records.items() if record.confirmed)

    @property
    def met(self) -> dict[NodeId, PeerRecord]:
        """What this node knows of every node, itself included, as another node's book may begin."""
        known = {**self.records, self.me.node: PeerRecord(self.me.incarnation, start=self.start)}
        return {node: replace(record, confirmed=False, met_later=False) for node, record in sorted(known.items())}

    def check(self, peer: Peer, start: ProcessStart | None = None) -> None:
        """Whether `pin`, and `acquaint` if its start is known, would take this peer. Changes nothing. Raises: PeerRefused."""
        _judge(self.records.get(peer.node), peer, start)

    def pin(self, peer: Peer) -> None:
        """Holds the incarnation of a node that is met for the first time. Raises: PeerRefused; those of `admit`."""
        with self._guard:
            record = _judge(self.records.get(peer.node), peer, None)
            self._put(peer.node, record)

    def acquaint(self, peer: Peer, start: ProcessStart, *, takes_us: bool = False) -> bool:
        """The peer has proved to be alive and said that it has pinned us: holds that, and which process it is. `takes_us`: it
        has met no later start of this directory.

        Returns whether the confirmation is new. Raises: PeerRefused; those of `admit`.
        """
        with self._guard:
            record = _judge(self.records.get(peer.node), peer, start)
            later = record.met_later and not takes_us
            self._put(peer.node, replace(record, confirmed=True, met_later=later, start=replace(start, earlier=())))
            return not record.confirmed

    def note_later(self, node: NodeId) -> None:
        """The peer has met a later start of this directory, and refuses this one: known until it takes us. Raises: as `admit`."""
        with self._guard:
            if (record := self.records.get(node)) is not None:
                self._put(node, replace(record, met_later=True))

    def admit(self, node: NodeId, incarnation: bytes) -> None:
        """Replaces the incarnation of a node, by a decision of the cluster; it has to confirm ours again.

        Raises: ValueError for one that was replaced before; DiskFull, and then nothing has changed; WriteFailed, Wedged.
        """
        with self._guard:
            record = self.records.get(node)
            if record is None:
                self._put(node, PeerRecord(incarnation))
            elif incarnation in record.former:
                raise ValueError(f"incarnation {incarnation.hex()} of node {node} was replaced and never comes back")
            elif incarnation != record.incarnation:
                former = (*record.former, record.incarnation)[-FORMER_MAX:]
                self._put(node, PeerRecord(incarnation, former=former))

    def _put(self, node: NodeId, record: PeerRecord) -> None:
        if self.records.get(node) != record:
            records = dict(sorted({**self.records, node: record}.items()))
            self._save(records)
            self.records = records

    def _save(self, records: dict[NodeId, PeerRecord]) -> None:
        if self._wedged is not None:
            raise Wedged(f"{self._path} refuses writes after: {self._wedged}")
        try:
            self._files.write_file_atomic(self._path, _encode_book(self.identity, records, self.start))
        except DiskFull:
            raise
        except Exception as error:
            self._wedged = error  # a sync that failed may not be tried again: it would succeed and prove nothing
            raise


def _judge(record: PeerRecord | None, peer: Peer, start: ProcessStart | None) -> PeerRecord:
    """What is known of the peer, or a new record. Raises: PeerRefused."""
    if record is None:
        return PeerRecord(peer.incarnation)
    if peer.incarnation in record.former:
        raise PeerRefused(peer, RefusalReason.STALE_INCARNATION, f"{record.incarnation.hex()} has taken its place")
    if peer.incarnation != record.incarnation:
        raise PeerRefused(peer, RefusalReason.UNKNOWN_INCARNATION, f"{record.incarnation.hex()} is the one that is known")
    known = record.start
    if start is None or known is None:
        return record
    if start.number < known.number:
        detail = f"start {start.number} of its directory, but start {known.number} was seen before"
        raise PeerRefused(peer, RefusalReason.EARLIER_START, detail)
    if start.process_of(known.number) not in (known.process, None):
        raise PeerRefused(peer, RefusalReason.DUPLICATE, f"another process has made start {known.number} of its directory")
    return record


def _next_start(last: ProcessStart | None) -> ProcessStart:
    """Of the same directory."""
    if last is None:
        return ProcessStart(1, os.urandom(PROCESS_BYTES))
    before = (*last.earlier, last.process) if last.process else ()
    return ProcessStart(last.number + 1, os.urandom(PROCESS_BYTES), before[-EARLIER_MAX:])


# -- the file ------------------------------------------------------------------------------------------------------------


def newer_records(ours: Mapping[NodeId, PeerRecord], theirs: Mapping[NodeId, PeerRecord]) -> dict[NodeId, PeerRecord]:
    """What either book knows (`PeerRecord.newer`); ascending."""
    both = {**theirs, **ours}
    return {node: record.newer(theirs.get(node, record)) for node, record in sorted(both.items())}


def begin_book(files: Files, directory: str, identity: Identity, met: Mapping[NodeId, PeerRecord]) -> None:
    """Writes the book of a directory that was never started, with what others have met. Durable on return.

    Raises: DiskFull, WriteFailed.
    """
    records = {node: record for node, record in sorted(met.items()) if node != identity.node_id}
    files.write_file_atomic(_make_folder(files, directory), _encode_book(identity, records, ProcessStart(0, b"")))


def read_peers(files: Files, directory: str, identity: Identity) -> dict[NodeId, PeerRecord]:
    """What the book of a directory says that nobody runs; nothing where there is none. Raises: Corrupt, Foreign, NewerFormat."""
    path = os.path.join(directory, CLUSTER_FOLDER, BOOK_NAME)
    return _read_book(files, path, identity)[0] if files.exists(path) else {}


def _make_folder(files: Files, directory: str) -> str:
    """Of the book, durable on return; the book's path."""
    folder = os.path.join(directory, CLUSTER_FOLDER)
    if not files.exists(folder):
        files.mkdir(folder)
    files.fsync_dir(directory)  # also where it is there: who made it may have died before this
    return os.path.join(folder, BOOK_NAME)


def _encode_book(identity: Identity, records: dict[NodeId, PeerRecord], start: ProcessStart) -> bytes:
    value: dict[str, Any] = {
        "format": FORMAT,
        "cluster_id": str(uuid.UUID(bytes=identity.cluster_id)),
        "node_id": identity.node_id,
        "incarnation": identity.incarnation.hex(),
        "starts": start.number,
        "process": start.process.hex(),
        "earlier": [process.hex() for process in start.earlier],
        "peers": {str(node): record.to_json() for node, record in records.items()},
    }
    return encode_checked(value)


def _read_book(files: Files, path: str, identity: Identity) -> tuple[dict[NodeId, PeerRecord], ProcessStart]:
    """Records, and the last start of the directory. Raises: Corrupt, Foreign, NewerFormat."""
    try:
        value = decode_checked(files.read_file(path, bytes_max=DOCUMENT_BYTES_MAX))
    except BadJson as error:
        raise Corrupt(f"the book of peers cannot be read: {error}", path=path) from error
    if value["format"] != FORMAT:
        raise NewerFormat(f"{path} has format {value['format']}, this program reads up to {FORMAT}")
    writer = Identity(uuid.UUID(value["cluster_id"]).bytes, value["node_id"], bytes.fromhex(value["incarnation"]))
    if not identity.owns(writer):
        raise Foreign(f"{path} belongs to {writer}, this directory to {identity}")
    records = {NodeId(int(node)): PeerRecord.from_json(found) for node, found in value["peers"].items()}
    if writer.incarnation != identity.incarnation:  # an adopted directory: what the peers have pinned is the life before
        records = {node: replace(record, confirmed=False, met_later=False) for node, record in records.items()}
    earlier = tuple(bytes.fromhex(process) for process in value["earlier"])
    return records, ProcessStart(value["starts"], bytes.fromhex(value["process"]), earlier)


def _start_of(number: Any, process: Any) -> ProcessStart:
    if type(number) is not int or number < 0:
        raise ValueError(f"{number!r} is no number of a start")
    return ProcessStart(number, fixed_bytes(process, PROCESS_BYTES))
