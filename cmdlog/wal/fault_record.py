"""Records of the fault log and the copies that hold them, as bytes. FORMAT.md "Fault log".

One rule: a record is checked once, here, and trusted inside. Its checksum covers the cluster's id and its predecessor's checksum,
so the holder of a piece of a chain can tell whether another piece belongs to it.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import google_crc32c

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import RecordsTooLarge
from cmdlog.wal.format.struct_layout import Layout
from cmdlog.wal.ids import PARTITIONS_MAX

MAGIC: Final = b"CLFL"
VERSION: Final = 1
FAULT_COPY: Final = Layout(
    "Fault log copy",
    ("magic", "4s"),
    ("version", "H"),
    ("reserved", "2s"),
    ("cluster_id", "16s"),
    ("incarnation", "8s"),
    ("node_id", "I"),
    ("record_count", "I"),
    ("revision", "Q"),
    ("body_bytes", "I"),
    ("crc", "I"),
)
FAULT: Final = Layout(
    "Fault record",
    ("sequence", "Q"),
    ("epoch", "Q"),
    ("term", "Q"),
    ("author", "I"),
    ("previous_checksum", "I"),
    ("failed_count", "H"),
    ("demotion_count", "H"),
    ("reason_bytes", "H"),
    ("reserved", "2s"),
    ("crc", "I"),
)
DEMOTION: Final = Layout("Demotion", ("index", "Q"), ("term", "Q"), ("group", "H"))

FAILED_MAX: Final = 1000
DEMOTIONS_MAX: Final = PARTITIONS_MAX + 1  # every partition and the cluster group
REASON_BYTES_MAX: Final = 500
_CRC_BYTES: Final = 4
_NODE_BYTES: Final = 4

Demotions = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """One declaration. Equal on all nodes of a cluster that hold its sequence number."""

    sequence: int  # from 1, without gaps, for ever
    failed: frozenset[int]  # the entire set from here on
    previous_checksum: int  # of the record before; 0 for sequence 1
    epoch: int
    term: int
    author: int  # the node that proposed it
    demotions: Demotions  # (group, index, term) of the configuration entries that carry it
    reason: str
    checksum: int  # CRC-32C of the cluster id and all of the above

    @property
    def is_self_mark(self) -> bool:
        """Written by a node about itself before it discards its log; no configuration entry carries it."""
        return self.author in self.failed and not self.demotions


class BadFaultLog(ValueError):
    """The bytes are no valid copy. `newer`: they are of a newer format."""

    def __init__(self, reason: str, *, newer: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.newer = reason, newer


@dataclass(frozen=True, slots=True)
class FaultCopy:
    """What one file says."""

    identity: Identity
    revision: int
    records: tuple[FaultRecord, ...]  # ascending, without gaps


def make_record(
    cluster_id: bytes,
    previous: FaultRecord | None,
    *,
    failed: Iterable[int],
    epoch: int,
    term: int,
    author: int,
    demotions: Demotions = (),
    reason: str = "",
) -> FaultRecord:
    """The successor of `previous` (None: the first record of a cluster). Raises: RecordsTooLarge."""
    nodes = frozenset(failed)
    if len(nodes) > FAILED_MAX or len(demotions) > DEMOTIONS_MAX:
        raise RecordsTooLarge(
            f"{len(nodes)} failed nodes and {len(demotions)} demotions; at most {FAILED_MAX} and {DEMOTIONS_MAX}"
        )
    text = reason.encode()[:REASON_BYTES_MAX].decode(errors="ignore")
    sequence, link = (previous.sequence + 1, previous.checksum) if previous is not None else (1, 0)
    bare = FaultRecord(sequence, nodes, link, epoch, term, author, tuple(sorted(demotions)), text, 0)
    return replace(bare, checksum=_own_checksum(cluster_id, bare))


def encode_fault(cluster_id: bytes, record: FaultRecord) -> bytes:
    """The record as it is on disk, and as nodes send it."""
    return _head(cluster_id, record) + _tail(record)


def decode_fault(cluster_id: bytes, data: bytes, offset: int = 0) -> tuple[FaultRecord, int]:
    """The record at `offset` and the offset after it. Raises: BadFaultLog, also for a record of another cluster."""
    if len(data) - offset < FAULT.bytes:
        raise BadFaultLog("short")
    sequence, epoch, term, author, link, failed_count, demotion_count, reason_bytes, reserved, crc = FAULT.unpack_from(
        data, offset
    )
    at = offset + FAULT.bytes
    end = at + failed_count * _NODE_BYTES + demotion_count * DEMOTION.bytes + reason_bytes
    if end > len(data) or reserved != bytes(2):
        raise BadFaultLog("short" if end > len(data) else "reserved")
    if _checksum(cluster_id, data[offset : at - _CRC_BYTES], data[at:end]) != crc:
        raise BadFaultLog("record crc")
    failed = struct.unpack_from(f"<{failed_count}I", data, at)
    at += failed_count * _NODE_BYTES
    demotions = [DEMOTION.unpack_from(data, at + number * DEMOTION.bytes) for number in range(demotion_count)]
    try:
        reason = data[end - reason_bytes : end].decode()
    except UnicodeDecodeError as error:
        raise BadFaultLog("reason") from error
    placed = tuple((group, index, term_of) for index, term_of, group in demotions)
    if sequence < 1 or list(failed) != sorted(set(failed)) or placed != tuple(sorted(placed)):
        raise BadFaultLog("order")
    return FaultRecord(sequence, frozenset(failed), link, epoch, term, author, placed, reason, crc), end


def encode_copy(copy: FaultCopy) -> bytes:
    """Header and body; the rest of the file means nothing."""
    identity = copy.identity
    body = b"".join(encode_fault(identity.cluster_id, record) for record in copy.records)
    head = FAULT_COPY.pack(
        MAGIC, VERSION, bytes(2), identity.cluster_id, identity.incarnation, identity.node_id,
        len(copy.records), copy.revision, len(body), 0,
    )[:-_CRC_BYTES]  # fmt: skip
    return head + _checksum(b"", head, body).to_bytes(_CRC_BYTES, "little") + body


def decode_copy(data: bytes) -> FaultCopy:
    """Raises: BadFaultLog."""
    if len(data) < FAULT_COPY.bytes:
        raise BadFaultLog("short")
    magic, version, reserved, cluster_id, incarnation, node_id, count, revision, body_bytes, crc = FAULT_COPY.unpack_from(data)
    body = data[FAULT_COPY.bytes : FAULT_COPY.bytes + body_bytes]
    if magic != MAGIC or len(body) != body_bytes:
        raise BadFaultLog("magic" if magic != MAGIC else "short")
    if _checksum(b"", data[: FAULT_COPY.bytes - _CRC_BYTES], body) != crc:
        raise BadFaultLog("crc")
    if version != VERSION or reserved != bytes(2):
        raise BadFaultLog("version", newer=version > VERSION)
    records, at = [], 0
    while at < len(body):
        record, at = decode_fault(cluster_id, body, at)
        records.append(record)
    if len(records) != count or not follows_all(records):
        raise BadFaultLog("chain")
    return FaultCopy(Identity(cluster_id, node_id, incarnation), revision, tuple(records))


def follows_all(records: Sequence[FaultRecord]) -> bool:
    """Whether these records are one unbroken piece of a chain."""
    if records and records[0].sequence == 1 and records[0].previous_checksum:
        return False
    return all(
        after.sequence == before.sequence + 1 and after.previous_checksum == before.checksum
        for before, after in itertools.pairwise(records)
    )


def first_conflict(ours: Sequence[FaultRecord], theirs: Sequence[FaultRecord]) -> tuple[FaultRecord, FaultRecord] | None:
    """A record of each that cannot be in one history: the same number, or neighbours that do not fit. None: no such pair."""
    known = {record.sequence: record for record in ours}
    for record in theirs:
        same, before, after = (known.get(record.sequence + step) for step in (0, -1, 1))
        if same is not None and same.checksum != record.checksum:
            return same, record
        if before is not None and record.previous_checksum != before.checksum:
            return before, record
        if after is not None and after.previous_checksum != record.checksum:
            return after, record
    return None


def is_of(cluster_id: bytes, record: FaultRecord) -> bool:
    """Whether the checksum is that of this content in this cluster."""
    return _own_checksum(cluster_id, record) == record.checksum


def _own_checksum(cluster_id: bytes, record: FaultRecord) -> int:
    return int.from_bytes(_head(cluster_id, record)[-_CRC_BYTES:], "little")


def _head(cluster_id: bytes, record: FaultRecord) -> bytes:
    tail = _tail(record)
    head = FAULT.pack(
        record.sequence, record.epoch, record.term, record.author, record.previous_checksum,
        len(record.failed), len(record.demotions), len(record.reason.encode()), bytes(2), 0,
    )[:-_CRC_BYTES]  # fmt: skip
    return head + _checksum(cluster_id, head, tail).to_bytes(_CRC_BYTES, "little")


def _tail(record: FaultRecord) -> bytes:
    failed = struct.pack(f"<{len(record.failed)}I", *sorted(record.failed))
    demotions = b"".join(DEMOTION.pack(index, term, group) for group, index, term in record.demotions)
    return failed + demotions + record.reason.encode()


def _checksum(cluster_id: bytes, head: bytes, tail: bytes) -> int:
    value: int = google_crc32c.extend(google_crc32c.extend(google_crc32c.value(cluster_id), head), tail)
    return value
