"""Records: what a block carries. FORMAT.md "Record".

One rule: a record is checked once, here, and trusted inside. Its own CRC (beside the block's) travels with it to followers,
sites and replay, and for a batch it is *the batch checksum* that the state file stores.

Kinds below 16 are **entries**: they have a term and an index in their group's log and are replicated. Kinds from 16 on are
notes of this node alone. Payloads other than a batch's are canonical JSON (sorted keys), compressed from `ZSTD_FROM_BYTES` on.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import google_crc32c
import orjson
import zstandard

from cmdlog.wal.format.block import RECORD_ALIGN
from cmdlog.wal.format.json_reader import BadJson, read_document
from cmdlog.wal.format.struct_layout import Layout
from cmdlog.wal.ids import Index, Term

RECORD: Final = Layout(
    "Record header",
    ("length", "I"),
    ("kind", "B"),
    ("flags", "B"),
    ("partition", "H"),
    ("term", "Q"),
    ("index", "Q"),
    ("crc", "I"),
    ("reserved", "4s"),
)
DIGEST: Final = Layout("Digest payload", ("rows_digest", "Q"), ("catalog", "I"), ("count", "I"))
COMMIT_MARK: Final = Layout("Commit mark payload", ("closed_txn", "Q"))
EMPTY: Final = Layout("Empty payload", ("closed_txn", "Q"))

RECORD_BYTES_MAX: Final = 64 << 20  # bounds every allocation that a length field can cause
ZSTD_FROM_BYTES: Final = 512
KIND_OFFSET: Final = 4  # of the kind byte in the header
_CRC_OFFSET: Final = 24
_PAYLOAD_AT: Final = RECORD.bytes
_LENGTH: Final = struct.Struct("<I")  # the header's first field
MARK_HEAD: Final = struct.Struct("<" + RECORD.codes + COMMIT_MARK.codes)  # of a record that is a commit mark
_ZERO4: Final = bytes(4)


class RecordKind(enum.IntEnum):
    """What a record says. Numbers are for ever; new kinds get new numbers."""

    BATCH = 1  # consecutive invocations of one partition
    SCHEMA = 2  # DDL statements, run outside any batch
    CONFIGURATION = 3  # voters, partitions, slot map, key policy of a group
    CATALOG = 4  # cluster group: a code bundle under the next catalog version
    ENVIRONMENT = 5  # cluster group: versions of Python, SQLite and packages
    SKIP = 6  # one call of an earlier batch is not to be run
    EMPTY = 7  # begins a leader's term, or closes transaction ids where no call does
    SHAPE = 8  # cluster group: partitions, slot map, key policy of a cluster whose members may change
    MEMBER = 9  # cluster group: one node's incarnation, addresses, and how far it has come
    FAULTS = 10  # cluster group: the entire failure set under its sequence number
    HARD_STATE = 16  # term, vote
    COMMIT_MARK = 17  # index = committed here; closed TxnId
    DIGEST = 18  # what the batch at `index` did on this node
    SNAPSHOT_MARK = 19  # a durable, verified snapshot exists
    TRUNCATION = 20  # entries of the group from `index` on are void
    CHECKPOINT = 21  # the group's state as of the head of this segment


_KINDS: Final = {int(kind): kind for kind in RecordKind}
_FLAG_ZSTD: Final = 1
_make = tuple.__new__  # half the time of the class's own


class BadRecord(ValueError):
    """The bytes are no valid record, though the block's checksum holds: a bug of the writer, or a forged block."""


class Record(NamedTuple):
    """A decoded record; `raw` is the byte string on disk, on the wire and on the pipe to the site."""

    kind: RecordKind
    flags: int
    partition: int
    term: Term
    index: Index  # type: ignore[assignment] # a tuple has a method of that name
    checksum: int
    raw: bytes

    @property
    def payload(self) -> bytes:
        return self.raw[RECORD.bytes :]

    @property
    def is_entry(self) -> bool:
        return self.kind < 16

    def json(self) -> dict[str, Any]:
        """The payload of a JSON kind.

        Raises: BadRecord when it is not a JSON object or does not decompress within RECORD_BYTES_MAX.
        """
        data = self.payload
        try:
            if self.flags & _FLAG_ZSTD:
                data = decompress(data, bytes_max=RECORD_BYTES_MAX)
            return read_document(data, bytes_max=RECORD_BYTES_MAX)
        except BadJson as error:
            raise BadRecord(f"payload of {self.kind.name}: {error}") from error


def decompress(data: bytes, *, bytes_max: int) -> bytes:
    """The content of one zstd frame, which states its size; memory is taken only for a size within `bytes_max`.

    Raises: BadRecord.
    """
    try:
        size = zstandard.frame_content_size(data)
        if not 0 <= size <= bytes_max:
            raise BadRecord(f"compressed payload of {size} bytes")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=bytes_max)
    except zstandard.ZstdError as error:
        raise BadRecord(f"compressed payload: {error}") from error


def encode_record(kind: RecordKind, payload: bytes, *, partition: int, term: int, index: int, flags: int = 0) -> bytes:
    """One record, unpadded; the block aligns it."""
    head = RECORD.pack(RECORD.bytes + len(payload), kind, flags, partition, term, index, 0, _ZERO4)[:_CRC_OFFSET]
    crc = google_crc32c.extend(google_crc32c.value(head), payload)
    return b"".join((head, crc.to_bytes(4, "little"), _ZERO4, payload))


def encode_json(
    kind: RecordKind, value: Mapping[str, Any], *, partition: int, term: int, index: int, compress: bool = True
) -> bytes:
    """A record with a canonical JSON payload, compressed when that pays. Without `compress` its bytes follow from the value
    alone: another build of the compressor makes other bytes."""
    payload = orjson.dumps(value, option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)
    if len(payload) < ZSTD_FROM_BYTES or not compress:
        return encode_record(kind, payload, partition=partition, term=term, index=index)
    packed = zstandard.ZstdCompressor().compress(payload)
    return encode_record(kind, packed, partition=partition, term=term, index=index, flags=_FLAG_ZSTD)


def decode_record(data: bytes) -> Record:
    """Checks one record that is exactly `data`.

    Raises: BadRecord.
    """
    if len(data) < _PAYLOAD_AT:
        raise BadRecord("shorter than a record header")
    length, kind, flags, partition, term, index, crc, reserved = RECORD.unpack_from(data)
    if length != len(data) or reserved != _ZERO4:
        raise BadRecord(f"length {length} of {len(data)}")
    if google_crc32c.extend(google_crc32c.value(data[:_CRC_OFFSET]), data[_PAYLOAD_AT:]) != crc:
        raise BadRecord("record crc")
    known = _KINDS.get(kind)
    if known is None:
        raise BadRecord(f"unknown kind {kind}")
    return _make(Record, (known, flags, partition, term, index, crc, data))


def peek_record(data: bytes) -> Record:
    """A record that this process has just encoded, unchecked: for the fold on the write path."""
    _, kind, flags, partition, term, index, crc, _ = RECORD.unpack_from(data)
    return _make(Record, (_KINDS[kind], flags, partition, term, index, crc, data))


def decode_body(body: bytes) -> Iterator[tuple[int, Record]]:
    """Yields (byte offset, record) of a block's body, in order.

    Raises: BadRecord when lengths, padding or a record are wrong.
    """
    position, body_bytes = 0, len(body)
    while position < body_bytes:
        if body_bytes - position < _PAYLOAD_AT:
            raise BadRecord("body ends inside a record header")
        length: int = _LENGTH.unpack_from(body, position)[0]
        end = position + length
        if length < _PAYLOAD_AT or end > body_bytes:
            raise BadRecord(f"record length {length} at body offset {position}")
        yield position, decode_record(body[position:end])
        position = end + -length % RECORD_ALIGN
        if position != end and any(body[end:position]):
            raise BadRecord(f"padding at body offset {end}")


def encode_commit_mark(*, partition: int, term: int, commit: int, closed_txn: int) -> bytes:
    """The group is committed up to `commit`; no later entry of it has a TxnId <= `closed_txn`."""
    return encode_record(RecordKind.COMMIT_MARK, COMMIT_MARK.pack(closed_txn), partition=partition, term=term, index=commit)


def encode_empty(*, partition: int, term: int, index: int, closed_txn: int = 0) -> bytes:
    """An entry without effect. Without `closed_txn` it has no payload: then its bytes follow from its place alone."""
    payload = EMPTY.pack(closed_txn) if closed_txn else b""
    return encode_record(RecordKind.EMPTY, payload, partition=partition, term=term, index=index)


def decode_empty(record: Record) -> int:
    """The closed TxnId; 0 where it closes none."""
    payload = record.payload
    if not payload:
        return 0
    if len(payload) != EMPTY.bytes:
        raise BadRecord("empty payload")
    closed: int = EMPTY.unpack_from(payload)[0]
    return closed


def decode_commit_mark(record: Record) -> int:
    """The closed TxnId."""
    payload = record.payload
    if len(payload) != COMMIT_MARK.bytes:
        raise BadRecord("commit mark payload")
    closed: int = COMMIT_MARK.unpack_from(payload)[0]
    return closed


@dataclass(frozen=True, slots=True)
class Digest:
    """What one batch did: the digest of the rows that it changed (0 = not taken) and a hash of each call's outcome."""

    rows_digest: int
    catalog: int
    result_hashes: memoryview  # [count] uint32


def encode_digest(*, partition: int, term: int, index: int, rows_digest: int, catalog: int, result_hashes: bytes) -> bytes:
    """`result_hashes` is packed little-endian uint32, one per call of the batch at `index`."""
    payload = DIGEST.pack(rows_digest, catalog, len(result_hashes) // 4) + result_hashes
    return encode_record(RecordKind.DIGEST, payload, partition=partition, term=term, index=index)


def decode_digest(record: Record) -> Digest:
    payload = record.payload
    if len(payload) < DIGEST.bytes:
        raise BadRecord("digest payload")
    rows_digest, catalog, count = DIGEST.unpack_from(payload)
    hashes = payload[DIGEST.bytes :]
    if len(hashes) != 4 * count:
        raise BadRecord("digest payload")
    return Digest(rows_digest, catalog, memoryview(hashes).cast("I"))
