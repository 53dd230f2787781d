"""What a scrub has found: where, what is being done about it, and when it was over. Plain values, kept over restarts.

One rule: a finding is of one file and lives until that file reads well, is repaired, or is gone; it is logged when it comes and
when it ends, not each time that it is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

from cmdlog.node.scrub.file_scan import Damage, ScrubKind
from cmdlog.node.scrub.scrub_plan import ScrubItem
from snapshot.archive_layout import archived_snapshot
from snapshot.manifest import parse_name

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
        names = {field.name for field in fields(ScrubFinding)}
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
