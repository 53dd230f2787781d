"""What the scrub of a node directory remembers over restarts, `state/scrub.json`: how far it is, and what it has found.

One rule: a figure, never a condition. It is written without a sync, and a file that is missing, damaged or of another version
costs one pass from the begin: everything that it says is found again on the disk.

A finding is of one file and lives until that file reads well, is repaired, or is gone; it is logged when it comes and when it
ends, not each time that it is seen.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cmdlog.node.scrub.file_scan import Damage, ScrubKind
from cmdlog.node.scrub.scrub_plan import ScrubItem
from cmdlog.wal.format.checked_json import decode_checked, encode_checked
from snapshot.archive_layout import archived_snapshot
from snapshot.manifest import parse_name

NAME: Final = "scrub.json"
FORMAT: Final = 1
ENDED_SHOWN: Final = 20  # findings that are over, the newest ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubFinding:
    """Damage of one file."""

    kind: ScrubKind
    name: str  # of the item: the segment, or the snapshot's folder
    path: str
    what: str
    offset: int | None = None
    block: int | None = None
    partition: int | None = None
    index: int | None = None
    txn_id: int | None = None
    found_at: float  # seconds since 1970
    repair: str = ""  # what is or was done, in words
    snapshots_left: int = 0  # rounds of fresh snapshots that are still to be taken
    retry_at: float = 0.0
    ended_at: float | None = None  # the damage is in use no more

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name

    @classmethod
    def of(cls, item: ScrubItem, damage: Damage, now: float) -> ScrubFinding:
        """A snapshot's name says its partition and the last entry that it holds."""
        named = parse_name(archived_snapshot(item.name) or item.name)
        if named is not None and damage.partition is None:
            damage = replace(damage, partition=named[0], index=named[1])
        return cls(kind=item.kind, name=item.name, found_at=now, **asdict(damage))

    def shown(self) -> dict[str, Any]:
        """As `/v1/status` shows it; fields without a value are left out, the transaction is text as everywhere."""
        value = {name: getattr(self, name) for name in _PLACE if getattr(self, name) is not None}
        if self.txn_id is not None:
            value["txn_id"] = str(self.txn_id)
        ended = {} if self.ended_at is None else {"ended_at": _time(self.ended_at)}
        return {**value, "found_at": _time(self.found_at), **ended, "repair": self.repair}


_PLACE: Final = ("kind", "path", "offset", "block", "partition", "index", "txn_id", "what")


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Findings:
    """Open findings by file, and the last ones that ended. One thread changes them; any reads the lists, which are replaced."""

    def __init__(self, values: Iterable[Mapping[str, Any]]) -> None:
        """`values` as `as_values` gave them, of this or an earlier version: what has other fields is left out."""
        names = {of.name for of in fields(ScrubFinding)}
        known = [ScrubFinding(**value) for value in values if set(value) == names]
        self.open = [found for found in known if found.ended_at is None]
        self.ended = [found for found in known if found.ended_at is not None]

    def as_values(self) -> list[dict[str, Any]]:
        """Plain data."""
        return [asdict(found) for found in (*self.open, *self.ended)]

    def find(self, key: tuple[str, str]) -> ScrubFinding | None:
        """The open finding of this file."""
        return next((found for found in self.open if found.key == key), None)

    def put(self, found: ScrubFinding) -> None:
        """In the place of what is known of this file."""
        self.open = [*(other for other in self.open if other.key != found.key), found]

    def end(self, key: tuple[str, str], now: float, repair: str) -> ScrubFinding | None:
        """The finding of this file is over; None if there is none."""
        found = self.find(key)
        if found is None:
            return None
        over = replace(found, ended_at=now, repair=repair, snapshots_left=0)
        self.ended = [*self.ended, over][-ENDED_SHOWN:]
        self.open = [other for other in self.open if other.key != key]
        return over


@dataclass(slots=True)
class ScrubPass:
    """One pass over everything."""

    began: float  # seconds since 1970
    upto: dict[str, str]  # kind -> the last name when it began
    after: tuple[str, str] = ("", "")  # key of the last file that it finished
    current: tuple[str, str] | None = None  # key of the one that it is reading
    at: dict[str, Any] | None = None  # where in there
    bytes: int = 0  # read so far
    files: int = 0
    damaged: int = 0

    def begin_file(self, key: tuple[str, str]) -> None:
        """It is read from its begin, unless it is the one that is being read."""
        if self.current != key:
            self.current, self.at = key, None

    def note_slice(self, size: int, at: dict[str, Any] | None) -> None:
        """So many bytes more, and where the next slice begins."""
        self.bytes, self.at = self.bytes + size, at

    def end_file(self, key: tuple[str, str], *, whole: int = 0, damaged: int = 0) -> None:
        """It was read to its end, was damaged, or has gone."""
        self.files, self.damaged = self.files + whole, self.damaged + damaged
        self.after, self.current, self.at = key, None, None


@dataclass(slots=True)
class ScrubProgress:
    """All that a restart continues with."""

    under_way: ScrubPass | None = None
    last: dict[str, Any] | None = None  # began, finished, bytes, files, damaged of the last pass
    passes: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)
    sums: dict[str, dict[str, int]] = field(default_factory=dict)  # group -> range -> sum, of the last whole reading of the log

    def begin_pass(self, now: float, upto: dict[str, str]) -> ScrubPass:
        """A new one, over what there is now."""
        self.under_way = ScrubPass(now, upto)
        return self.under_way

    def end_pass(self, now: float) -> dict[str, Any]:
        """The pass under way is over; what is kept of it."""
        of = self.under_way
        assert of is not None
        self.last = {"began": of.began, "finished": now, "bytes": of.bytes, "files": of.files, "damaged": of.damaged}
        self.passes, self.under_way = self.passes + 1, None
        return self.last

    def take_sums(self, sums: dict[str, dict[str, int]]) -> None:
        """In the place of those that were known: others may be reading them."""
        self.sums = sums

    def save(self, folder: str, findings: list[dict[str, Any]]) -> None:
        """Replaces the file. Best effort."""
        self.findings = findings
        path = os.path.join(folder, NAME)
        temporary = f"{path}.tmp"
        with contextlib.suppress(OSError):
            Path(temporary).unlink(missing_ok=True)
            with open(temporary, "xb") as file:  # "x" follows no link that somebody has put there
                file.write(encode_checked({"format": FORMAT, **asdict(self)}))
            os.replace(temporary, path)

    @property
    def last_began(self) -> float | None:
        return None if self.last is None else float(self.last["began"])


def read_progress(folder: str) -> ScrubProgress:
    """As it was written last, or a new one."""
    path = os.path.join(folder, NAME)
    with contextlib.suppress(OSError, TypeError, KeyError, ValueError):
        value = decode_checked(Path(path).read_bytes())
        if value.pop("format") == FORMAT:
            now = value.pop("under_way")
            return ScrubProgress(None if now is None else _pass_of(now), **value)
    return ScrubProgress()


def _pass_of(value: dict[str, Any]) -> ScrubPass:
    current = value.pop("current")
    after: tuple[str, str] = tuple(value.pop("after"))
    return ScrubPass(after=after, current=None if current is None else tuple(current), **value)
