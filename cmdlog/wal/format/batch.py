"""The batch payload: columns, then one JSON array of parameter lists. FORMAT.md "Batch payload".

One rule: the bytes are made once, here, and are the same on disk, on the wire, on the pipe to the site and in replay. A site
parses the array in one orjson call; an Arrow reader takes the columns and the offsets as they are and parses nothing.

Calls of one batch normally get consecutive clock ticks, so the TxnId column is left out and `first_txn` says all.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple

import orjson
import zstandard

from cmdlog.wal.format.call_places import CallPlace, CallPlaces, decode_places, encode_places
from cmdlog.wal.format.record import RECORD, RECORD_BYTES_MAX, BadRecord, Record, RecordKind, decompress, encode_record
from cmdlog.wal.format.session_columns import SESSIONS, SessionColumns, decode_sessions, encode_sessions
from cmdlog.wal.format.struct_layout import Layout
from cmdlog.wal.ids import MULTI_PARTITION, PARTITION_BITS, txn_partition

BATCH: Final = Layout(
    "Batch header",
    ("first_txn", "Q"),
    ("count", "I"),
    ("catalog", "I"),
    ("flags", "H"),
    ("reserved", "2s"),
    ("places_bytes", "I"),
    ("stored_bytes", "I"),
    ("json_bytes", "I"),
)
FLAG_TXN_COLUMN: Final = 1
FLAG_KEYS: Final = 2
FLAG_ZSTD: Final = 4
FLAG_SESSIONS: Final = 8
FLAG_REQUESTS: Final = 16
FLAGS_NAMED: Final = FLAG_KEYS | FLAG_SESSIONS | FLAG_REQUESTS  # columns that say how calls are named
FLAGS_KNOWN: Final = FLAG_TXN_COLUMN | FLAG_ZSTD | FLAGS_NAMED
CALLS_MAX: Final = 65_536  # of one batch; bounds what a count field can allocate
NO_KEY: Final = bytes(16)
SENT_DIGITS: Final = 16  # after the parameters of a call whose caller sent something else
_CLOSING: Final = ord("]")
_ZERO2: Final = bytes(2)
_with_comma: Final = (1).__add__  # bytes of an array, and of what parts it from the next
_PLACES_BYTES_AT: Final = RECORD.bytes + 20  # the field in the batch header
TICK: Final = 1 << PARTITION_BITS  # from one call's TxnId to the next
BATCH_HEAD: Final = struct.Struct("<" + RECORD.codes + BATCH.codes)  # of a record that is a batch
_HEADER_AT: Final = RECORD.bytes
_COLUMNS_AT: Final = RECORD.bytes + BATCH.bytes

if sys.byteorder != "little":  # columns are read in place
    raise ImportError("cmdlog needs a little-endian machine")


class Batch(NamedTuple):
    """A decoded batch. Columns are views of the record's bytes."""

    record: Record
    first_txn: int
    count: int  # type: ignore[assignment] # a tuple has a method of that name
    catalog: int
    txn_ids: Sequence[int]  # [count], strictly increasing
    procedures: memoryview  # [count] uint16: number in the catalog version's procedure list
    offsets: memoryview  # [count + 1] uint32: call i is text[offsets[i]:offsets[i + 1] - 1]
    keys: memoryview | None  # [16 * count] bytes: idempotency fingerprints, zero = none
    sessions: SessionColumns | None  # None: no call belongs to a session, and no session ends
    sent: Sequence[int]  # [count] hashes of requests, 0: as the parameters; () all are 0
    text: bytes  # the JSON array

    def params(self) -> list[list[Any]]:
        """All parameter lists in wire form, parsed in one call.

        Raises: BadRecord when the text is not an array of `count` arrays.
        """
        try:
            parsed = orjson.loads(self.text)
        except orjson.JSONDecodeError as error:
            raise BadRecord(f"batch text: {error}") from error
        if type(parsed) is not list or len(parsed) != self.count:
            raise BadRecord("batch text holds another number of calls")
        return parsed

    def key_list(self) -> list[bytes] | None:
        """The name of each call: a key's fingerprint (16 bytes, zeros for none), or session and number (24); None: no names."""
        if self.keys is None:
            return None if self.sessions is None else self.sessions.names(self.count)
        raw = bytes(self.keys)
        keys = [raw[i : i + 16] for i in range(0, len(raw), 16)]
        if self.sessions is None:
            return keys
        return [key if name == NO_KEY else name for key, name in zip(keys, self.sessions.names(self.count), strict=True)]

    @property
    def floors(self) -> dict[bytes, int]:
        """Session -> floor, of every session that the batch names."""
        return {} if self.sessions is None else dict(zip(self.sessions.ids, self.sessions.floors, strict=True))

    @property
    def last_txn(self) -> int:
        return self.txn_ids[-1]


def encode_batch(
    *,
    partition: int,
    term: int,
    index: int,
    catalog: int,
    txn_ids: Sequence[int] | range,
    procedures: Sequence[int],
    params: Sequence[bytes],
    keys: Sequence[bytes] | None = None,
    ended: Sequence[bytes] = (),
    places: Sequence[CallPlace] = (),
    compress: bool = False,
) -> bytes:
    """The BATCH record of these calls; `params` are encoded JSON arrays, `ended` fingerprints of sessions that end with it,
    `places` those of a call on all partitions.

    After an array may stand, in 16 hexadecimal digits, the hash of what its caller sent, if it was not these parameters.
    Each of `keys` is a fingerprint of 16 bytes, NO_KEY, or 32 bytes of a session's call (`session_columns.py`). The caller keeps
    TxnIds strictly increasing, of one partition, and within 2**32 clock ticks of the first.
    """
    # A column is left out where no call needs it: names, sessions, hashes of requests, transaction ids that skip a tick.
    count = len(params)
    flags, columns = 0, []
    if keys is not None or ended:
        plain, sessions = encode_sessions(keys if keys is not None else [NO_KEY] * count, ended)
        flags |= (FLAG_KEYS if plain else 0) | (FLAG_SESSIONS if sessions else 0)
        columns += [plain, sessions]
    if keys is not None:
        params, sent = _split_sent(params)
        flags |= FLAG_REQUESTS if sent else 0
        columns.insert(1, sent)
    text = b"".join((b"[", b",".join(params), b"]"))
    if not (isinstance(txn_ids, range) and txn_ids.step == TICK):
        flags |= FLAG_TXN_COLUMN
        first = txn_ids[0]
        columns.append(struct.pack(f"<{count}I", *((txn - first) >> PARTITION_BITS for txn in txn_ids)))
    ends = accumulate(map(_with_comma, map(len, params)), initial=1)
    columns.append(struct.pack(f"<{count + 1}I{count}H", *ends, *procedures))
    stored = text
    if compress:
        flags |= FLAG_ZSTD
        stored = zstandard.ZstdCompressor().compress(text)
    behind = encode_places(places) if places else b""
    head = BATCH.pack(txn_ids[0], count, catalog, flags, _ZERO2, len(behind), len(stored), len(text))
    payload = b"".join((head, *columns, stored, behind))
    return encode_record(RecordKind.BATCH, payload, partition=partition, term=term, index=index)


def _split_sent(params: Sequence[bytes]) -> tuple[Sequence[bytes], bytes]:
    """The arrays alone, and the column of hashes; b"" where no call has one."""
    if {text[-1] for text in params} == {_CLOSING}:
        return params, b""
    sent = [0 if text[-1] == _CLOSING else int(text[-SENT_DIGITS:], 16) for text in params]
    arrays = [text[:-SENT_DIGITS] if of else text for text, of in zip(params, sent, strict=True)]
    return arrays, struct.pack(f"<{len(sent)}Q", *sent)


def decode_batch(record: Record) -> Batch:
    """Checks the payload of a BATCH record and lays the columns open.

    Raises: BadRecord when lengths, counts, flags or offsets disagree.
    """
    raw, start = record.raw, _COLUMNS_AT
    if len(raw) < start:
        raise BadRecord("batch header")
    first_txn, count, catalog, flags, reserved, places_bytes, stored_bytes, json_bytes = BATCH.unpack_from(raw, _HEADER_AT)
    if reserved != _ZERO2 or flags > FLAGS_KNOWN:
        raise BadRecord("batch flags")
    if not 0 < count <= CALLS_MAX or json_bytes > RECORD_BYTES_MAX:
        raise BadRecord(f"batch count {count}, {json_bytes} bytes of text")
    # Columns follow each other without gaps, so each one begins where the one before ends, and the last ends the record.
    sessions_at, deltas_at = _named_columns(raw, flags, count) if flags & FLAGS_NAMED else (start, start)
    offsets_at = deltas_at + 4 * count if flags & FLAG_TXN_COLUMN else deltas_at
    procedures_at = offsets_at + 4 * (count + 1)
    text_at = procedures_at + 2 * count
    if text_at + stored_bytes + places_bytes != len(raw):
        raise BadRecord("batch columns, text and places do not fill the record")
    view = memoryview(raw)
    text = raw[text_at : text_at + stored_bytes]
    if flags & FLAG_ZSTD:
        text = decompress(text, bytes_max=json_bytes)
    if len(text) != json_bytes:
        raise BadRecord("batch text has another length")
    offsets = view[offsets_at:procedures_at].cast("I")
    if offsets[0] != 1 or offsets[count] != len(text):
        raise BadRecord("batch offsets")
    txn_ids: Sequence[int] = range(first_txn, first_txn + count * TICK, TICK)
    if flags & FLAG_TXN_COLUMN:
        txn_ids = _txn_ids(first_txn, view[deltas_at:offsets_at])
    columns = (
        record,
        first_txn,
        count,
        catalog,
        txn_ids,
        view[procedures_at:text_at].cast("H"),
        offsets,
        view[start : start + 16 * count] if flags & FLAG_KEYS else None,
        decode_sessions(raw[sessions_at:deltas_at], count) if flags & FLAG_SESSIONS else None,
        view[sessions_at - 8 * count : sessions_at].cast("Q").tolist() if flags & FLAG_REQUESTS else (),
        text,
    )
    return tuple.__new__(Batch, columns)  # half the time of the class's own


def batch_procedures(record: Record) -> memoryview:
    """The batch's procedure numbers, one per call, without decoding the batch. Raises: BadRecord."""
    raw = record.raw
    if len(raw) < _COLUMNS_AT:
        raise BadRecord("batch header")
    _, count, _, flags, *_ = BATCH.unpack_from(raw, _HEADER_AT)
    at = _named_columns(raw, flags, count)[1] + (4 * count if flags & FLAG_TXN_COLUMN else 0) + 4 * (count + 1)
    if not 0 < count <= CALLS_MAX or len(raw) < at + 2 * count:
        raise BadRecord("batch columns")
    return memoryview(raw)[at : at + 2 * count].cast("H")


def batch_facts(record: Record) -> tuple[int, int, int, int]:
    """(lowest TxnId, highest TxnId, number of calls, version of the code), without decoding the batch. Raises: BadRecord."""
    raw = record.raw
    if len(raw) < _COLUMNS_AT:
        raise BadRecord("batch header")
    first_txn, count, catalog, flags, *_ = BATCH.unpack_from(raw, _HEADER_AT)
    if not 0 < count <= CALLS_MAX:
        raise BadRecord(f"batch count {count}")
    if not flags & FLAG_TXN_COLUMN:
        return first_txn, first_txn + (count - 1) * TICK, count, catalog
    end = _named_columns(raw, flags, count)[1] + 4 * count
    if len(raw) < end:
        raise BadRecord("batch columns")
    return first_txn, first_txn + (int.from_bytes(raw[end - 4 : end], "little") << PARTITION_BITS), count, catalog


def catalog_and_places(raw: bytes) -> tuple[int, int]:
    """The version of the code of an encoded batch, and how many bytes of places it has. Raises: BadRecord."""
    if len(raw) < _COLUMNS_AT:
        raise BadRecord("batch header")
    _, _, catalog, _, _, places_bytes, _, _ = BATCH.unpack_from(raw, _HEADER_AT)
    return catalog, places_bytes


def batch_last_txn(record: Record) -> int:
    """The batch's highest TxnId, without decoding the batch. Raises: BadRecord."""
    return batch_facts(record)[1]


def batch_span(record: Record) -> tuple[int, int, int]:
    """(lowest TxnId, highest TxnId, number of calls), without decoding the batch. Raises: BadRecord."""
    return batch_facts(record)[:3]


def _named_columns(raw: bytes, flags: int, count: int) -> tuple[int, int]:
    """Where the sessions begin, and where they end. Raises: BadRecord."""
    begin = end = _COLUMNS_AT + (16 * count if flags & FLAG_KEYS else 0) + (8 * count if flags & FLAG_REQUESTS else 0)
    if flags & FLAG_SESSIONS:
        if len(raw) < begin + SESSIONS.bytes:
            raise BadRecord("sessions of a batch")
        end += SESSIONS.unpack_from(raw, begin)[0]
    return begin, end


def deltas_begin(raw: bytes, flags: int, count: int) -> int:
    """Where the column of transaction ids begins, if the batch has one. Raises: BadRecord."""
    return _named_columns(raw, flags, count)[1]


def multi_txn(record: Record) -> int:
    """The TxnId of a batch that is a multi-partition call, 0 for any other batch; without decoding it. Raises: BadRecord."""
    first, _, count = batch_span(record)
    return first if count == 1 and txn_partition(first) == MULTI_PARTITION else 0


def places_of(record: Record) -> CallPlaces:
    """Where the entries of the call on all partitions are that the batch holds; () where it names none. Raises: BadRecord."""
    raw = record.raw
    size = int.from_bytes(raw[_PLACES_BYTES_AT : _PLACES_BYTES_AT + 4], "little")
    if size > len(raw) - _COLUMNS_AT:
        raise BadRecord("places of a call")
    return decode_places(raw[len(raw) - size :]) if size else ()


def _txn_ids(first_txn: int, deltas: memoryview) -> list[int]:
    ids = [first_txn + (delta << PARTITION_BITS) for delta in deltas.cast("I")]
    if ids[0] != first_txn or any(a >= b for a, b in pairwise(ids)):
        raise BadRecord("batch transaction ids do not increase")
    return ids
