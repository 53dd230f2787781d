"""Digest of the rows that a batch changed, from SQLite's session extension.

The session records the net change of every row. Its bytes come in the order of a hash table, which a rolled-back call
changes; so the records are split, sorted within their table, and the tables sorted by name, before they are hashed. The
digest is the same with or without savepoints and rolled-back calls, on every machine and Python.

Splitting is the cost. Measured here for updates of two-column rows: 1.05 us a row to iterate in APSW (and 0.4 more to hash
what it gives), 0.5 us with a regular expression that knows SQLite's value encoding up to 127 bytes; a longer value is read
in Python. Sorting and hashing take 0.18 us a row. Record: op, indirect, then values: old ones (UPDATE, DELETE), new ones
(INSERT, UPDATE); value: type, then 8 bytes (INTEGER, REAL), length as varint and bytes (TEXT, BLOB), nothing (NULL, absent).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import apsw

_DELETE, _INSERT, _UPDATE = 9, 18, 23
_SHORT = b"|".join(re.escape(bytes([size])) + b".{%d}" % size for size in range(128))
_VALUE = rb"(?>[\x00\x05]|[\x01\x02].{8}|[\x03\x04](?>" + _SHORT + rb"))"
_OPS = {_DELETE: "delete", _INSERT: "insert", _UPDATE: "update"}
EMPTY = 0x9E3779B97F4A7C15  # digest of a batch that changed no rows; 0 is kept for "switched off"


class ChangesetError(ValueError):
    """The bytes are no changeset: a bug in this module or in SQLite."""


@dataclass(frozen=True, slots=True)
class ChangedRow:
    """One row that a batch changed, for the report of a divergence."""

    table: str
    op: str  # insert, update, delete
    key: tuple[Any, ...]  # values of its primary key
    old: tuple[Any, ...] | None
    new: tuple[Any, ...] | None  # of an update only the changed columns; the others are apsw.no_change


def rows_digest(changeset: bytes) -> int:
    """64-bit digest of a changeset that does not depend on the order of its rows; never 0."""
    if not changeset:
        return EMPTY
    hasher = hashlib.blake2b(digest_size=8)
    for head, records in sorted(_tables(changeset)):
        hasher.update(head)
        records.sort()
        hasher.update(b"".join(records))
    return int.from_bytes(hasher.digest()) or EMPTY


def _tables(changeset: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """(header with the name first, records) of each table."""
    position, size = 0, len(changeset)
    while position < size:
        if changeset[position] != 0x54:  # 'T'
            raise ChangesetError(f"no table header at byte {position} of a changeset of {size}")
        columns, start = _varint(changeset, position + 1)
        end = changeset.index(0, start + columns)  # the flags of the key columns hold zeros, the name does not
        head = changeset[start + columns : end + 1] + changeset[position : start + columns]
        records, position = _records(changeset, end + 1, columns)
        yield head, records


@lru_cache(maxsize=256)
def _record_pattern(columns: int) -> re.Pattern[bytes]:
    both, single = (b"(?:%b){%d}" % (_VALUE, count) for count in (2 * columns, columns))
    return re.compile(rb"\x17." + both + rb"|[\x12\x09]." + single, re.DOTALL)


def _records(changeset: bytes, start: int, columns: int) -> tuple[list[bytes], int]:
    pattern = _record_pattern(columns)
    records: list[bytes] = []
    position, size = start, len(changeset)
    while position < size and changeset[position] in _OPS:
        found = [match[0] for match in iter(pattern.scanner(changeset, position).match, None)]  # type: ignore[attr-defined]
        position += sum(map(len, found))
        records += found
        if position < size and changeset[position] in _OPS:
            end = _skip_record(changeset, position, columns)
            records.append(changeset[position:end])
            position = end
    return records, position


def _skip_record(changeset: bytes, position: int, columns: int) -> int:
    values = 2 * columns if changeset[position] == _UPDATE else columns
    position += 2
    for _ in range(values):
        kind = changeset[position]
        position += 1
        if kind in (1, 2):
            position += 8
        elif kind in (3, 4):
            size, position = _varint(changeset, position)
            position += size
        elif kind not in (0, 5):
            raise ChangesetError(f"value of type {kind} at byte {position - 1} of a changeset")
    if position > len(changeset):
        raise ChangesetError("a changeset ends inside a record")
    return position


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """SQLite's varint: seven bits a byte, the ninth byte whole."""
    value = 0
    for offset in range(9):
        byte = data[position + offset]
        if offset == 8:
            return value << 8 | byte, position + 9
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, position + offset + 1
    raise AssertionError("unreachable")


def describe_changes(changeset: bytes) -> list[ChangedRow]:
    """The rows of a changeset, sorted by table and key."""
    rows = [
        ChangedRow(
            table=change.name,
            op=_OPS[change.opcode],
            key=_key_of(change),
            old=None if change.old is None else tuple(change.old),
            new=None if change.new is None else tuple(change.new),
        )
        for change in (apsw.Changeset.iter(changeset) if changeset else ())
    ]
    return sorted(rows, key=lambda row: (row.table, repr(row.key)))


def _key_of(change: Any) -> tuple[Any, ...]:
    values = change.new if change.old is None else change.old
    return tuple(values[column] for column in sorted(change.pk_columns))
