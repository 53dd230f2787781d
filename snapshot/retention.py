"""Retention: which snapshots depend on which and may be removed, and which part of the log recovery and its promises still need.

The *chain* of a snapshot is itself, its base, and so on down to a whole image; two are *independent* when their chains share no
folder. The base of the next delta is always the newest one that is independent of the newest: so snapshots belong to two lineages
in turn, without any of them saying to which, and no damage takes both of the newest. A chain is bounded: many deltas, or many
rows in them, would make its restore slower than the I/O that they save is worth.

One rule: what a recovery may fall back to is kept. The log is needed from the newest usable snapshot on that is independent of
the newest so that damage to the newest, or to what it depends on, costs a longer replay and nothing else.

Beside that, moments may be promised: all of them since the beginning of a window, and single ones, the recovery points. A moment
can be restored from a snapshot at or before it and the log after that snapshot. So a window needs, of each partition, the newest
usable snapshot at or before its begin (its *base*), and the log from there on; the later snapshots make a restore of later
moments quicker, and stay while there is room. A point needs what its file names. A snapshot always needs its whole chain. `needs`
is that decision, a pure function; times are those of transaction ids, so that a wall clock that is set back moves the beginning
of the window back, and nothing is removed early.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.wal.files import Files
from cmdlog.wal.ids import MILLIS_SHIFT, txn_millis
from procedures.storage.state import Position
from snapshot.capture.capture import Wish
from snapshot.catalog import Snapshot, remove
from snapshot.recovery_points import Point

DELTAS_MAX: Final = 16  # of a chain
ROWS_SHARE: Final = 0.03  # of the image's rows, in all deltas of a chain: to put one costs as much as to check and copy some 30
IMAGE_BYTES_MIN: Final = 4 << 20  # a smaller image costs hardly more than a delta
FIRST_BLOCK: Final = 1  # of a directory's log


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


@dataclass(frozen=True, slots=True)
class Needs:
    """What the promises need."""

    snapshots: frozenset[tuple[int, str]]  # partition and name
    from_block: int | None  # the window needs the log from this block on; None: there is no window
    pins: tuple[tuple[int, int], ...]  # first and last block that each point needs
    bases: frozenset[tuple[int, str]] = frozenset()  # of `snapshots`: without the others every moment is there, only later

    def log(self, *, first_block: int, last_block: int) -> bool:
        """Whether any of these blocks is needed."""
        in_window = self.from_block is not None and last_block >= self.from_block
        return in_window or any(first_block <= to and last_block >= since for since, to in self.pins)

    def pins_alone(self) -> Needs:
        """What the recovery points need of the log, without a window."""
        return Needs(frozenset(), None, self.pins)


def window_begin(*, now_millis: int, window_s: float) -> int | None:
    """The first transaction id of the promised window; None without one."""
    return max(0, now_millis - int(window_s * 1000)) << MILLIS_SHIFT if window_s else None


def needs(snapshots: Iterable[Snapshot], partitions: Sequence[int], *, begin: int | None, points: Iterable[Point] = ()) -> Needs:
    """What must be kept of all existing snapshots, so that every moment from `begin` on and every point can be restored."""
    by_name = {(s.partition, s.name): s for s in snapshots}
    wanted = {(p, name) for point in points for p, name in point.snapshots.items()}
    bases = set(wanted)
    from_block = None
    for partition in partitions if begin is not None else ():
        usable = [s for s in by_name.values() if s.partition == partition and s.manifest is not None]
        usable.sort(key=lambda snapshot: snapshot.order)
        before = [n for n, s in enumerate(usable) if s.manifest is not None and s.manifest.txn_id <= (begin or 0)]
        since = usable[before[-1] if before else 0 :]
        wanted |= {(partition, s.name) for s in since}
        bases |= {(partition, s.name) for s in since[:1]}
        base = usable[before[-1]].manifest if before else None
        from_block = min(base.log_block if base else 0, from_block if from_block is not None else 1 << 63)
    pins = tuple((point.from_block, point.to_block) for point in points)
    return Needs(_with_chains(wanted, by_name), from_block, pins, _with_chains(bases, by_name))


def _with_chains(names: set[tuple[int, str]], by_name: Mapping[tuple[int, str], Snapshot]) -> frozenset[tuple[int, str]]:
    stood_on = {(key[0], base.name) for key in names if key in by_name for base in by_name[key].bases}
    return frozenset(names | stood_on)


def retain(
    files: Files, snapshots: Iterable[Snapshot], *, kept: int, let_go: Callable[[Snapshot], None] | None = None
) -> list[str]:
    """Removes all but the newest `kept` usable snapshots of each partition; returns the names of those removed.

    `let_go` replaces the removal of one; None: it is deleted. The chains of those that stay are kept, too, and whatever recovery
    may fall back to. Damaged ones are removed once `kept` usable ones are newer; until then they are kept for inspection.
    """
    if kept < 2:
        raise ValueError("at least two snapshots are kept: the log is cut at the second-newest")
    snapshots = list(snapshots)
    counted: dict[int, int] = {}
    seconds = (fallback([s for s in snapshots if s.partition == partition]) for partition in {s.partition for s in snapshots})
    staying = {link.path for second in seconds if second is not None for link in second.chain}
    gone = []
    for snapshot in sorted(snapshots, key=lambda s: (s.partition, *s.order), reverse=True):
        # Newest first: what goes has enough usable ones before it, and nothing that stays builds on it.
        usable = counted.get(snapshot.partition, 0)
        if usable >= kept and snapshot.path not in staying:
            gone.append(snapshot)
            continue
        if snapshot.manifest is not None:
            counted[snapshot.partition] = usable + 1
        staying |= {link.path for link in snapshot.chain}
    for snapshot in gone:
        if let_go is not None:
            let_go(snapshot)
        else:
            remove(files, snapshot)
    return [snapshot.name for snapshot in gone]


def anchor_block(snapshots: Iterable[Snapshot]) -> int | None:
    """The first block that recovery of one partition may need: that of the snapshot to fall back to; None = every block."""
    second = fallback(snapshots)
    return second.manifest.log_block if second is not None and second.manifest is not None else None


def oldest_restorable(snapshots: Iterable[Snapshot], partitions: Sequence[int], *, log_from: int) -> int | None:
    """The first transaction from which on every moment can be restored, with the log without a gap from block `log_from` on.

    None: some partition has no snapshot whose log exists.
    """
    earliest: dict[int, int] = {}
    for snapshot in snapshots:
        manifest = snapshot.manifest
        if manifest is not None and manifest.log_block >= log_from:
            earliest[snapshot.partition] = min(manifest.txn_id, earliest.get(snapshot.partition, manifest.txn_id))
    return max((earliest[p] for p in partitions), default=None) if all(p in earliest for p in partitions) else None


def describe_reach(oldest: int | None, *, now_millis: int, window_s: float, unkept_s: float, log_from: int) -> dict[str, Any]:
    """How far back one can really go, as the interfaces show it; `oldest` is what `oldest_restorable` says of `log_from`.

    A promise is of what a directory has logged: a window that is longer than its life, as of a member that was just copied, is
    whole when all of its log is there. `unkept_s`: a window that was promised before and is not kept any more.
    """
    if oldest is None:
        return {"oldest_txn": None, "oldest_time": None, "real_window_s": 0.0, "window_kept": not (window_s or unkept_s)}
    first = txn_millis(oldest)
    begin = window_begin(now_millis=now_millis, window_s=window_s)
    return {
        "oldest_txn": str(oldest),  # "0": all that there ever was
        "oldest_time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(first / 1000)) if oldest else None,
        "real_window_s": round(max(0, now_millis - first) / 1000, 3) if oldest else None,
        "window_kept": not unkept_s and (begin is None or oldest <= begin or log_from == FIRST_BLOCK),
    }
