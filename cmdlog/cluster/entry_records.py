"""Entries of consensus as records of the log, and back.

One rule: an entry has the same bytes on every disk. A payload is the whole record, encoded once by the leader that proposed it.
What consensus makes itself (the empty entry of a term, a configuration) is sent without a record, so its record follows from its
place alone: it is never compressed, since another build of the compressor would give other bytes.

`EntryBlocks` knows in which block of this node's log each entry of a group lies, back to what holds the log's oldest segment. An
entry that was replaced lies where its replacement does.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from cmdlog.raft.entries import EntryLog
from cmdlog.raft.messages import KIND_CONFIGURATION, KIND_EMPTY, KIND_NORMAL, Entries
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import RECORD, BadRecord, Record, RecordKind, decode_record, encode_empty, encode_record

_unpack_head: Final = RECORD.unpack_from
LAST_ENTRY_KIND: Final = 15  # kinds from 16 on are notes of one node
_NOT_SENT: Final = (RecordKind.CONFIGURATION, RecordKind.EMPTY)
_SENT_KINDS: Final = frozenset(kind for kind in RecordKind if kind <= LAST_ENTRY_KIND and kind not in _NOT_SENT)
_BATCH: Final = int(RecordKind.BATCH)


class EntryBlocks:
    """Under the driver's lock."""

    def __init__(self) -> None:
        self._firsts: dict[int, list[int]] = {}  # group -> lowest index in each of `_blocks`, ascending
        self._blocks: dict[int, list[int]] = {}
        self._last: dict[int, int] = {}  # group -> its last entry

    def add_block(self, block: int, records: Iterable[bytes]) -> None:
        """A block with these records has its number."""
        for record in records:
            _, kind, _, group, _, index, _, _ = _unpack_head(record)
            if kind <= LAST_ENTRY_KIND:
                self.add(block, group, index)

    def add(self, block: int, group: int, index: int) -> None:
        """The group's entry lies there."""
        firsts, blocks = self._firsts.setdefault(group, []), self._blocks.setdefault(group, [])
        self._last[group] = index
        while firsts and firsts[-1] >= index:
            firsts.pop()
            blocks.pop()
        if not blocks or blocks[-1] != block:
            firsts.append(index)
            blocks.append(block)

    def block_of(self, group: int, index: int) -> int | None:
        """A block such that the entry, and all after it, lie there or later; None: it is not written yet."""
        firsts = self._firsts.get(group)
        if not firsts or index > self._last[group]:
            return None
        return self._blocks[group][max(0, bisect_right(firsts, index) - 1)]

    def forget(self, group: int, upto: int) -> None:
        """Nobody asks for entries up to that index any more."""
        firsts = self._firsts.get(group, [])
        if (at := bisect_right(firsts, upto) - 1) > 0:
            del firsts[:at], self._blocks[group][:at]


def records_of(group: int, entries: Entries) -> list[bytes]:
    """The records of these entries of a group, in order."""
    if not entries.kinds.strip(b"\0"):
        return entries.payloads
    places = enumerate(zip(entries.kinds, entries.terms, entries.payloads, strict=True), entries.first)
    return [_record_of(group, index, term, kind, payload) for index, (kind, term, payload) in places]


def _record_of(group: int, index: int, term: int, kind: int, payload: bytes) -> bytes:
    if kind == KIND_NORMAL:
        return payload
    if kind == KIND_EMPTY:
        return encode_empty(partition=group, term=term, index=index)
    return encode_record(RecordKind.CONFIGURATION, payload, partition=group, term=term, index=index)


def entry_of(record: Record) -> tuple[int, bytes]:
    """Kind and payload of the entry that a record of the log holds; the inverse of `records_of`."""
    if record.kind is RecordKind.CONFIGURATION:
        return KIND_CONFIGURATION, record.payload
    if record.kind is RecordKind.EMPTY and not record.payload:
        return KIND_EMPTY, b""
    return KIND_NORMAL, record.raw


def place_of(record: bytes) -> tuple[int, int, int, int]:
    """Kind, group, term and index that an encoded record states. Raises: BadRecord."""
    if len(record) < RECORD.bytes:
        raise BadRecord("shorter than a record header")
    _, kind, _, group, term, index, _, _ = RECORD.unpack_from(record)
    return kind, group, term, index


def check_entries(group: int, entries: Entries) -> None:
    """What a peer sends must say itself that it belongs where it is put: it is written and executed as it is.

    Raises: BadRecord.
    """
    for index, (kind, term, payload) in enumerate(
        zip(entries.kinds, entries.terms, entries.payloads, strict=True), entries.first
    ):
        if kind != KIND_NORMAL:
            if kind == KIND_EMPTY and payload:
                raise BadRecord(f"an empty entry of {len(payload)} bytes")
            continue
        record = decode_record(payload)
        in_place = (record.partition, record.term, record.index) == (group, term, index)
        sent = record.kind in _SENT_KINDS or (record.kind is RecordKind.EMPTY and len(payload) > RECORD.bytes)
        if not in_place or not sent:  # a restart must find what was sent
            said = f"{record.kind.name} of group {record.partition}, term {record.term}, index {record.index}"
            raise BadRecord(f"{said} sent as the entry of group {group}, term {term}, index {index}")


def describe_batch(entries: EntryLog, index: int, names: Sequence[str]) -> str:
    """A logged batch for people, with its calls if it is in memory; `names` of the procedures by number."""
    at = index - entries.held - 1
    if not 0 <= at < len(entries.payloads) or entries.payloads[at][4:5] != bytes([_BATCH]):
        return f"entry {index}"
    batch = decode_batch(decode_record(entries.payloads[at]))
    called = sorted({names[number] for number in batch.procedures})
    return f"entry {index} (transactions {batch.txn_ids[0]} to {batch.txn_ids[-1]}, calls of {', '.join(called)})"
