"""Lineages: which snapshots depend on which, and on which one the next delta is based.

One rule: the two newest snapshots share no file, so that no damage takes both. The *chain* of a snapshot is itself, its base,
and so on down to a whole image; two are *independent* when their chains share no folder. The base of the next delta is always the
newest one that is independent of the newest: so snapshots belong to two lineages in turn, without any of them saying to which.

A chain is bounded: many deltas, or many rows in them, would make its restore slower than the I/O that they save is worth.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from procedures.storage.state import Position
from snapshot.catalog import Snapshot

DELTAS_MAX: Final = 16  # of a chain
ROWS_SHARE: Final = 0.03  # of the image's rows, in all deltas of a chain: to put one costs as much as to check and copy some 30
IMAGE_BYTES_MIN: Final = 4 << 20  # a smaller image costs hardly more than a delta


@dataclass(frozen=True, slots=True)
class Wish:
    """What a capture may write instead of a whole image, if it knows what changed since the base."""

    path: str
    base: Position | None  # None: the image has to be whole
    keys_max: int  # more changed keys than this, and the whole image is cheaper
    keep: tuple[int, ...]  # indexes of the snapshots that later deltas may be based on, besides this one

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Wish:
        """From what `dataclasses.asdict` made of one."""
        base = value["base"]
        return cls(value["path"], Position(**base) if base is not None else None, value["keys_max"], tuple(value["keep"]))


def independent(one: Snapshot, other: Snapshot) -> bool:
    """Whether no file of one is needed for the other."""
    return {s.path for s in one.chain}.isdisjoint(s.path for s in other.chain)


def fallback(snapshots: Iterable[Snapshot]) -> Snapshot | None:
    """Of one partition: the newest usable snapshot that is independent of the newest usable one."""
    usable = sorted((s for s in snapshots if s.manifest is not None), key=lambda s: s.order, reverse=True)
    return next((s for s in usable[1:] if independent(s, usable[0])), None)


def next_wish(snapshots: Iterable[Snapshot], path: str) -> tuple[Wish, Snapshot | None]:
    """What the next capture of the partition may write to `path`, and the base that a delta has."""
    snapshots = list(snapshots)
    base = fallback(snapshots)
    newest = max((s for s in snapshots if s.manifest is not None), key=lambda s: s.order, default=None)
    keep = tuple(sorted({s.index for s in (base, newest) if s is not None}))
    if base is None or base.manifest is None or not _may_grow(base):
        return Wish(path, None, 0, keep), None
    m = base.manifest
    return Wish(path, Position(m.index, m.term, m.checksum, m.txn_id), rows_left(base), keep), base


def rows_left(base: Snapshot) -> int:
    """How many rows another delta on it may have."""
    *deltas, image = [s.manifest for s in base.chain if s.manifest is not None]
    return int(ROWS_SHARE * image.rows) - sum(delta.rows for delta in deltas)


def _may_grow(base: Snapshot) -> bool:
    image = base.chain[-1].manifest
    return len(base.bases) < DELTAS_MAX and image is not None and image.bytes >= IMAGE_BYTES_MIN and rows_left(base) > 0
