"""How far back log and archive reach together, and what is missing where they do not reach far enough.

One rule: the archive is looked at only when the live log and the snapshots next to it do not suffice, and nothing of it is
believed without its own checks: headers and chain make its segments and the live ones one log, or they do not count.

A run of segments that does not reach the live log can still serve a recovery point whose blocks all lie in it: the point's file
says that no entry up to its transaction is elsewhere.

Archived segments that precede a log and do not join it show that the log did not begin there. They are not part of it: something
is missing in between. What the archive dropped by its own rules leaves no name; so where there is no such *stray*, nothing is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.segment import SegmentHeader
from cmdlog.wal.ids import PARTITIONS_MAX, txn_millis
from replay.errors import PlanOutdated
from replay.log.salvage import Gap, SalvagedLog
from replay.log.source import LogSource, alone, around_gaps, fold_end, in_front, open_source
from snapshot.archive_layout import ArchivedSegment, list_segments, prefix_of, run_before, runs, segment_file_name
from snapshot.catalog import Snapshot, list_archived, list_snapshots
from snapshot.recovery_points import list_points

NAMED_MAX: Final = 3  # files that a message names one by one


class Reach:
    """What there is in addition to the live log, for one search."""

    def __init__(self, files: Files, directory: str, source: LogSource, until: int | None) -> None:
        identity = source.instance.identity
        self._files, self._directory, self._source, self._until = files, directory, source, until
        self._segments = list_segments(files, directory, identity)
        self._damages: list[Corrupt] = []
        self._gaps: set[Gap] = set()
        live = list_snapshots(files, directory, identity)
        names = {(snapshot.partition, snapshot.name) for snapshot in live}
        old = [s for s in list_archived(files, directory, identity) if (s.partition, s.name) not in names]
        self.snapshots: Sequence[Snapshot] = [*old, *live]

    def sources(self) -> Iterator[LogSource]:
        """Longer logs than the live one, the one that reaches the live log's end first."""
        run = run_before(self._segments, self._source.segments[0].header)
        if (end := self._end_of_need(run)) is not None:
            yield replace(alone(self._files, self._source, run[:end]), provisional=True)
        if run:
            yield in_front(self._files, self._source, run)
        yield from self._pinned(run)
        yield from self._around_gaps()

    def _pinned(self, run: Sequence[ArchivedSegment]) -> Iterator[LogSource]:
        """What recovery points keep, alone: each of them says that no entry up to its transaction is elsewhere."""
        if self._until is None:
            return
        points, _ = list_points(self._files, self._directory)
        for piece in runs(self._segments):
            begin, end = piece[0].first_block, piece[-1].last_block
            served = [point for point in points if begin <= point.from_block and point.to_block <= end]
            if any(self._until <= point.txn_id for point in served) and piece[-1] not in run:
                yield alone(self._files, self._source, piece)

    def _around_gaps(self) -> Iterator[LogSource]:
        """All that there is, with whatever is damaged or missing left out; first without what lies after the moment."""
        pieces = _apart(self._segments, self._source.segments[0].header)
        end = self._end_of_need(self._segments)
        for stop in (end - 1, end) if end is not None else ():
            if early := [archived for archived in pieces if archived.last_block <= self._segments[max(stop, 1) - 1].last_block]:
                yield around_gaps(self._files, self._source, early, to_live=False)
        yield around_gaps(self._files, self._source, pieces, to_live=True)

    def _end_of_need(self, run: Sequence[ArchivedSegment]) -> int | None:
        """How many of these segments hold all up to the wanted moment, so that a year after it need not be read; None: unknown.

        Transactions of a partition only grow: once one after the moment was met, no earlier one follows. One segment more is
        taken, for digests and skips of the last batches.
        """
        until = self._until
        if until is None or any(archived.manifest is None for archived in run):
            return None
        if any(one.last_block + 1 != other.first_block for one, other in pairwise(run)):
            return None
        ranges = [archived.manifest.partitions if archived.manifest is not None else {} for archived in run]
        passed = {p for of in ranges for p, found in of.items() if found.last > until}
        heads = self._source.checkpoint(self._source.first_blocks[0]).by_partition
        if passed != {p for p in heads if p < PARTITIONS_MAX}:
            return None
        last = max((n for n, of in enumerate(ranges) if any(found.first <= until for found in of.values())), default=-1)
        return last + 2 if last + 2 <= len(run) else None

    def note_gaps(self, patchwork: SalvagedLog) -> None:
        """What a reading around gaps met."""
        self._gaps |= set(patchwork.gaps)
        for damage in patchwork.damages:
            self.note_damage(damage)

    def restorable(self, can: Callable[[int], bool]) -> str:
        """Describes from which to which moment the log is complete; each of them was tried. "" when none is known."""
        spans = []
        for begin, ends in self._whole_stretches():
            end = next((end for end in ends if begin <= end and can(end)), None)
            if end is not None and can(begin):
                spans.append((begin, end))
        wanted = self._until or 0
        nearest = sorted(sorted(spans, key=lambda s: min(abs(s[0] - wanted), abs(s[1] - wanted)))[:NAMED_MAX])
        return " and ".join(f"transactions {low} to {high} ({time_of(low)} to {time_of(high)})" for low, high in nearest)

    def _whole_stretches(self) -> Iterator[tuple[int, list[int]]]:
        """(first moment, possible last moments) of each stretch of the log without a gap."""
        pieces = _apart(self._segments, self._source.segments[0].header)
        first = pieces[0].first_block if pieces else int(self._source.first_blocks[0])
        bounds = [(one.last_block, other.first_block) for one, other in pairwise(pieces)]
        bounds += [(pieces[-1].last_block, int(self._source.first_blocks[0]))] if pieces else []
        gaps = _merged([(a + 1, b - 1) for a, b in bounds if a + 1 < b] + sorted(self._gaps))
        newest = [self._newest()]
        for start, gap in zip([first, *(last + 1 for _, last in gaps)], [*gaps, None], strict=True):
            if (begin := self._first_moment(start)) is not None:
                yield begin, newest if gap is None else self._ends(gap)

    def _newest(self) -> int:
        return fold_end(self._source).txn_id_max

    def _first_moment(self, block: int) -> int | None:
        """The first moment at which every partition has a snapshot that the log from this block on continues."""
        heads = self._source.checkpoint(int(self._source.first_blocks[-1])).by_partition
        found: dict[int, int] = {}
        for snapshot in self.snapshots:
            m = snapshot.manifest
            if m is not None and m.log_block >= block:
                found[snapshot.partition] = min(found.get(snapshot.partition, m.txn_id), m.txn_id)
        if any(p not in found for p in heads if p < PARTITIONS_MAX):
            return None
        return max(found.values(), default=None)

    def _ends(self, gap: Gap) -> list[int]:
        """Moments before anything that these blocks may have held, the latest first."""
        manifests = [s.manifest for s in self._segments if s.manifest is not None]
        held = [m for m in manifests if m.first_block <= gap[1] and m.last_block >= gap[0]]
        before = [m for m in manifests if m.last_block < gap[0]]
        ends = {min((of.first for m in held for of in m.partitions.values()), default=0) - 1}
        lasts: dict[int, int] = {p: of.last for m in before for p, of in m.partitions.items()}
        ends.add(min(lasts.values(), default=0) - 1)
        ends.add(max((m.last for manifest in before[-2:-1] for m in manifest.partitions.values()), default=0))
        return sorted((end for end in ends if end > 0), reverse=True)

    def note_damage(self, damage: Corrupt) -> None:
        """A file that could not be read to its end."""
        if all((damage.path, damage.block) != (known.path, known.block) for known in self._damages):
            self._damages.append(damage)

    def missing(self) -> str:
        """What a message says about the blocks that are not there; "" when none are."""
        parts = [self._damaged(damage) for damage in self._damages]
        parts += [self._hole(first, last) for first, last in self._holes()]
        if not parts and (stray := nearest_stray(self._files, self._source)) is not None:  # it is where another belongs
            parts = [describe_stray(stray)]
        return "".join(f"; {part}" for part in parts)

    def _needed_from(self) -> int:
        """The block from which on the log would suffice, with the snapshots that there are."""
        newest: dict[int, tuple[tuple[int, int], int]] = {}
        for snapshot in self.snapshots:
            m = snapshot.manifest
            if m is not None and (self._until is None or m.txn_id <= self._until):
                newest[snapshot.partition] = max(newest.get(snapshot.partition, ((0, 0), 0)), (snapshot.order, m.log_block))
        heads = self._source.checkpoint(self._source.first_blocks[-1]).by_partition
        partitions = {snapshot.partition for snapshot in self.snapshots} | {p for p in heads if p < PARTITIONS_MAX}
        return max(1, min((newest[p][1] if p in newest else 1 for p in partitions), default=1))

    def _holes(self) -> list[tuple[int, int]]:
        """Ranges of blocks, both ends included, that would be needed and cannot be read."""
        at, holes = self._needed_from(), []
        live_first = int(self._source.first_blocks[0])
        for archived in [*(s for s in self._segments if s.segment is not None), None]:
            first, last = (archived.first_block, archived.last_block) if archived is not None else (live_first, live_first)
            if at < min(first, live_first):
                holes.append((at, min(first, live_first) - 1))
            at = max(at, last + 1)
        return holes

    def _hole(self, first: int, last: int) -> str:
        lost = [s for s in self._segments if s.segment is None and s.first_block <= last and s.last_block >= first]
        after = next((s for s in self._segments if s.segment is not None and s.first_block > last), None)
        if lost:
            names = ", ".join(s.problem for s in lost[:NAMED_MAX]) + (", and more" if len(lost) > NAMED_MAX else "")
        elif after is not None and after.manifest is not None and after.manifest.predecessor is not None:
            names = f"{os.path.join(os.path.dirname(after.path), after.manifest.predecessor.name)} is missing"
        else:
            name = segment_file_name(self._source.instance.identity, first_block=first, last_block=last)
            names = f"no file of the archive holds them, such as {name}"
        low, high = self._transactions(first, last, lost)
        return f"blocks {first} to {last} of the log cannot be read ({names}): {_span(low, high)}"

    def _damaged(self, damage: Corrupt) -> str:
        name = os.path.basename(damage.path)
        hit = next((s for s in self._segments if s.name == name), None)
        if hit is None:
            return str(damage)
        low, high = self._transactions(hit.first_block, hit.last_block, [hit])
        where = f"{damage.path} at offset {damage.offset}, block {damage.block}: {damage.what}"
        lost = (gap for gap in _merged(self._gaps) if gap[0] <= (damage.block or 0) <= gap[1])
        gap = next(lost, (hit.first_block, hit.last_block))
        first, last = max(gap[0], hit.first_block), min(gap[1], hit.last_block)
        return f"blocks {first} to {last} of the log cannot be trusted ({where}): some of {_span(low, high)}"

    def _transactions(self, first: int, last: int, lost: Sequence[ArchivedSegment]) -> tuple[int, int]:
        """The transactions that these blocks held, at most; 0 where unknown."""
        stated = [s.manifest for s in lost if s.manifest is not None]
        whole = stated and len(stated) == len(lost) and stated[0].first_block <= first and stated[-1].last_block >= last
        ranges = [of for manifest in stated for of in manifest.partitions.values()]
        if whole and ranges:
            return min(of.first for of in ranges), max(of.last for of in ranges)
        before = [s.manifest for s in self._segments if s.manifest is not None and s.last_block < first]
        after = [s.manifest for s in self._segments if s.manifest is not None and s.first_block > last]
        low = max((of.last for manifest in before for of in manifest.partitions.values()), default=0)
        high = min((of.first for manifest in after for of in manifest.partitions.values()), default=0)
        return low, high or self._source.checkpoint(int(self._source.first_blocks[0])).txn_id_max


def _merged(ranges: Iterable[Gap]) -> list[Gap]:
    """Ranges that touch or overlap made one, ascending."""
    merged: list[Gap] = []
    for first, last in sorted(ranges):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = merged[-1][0], max(last, merged[-1][1])
        else:
            merged.append((first, last))
    return merged


def _apart(segments: Sequence[ArchivedSegment], first: SegmentHeader) -> list[ArchivedSegment]:
    """The readable segments before the one with this header that can be of one history with it, oldest first."""
    found: list[ArchivedSegment] = []
    block, generation = int(first.first_block), first.previous_generation
    for archived in reversed(segments):
        header = archived.segment.header if archived.segment is not None else None
        if header is None or archived.last_block >= block:
            continue
        if archived.last_block == block - 1 and header.generation != generation:
            continue
        found.insert(0, archived)
        block, generation = archived.first_block, header.previous_generation
    return found


def source_from(files: Files, directory: str, from_block: int, gaps: Sequence[Gap] = ()) -> LogSource:
    """The log from this block on, for carrying out a plan: preceded by the archive where the live log begins later.

    Raises: WalError of the restart table, PlanOutdated when the block no longer exists.
    """
    source = open_source(files, directory, accept_data_loss=True)
    if gaps:
        found = _apart(list_segments(files, directory, source.instance.identity), source.segments[0].header)
        return around_gaps(files, source, found, to_live=True, gaps=gaps)
    if from_block >= source.first_blocks[0]:
        return source
    segments = list_segments(files, directory, source.instance.identity)
    run = run_before(segments, source.segments[0].header)
    if run and run[0].first_block <= from_block:
        return in_front(files, source, run)
    for piece in runs(segments):
        if piece[0].first_block <= from_block <= piece[-1].last_block:
            return alone(files, source, piece)
    raise PlanOutdated(f"block {from_block} is no longer in the log or in the archive")


def _span(low: int, high: int) -> str:
    return f"transactions {low or 'from the beginning'} to {high}, {time_of(low)} to {time_of(high)}"


def time_of(txn: int) -> str:
    """The time of a transaction as text."""
    if not txn:
        return "the beginning"
    try:
        moment = datetime.fromtimestamp(txn_millis(txn) / 1000, UTC)
    except (ValueError, OverflowError):
        return "not a valid time"
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def archived_of(files: Files, source: LogSource) -> tuple[list[ArchivedSegment], list[ArchivedSegment]]:
    """Those that end where the log begins, without a gap; and the other ones before them."""
    run, strays = _looked_up(files, source)
    return _looked_up(files, source) if strays else (run, strays)  # a running node may just have been removing one


def _looked_up(files: Files, source: LogSource) -> tuple[list[ArchivedSegment], list[ArchivedSegment]]:
    if not source.segments:
        return [], []
    own = f"log-{prefix_of(source.instance.identity)}-"  # the folder may hold another node's, too
    found = list_segments(files, source.directory, source.instance.identity)
    run = run_before(found, source.segments[0].header)
    first = first_block_of(run, source)
    return run, [one for one in found if one.first_block < first and one.name.startswith(own)]


def first_block_of(run: Sequence[ArchivedSegment], source: LogSource) -> int:
    """Where the log begins with these before it."""
    return run[0].first_block if run else int(source.segments[0].header.first_block)


def nearest_stray(files: Files, source: LogSource) -> ArchivedSegment | None:
    """The last one before the log that is not kept there by a recovery point; those may be apart from it.

    The log may already include its archived segments.
    """
    _, strays = archived_of(files, source)
    if not strays:
        return None
    points, bad = list_points(files, source.directory)
    pins = [] if bad else [(point.from_block, point.to_block) for point in points]
    left = [one for one in strays if not any(one.first_block <= to and one.last_block >= since for since, to in pins)]
    return left[-1] if left else None


def describe_strays(files: Files, directory: str) -> str:
    """The nearest of them, for an error of a log that does not reach back; else ""."""
    try:
        strays = archived_of(files, open_source(files, directory))[1]
    except WalError:
        return ""
    return describe_stray(strays[-1]) if strays else ""


def describe_stray(stray: ArchivedSegment) -> str:
    """Names the segment, and why it does not count."""
    return f"{stray.path} is not part of the log ({why_stray(stray)})"


def why_stray(stray: ArchivedSegment) -> str:
    """What keeps it from being a part of the log."""
    return stray.problem or stray.doubt or "what follows does not continue it"
