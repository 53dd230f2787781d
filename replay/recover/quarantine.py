"""Calls that a replay sets aside: what they were, the reason, and which later calls touched the same rows.

One rule: a call is on disk in `quarantine.jsonl`, synced, before anything is applied without it. One JSON object per line.

A call that is set aside has no effect on the state. Its idempotency key, if it has one, is answered with a failure that states so
(only where its code is missing entirely is the key unknown to the new state).

Later calls may therefore answer differently from the live run. They are applied, and listed: those that changed rows which the
missing call changes, and those that answered differently without doing so, since they had read them. The rows of the latter are
in question from then on like those of the missing call. A call that answers differently in each of two trials is not a
consequence; it is also set aside. A call that only read the rows and answered the same is not listed: it had no consequence.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from cmdlog.file_lock import FOREVER, lock
from cmdlog.wal.files import RealFiles
from replay.errors import RowDifference

QUARANTINE_NAME: Final = "quarantine.jsonl"
TOUCHES_MAX: Final = 100  # that are listed per call; the rest is counted: the report stays below some 20 MB


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A call that was set aside."""

    partition: int
    index: int
    position: int
    txn_id: int
    procedure: str
    catalog: int
    source_hash: str
    params: Any  # by name, or the bare list where the code that knows the names is missing
    idempotency_key: str  # hexadecimal fingerprint, "" = none
    kind: str  # divergence, fault, hang, death, code
    reason: str
    routing: str | None = None  # value that sent it to the partition, where its rows are not known
    rows: tuple[RowDifference, ...] = ()
    keys: tuple[tuple[str, Mapping[str, Any]], ...] = ()  # table, key: rows that it changed when it was tried

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "txn_id": str(self.txn_id), "rows": [row.to_json() for row in self.rows]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Quarantined:
        rows = tuple(RowDifference.from_json(row) for row in value["rows"])
        keys = tuple((str(table), dict(key)) for table, key in value["keys"])
        return cls(**{**value, "txn_id": int(value["txn_id"]), "rows": rows, "keys": keys})


@dataclass(frozen=True, slots=True)
class Touch:
    """A later call that touched a row in question, or that answered differently from the live run after a call that was set
    aside."""

    txn_id: int
    index: int
    position: int
    procedure: str
    table: str = ""  # "": only the routing value is the same, or it changed none of the rows in question
    key: Mapping[str, Any] = field(default_factory=dict)
    otherwise: bool = False  # its answer is not the live one


@dataclass(slots=True)
class Aside:
    """What a partition's replay set aside, and what followed. Bounded."""

    partition: int
    calls: list[Quarantined] = field(default_factory=list)
    touches: dict[int, list[Touch]] = field(default_factory=dict)  # by place in `calls`
    more: dict[int, int] = field(default_factory=dict)  # touches that are counted only
    otherwise: list[Touch] = field(default_factory=list)  # calls that answered differently and changed none of those rows
    otherwise_more: int = 0
    unwatched: int = 0  # rows in question that are too many to be watched

    def to_json(self) -> dict[str, Any]:
        """For a report: each call with the later ones that touched its rows."""
        return {
            "partition": self.partition,
            "calls": [
                {**call.to_json(), "touched_by": [_touch_json(touch) for touch in self.touches.get(at, ())],
                 "touched_by_more": self.more.get(at, 0)}
                for at, call in enumerate(self.calls)
            ],
            "answered_otherwise": [_touch_json(touch) for touch in self.otherwise],
            "answered_otherwise_more": self.otherwise_more,
            "rows_not_watched": self.unwatched,
        }  # fmt: skip


def aside_from_json(value: Mapping[str, Any]) -> Aside:
    """The inverse of `Aside.to_json`."""
    aside = Aside(int(value["partition"]))
    for at, call in enumerate(value["calls"]):
        call = dict(call)  # noqa: PLW2901 - the same call, without what followed
        aside.touches[at] = [_touch_from_json(touch) for touch in call.pop("touched_by")]
        aside.more[at] = call.pop("touched_by_more")
        aside.calls.append(Quarantined.from_json(call))
    aside.otherwise = [_touch_from_json(touch) for touch in value["answered_otherwise"]]
    aside.otherwise_more, aside.unwatched = value["answered_otherwise_more"], value["rows_not_watched"]
    return aside


def joined(pieces: Iterable[Aside]) -> list[Aside]:
    """By partition, what the pieces of one recovery set aside, in their order: a later one knows the calls of an earlier one."""
    found: dict[int, Aside] = {}
    for piece in pieces:
        before = found.setdefault(piece.partition, Aside(piece.partition))
        before.calls = piece.calls if len(piece.calls) >= len(before.calls) else before.calls
        for at, touches in piece.touches.items():
            listed = before.touches.setdefault(at, [])
            room = TOUCHES_MAX - len(listed)
            listed += touches[:room]
            before.more[at] = before.more.get(at, 0) + len(touches[room:])
        for at, more in piece.more.items():
            before.more[at] = before.more.get(at, 0) + more
        before.otherwise_more += len([*before.otherwise, *piece.otherwise][TOUCHES_MAX:]) + piece.otherwise_more
        before.otherwise = [*before.otherwise, *piece.otherwise][:TOUCHES_MAX]
        before.unwatched += piece.unwatched
    return [found[partition] for partition in sorted(found)]


class QuarantineFile:
    """`quarantine.jsonl` of a directory; several processes may append to it."""

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, QUARANTINE_NAME)

    def append(self, calls: Sequence[Quarantined]) -> None:
        """Durable on return. Raises: OSError."""
        data = b"".join(orjson.dumps(call.to_json(), option=orjson.OPT_APPEND_NEWLINE) for call in calls)
        new = not os.path.exists(self.path)
        with open(self.path, "ab", buffering=0, opener=_open_no_link) as file:
            lock(file, wait_s=FOREVER)
            file.seek(0, os.SEEK_END)
            begin, rest = file.tell(), memoryview(data)
            try:
                while rest:
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                file.truncate(begin)
                raise
        if new:
            RealFiles().fsync_dir(os.path.dirname(self.path))

    def read(self) -> list[Quarantined]:
        """All complete lines; a torn last one was never relied on. [] without a file."""
        if not os.path.exists(self.path):
            return []
        with open(self.path, "rb") as file:
            return [Quarantined.from_json(orjson.loads(line)) for line in file if line.endswith(b"\n")]

    def drop(self, partitions: Collection[int]) -> None:
        """Forgets the calls of these partitions, and a torn line: they are replayed again. Durable on return."""
        if not os.path.exists(self.path):
            return
        kept = [call for call in self.read() if call.partition not in partitions]
        if kept:
            data = b"".join(orjson.dumps(call.to_json(), option=orjson.OPT_APPEND_NEWLINE) for call in kept)
            RealFiles().write_file_atomic(self.path, data)
        else:
            os.unlink(self.path)
            RealFiles().fsync_dir(os.path.dirname(self.path))


def _open_no_link(path: str, flags: int) -> int:
    """A link would choose another file to write to."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o640)


def _touch_json(touch: Touch) -> dict[str, Any]:
    return {**asdict(touch), "txn_id": str(touch.txn_id)}


def _touch_from_json(value: Mapping[str, Any]) -> Touch:
    return Touch(**{**value, "txn_id": int(value["txn_id"])})
