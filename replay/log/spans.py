"""Which entries a damaged log can still serve, and how several logs become one line of entries.

One rule: an entry is taken from a log only if it is on the line that was chosen. Two logs that hold the same (term, checksum) at
an index hold the same entries up to there (Ongaro, Raft, section 5.3: log matching), so a line may switch from one log to
another at a place where both agree, and a place where they differ ends what they share.

Memory: 12 bytes per entry of the logs that are looked at; this is done only where a log cannot be read completely.
"""

from __future__ import annotations

import os
from array import array
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import Lsn
from cmdlog.wal.opening.scan import SegmentWalk, walk_segment
from cmdlog.wal.opening.survey import Survey
from cmdlog.wal.skips import Skips, SkipSet
from replay.log.collect_evidence import survey_anyway
from replay.log.log_fold import StreamFold
from replay.log.salvage import SalvagedLog, SalvagedSegment
from replay.log.source import LogSource
from snapshot.archive_layout import list_segments, run_before

_CHECKPOINT: Final = RecordKind.CHECKPOINT


@dataclass(frozen=True, slots=True)
class Mark:
    """An entry of a partition's stream. Index 0 is before the first one."""

    index: int
    term: int
    checksum: int


BEGINNING = Mark(0, 0, 0)


@dataclass(slots=True)
class Span(StreamFold):
    """Entries (base, last] of one partition in one log, without a gap: the fold of its stream from one gap to the next."""

    directory: str
    base: int
    base_mark: Mark | None  # None: nothing states its checksum
    from_block: int
    last_block: int  # digests of the last entries come after them: up to the gap, or the log's end
    terms: array[int] = field(default_factory=lambda: array("Q"))
    checksums: array[int] = field(default_factory=lambda: array("I"))
    commit: int = 0  # entries up to here are known committed, by what comes before the next gap

    def __post_init__(self) -> None:
        self.last_index = self.last

    @property
    def last(self) -> int:
        return self.base + len(self.terms)

    def mark(self, index: int) -> Mark | None:
        """The entry there; None where this span does not know it."""
        if index == self.base:
            return self.base_mark
        at = index - self.base - 1
        return Mark(index, self.terms[at], self.checksums[at]) if 0 <= at < len(self.terms) else None

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the stream's next record."""
        if voided := self.fold(lsn, record):
            keep = max(0, voided - self.base - 1)
            del self.terms[keep:], self.checksums[keep:]
        if record.is_entry:
            self.terms.append(record.term)
            self.checksums.append(record.checksum)


class SpanStep(NamedTuple):
    """Entries (from_mark.index, to_mark.index] come from this span."""

    span: Span
    from_mark: Mark
    to_mark: Mark


def salvage(files: Files, directory: str) -> LogSource:
    """The log of a directory around whatever is damaged or missing; what it leaves out, `patchwork` says.

    Blocks after a damaged place of the newest segment count as far as other blocks prove them durable.
    Raises: Corrupt, Foreign, NewerFormat when not even the instance file can be read.
    """
    instance = load_instance(files, directory)
    survey, _ = survey_anyway(files, directory, instance)
    archived = list_segments(files, directory, instance.identity)
    front = run_before(archived, survey.segments[0].header) if survey.segments else archived
    pieces = [SalvagedSegment(found.segment, found.last_block) for found in front if found.segment is not None]
    pieces += _live_pieces(files, survey)
    patchwork = SalvagedLog(files, pieces)
    return LogSource(
        directory=directory,
        instance=instance,
        verdict="salvaged",
        first_blocks=[int(piece.segment.header.first_block) for piece in pieces],
        last_block=pieces[-1].last_block if pieces else 0,
        damage=None,
        records=patchwork.records,
        segments=[piece.segment for piece in pieces],
        archived=tuple(os.path.basename(found.path) for found in front if found.segment is not None),
        patchwork=patchwork,
    )


def _live_pieces(files: Files, survey: Survey) -> list[SalvagedSegment]:
    pieces = []
    for number, segment in enumerate(survey.segments):
        after = survey.segments[number + 1] if number + 1 < len(survey.segments) else None
        if after is not None and after.sequence == segment.sequence + 1:
            end = int(after.header.first_block) - 1
        else:
            end = _last_block(walk_segment(files.read_file(segment.path), segment.header), survey.evidence)
        pieces.append(SalvagedSegment(segment, end))
    return pieces


def _last_block(walk: SegmentWalk, evidence: int) -> int:
    end = int(walk.expected) - 1
    proved = max(walk.evidence, evidence)
    return max([end, *(int(place.header.number) for place in walk.later if place.header.number <= proved)])


def spans_of(source: LogSource, partitions: Collection[int]) -> tuple[dict[int, list[Span]], GroupStates]:
    """What this log can serve of these partitions, by partition in the log's order, and the fold over all that can be read."""
    groups = GroupStates()
    finder = _SpanFinder(source.directory, frozenset(partitions), groups)
    for found in source.read_with_gaps(from_block=source.first_blocks[0]) if source.first_blocks else ():
        if found is None:
            finder.note_gap()
            continue
        groups.observe(*found)
        finder.observe(*found)
    finder.end(source.last_block)
    return finder.spans, groups


def pieces_of(spans: Sequence[Span], last: int, *, alone: bool) -> list[tuple[Span, int]]:
    """Spans of one log by their first entries, each with its last entry that counts: up to `last`, and as far as no later one
    holds different entries.

    What precedes a gap may have been made void in it: unless no other node votes (`alone`), it counts as far as it is
    known to be committed.
    """
    found: list[tuple[Span, int]] = []
    for number, span in enumerate(spans):
        behind = spans[number + 1 :]
        known = [span.last, last, *(later.base for later in behind), *([span.commit] if behind and not alone else [])]
        found.append((span, min(known)))
    return sorted((piece for piece in found if piece[1] > piece[0].base), key=lambda piece: piece[0].base)


def skips_of_pieces(pieces: Iterable[tuple[Span, int]]) -> Skips:
    """The calls that any of them skips, also before gaps."""
    return SkipSet(skip for span, upto in pieces for skip in span.skipped if skip.at <= upto).by_batch()


class _SpanFinder:
    """Ends and begins spans, record by record. `groups` have observed the record that is given."""

    def __init__(self, directory: str, partitions: frozenset[int], groups: GroupStates) -> None:
        self._directory, self._partitions, self._groups = directory, partitions, groups
        self._open: dict[int, Span] = {}  # by partition
        self._block = 0
        self._gapped: set[int] = set()  # whose spans are open, with blocks missing after their last records
        self.spans: dict[int, list[Span]] = {partition: [] for partition in partitions}

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the log's next record."""
        self._block, partition = int(lsn.block), record.partition
        if partition not in self._partitions:
            return
        if record.is_entry:
            self._join_entry(lsn, record)
        elif record.kind is _CHECKPOINT:
            state = self._groups.by_partition[partition]
            self._join_head(lsn, partition, Mark(state.last_index, state.last_term, state.last_checksum))
        if (span := self._open.get(partition)) is not None:
            span.observe(lsn, record)
            if partition not in self._gapped:
                span.commit = self._groups.by_partition[partition].commit

    def note_gap(self) -> None:
        """Blocks are left out here."""
        for partition, span in self._open.items():
            if partition not in self._gapped:
                span.last_block = self._block
        self._gapped |= set(self._open)

    def end(self, last_block: int) -> None:
        """The log ends."""
        for partition in sorted(self._open):
            self._close(partition, last_block)

    def _join_entry(self, lsn: Lsn, record: Record) -> None:
        """Another span begins with the entry, unless it continues the open one."""
        partition, span = record.partition, self._open.get(record.partition)
        continues = span is not None and span.base < record.index <= span.last + 1
        if span is not None and partition in self._gapped:
            before = span.mark(record.index - 1)  # in one term no entry is replaced by another
            continues = record.index == span.last + 1 and before is not None and before.term == record.term
        if not continues:
            base = span.base_mark if span is not None and span.base == record.index - 1 else None
            self._begin_span(lsn, partition, record.index - 1, base if record.index > 1 else BEGINNING)
        self._gapped.discard(partition)

    def _join_head(self, lsn: Lsn, partition: int, mark: Mark) -> None:
        """A segment's head states where the stream is."""
        span = self._open.get(partition)
        if span is None or (partition in self._gapped and not span.mark(mark.index) == mark == span.mark(span.last)):
            self._begin_span(lsn, partition, mark.index, mark)
        self._gapped.discard(partition)

    def _begin_span(self, lsn: Lsn, partition: int, base: int, mark: Mark | None) -> None:
        self._close(partition, self._block)
        self._open[partition] = Span(self._directory, base, mark, int(lsn.block), int(lsn.block))

    def _close(self, partition: int, last_block: int) -> None:
        span = self._open.pop(partition, None)
        if span is not None:
            span.last_block = span.last_block if partition in self._gapped else last_block
            self.spans[partition].append(span)


def join(starts: Iterable[Mark], end: Mark | None, spans: Sequence[Span]) -> tuple[Mark, list[SpanStep]]:
    """Start and steps from the first of these marks that reaches `end`; else, or where no end is known, those that reach
    furthest.

    Fewer steps are preferred, and spans earlier in the sequence.
    """
    best: tuple[Mark, list[SpanStep]] | None = None
    for start in starts:
        steps = _walk(start, end, spans)
        if end is not None and (steps[-1].to_mark if steps else start) == end:
            return start, steps
        if best is None or _reach(start, steps) > _reach(*best):
            best = start, steps
    if best is None:
        return BEGINNING, []
    return best


def _reach(start: Mark, steps: Sequence[SpanStep]) -> int:
    return steps[-1].to_mark.index if steps else start.index


def _walk(start: Mark, end: Mark | None, spans: Sequence[Span]) -> list[SpanStep]:
    """Breadth first over the spans: the path to `end`, or the one that reaches furthest."""
    entered: dict[int, int] = {}  # number of a span -> lowest index at which it was entered
    paths: deque[tuple[int, list[SpanStep], Mark]] = deque()
    for number, span in enumerate(spans):
        if span.mark(start.index) == start:
            entered[number] = start.index
            paths.append((number, [], start))
    best: list[SpanStep] = []
    while paths:
        number, steps, at = paths.popleft()
        span = spans[number]
        if end is not None and at.index <= end.index <= span.last and span.mark(end.index) == end:
            return [*steps, SpanStep(span, at, end)] if end.index > at.index else steps
        last = span.mark(span.last)
        if last is not None and last.index > max(at.index, best[-1].to_mark.index if best else 0):
            best = [*steps, SpanStep(span, at, last)]
        for other, beside in enumerate(spans):
            index = _shared(span, beside, at.index)
            if other == number or index is None or index >= entered.get(other, 1 << 62):
                continue
            mark = span.mark(index)
            assert mark is not None
            entered[other] = index
            paths.append((other, [*steps, SpanStep(span, at, mark)] if index > at.index else steps, mark))
    return best


def _shared(one: Span, other: Span, floor: int) -> int | None:
    """The highest index, not below `floor`, at which both hold the same entry; None when there is none."""
    low = max(floor, one.base if one.base_mark else one.base + 1, other.base if other.base_mark else other.base + 1)
    high = min(one.last, other.last)
    if low > high or one.mark(low) != other.mark(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if one.mark(middle) == other.mark(middle) else (low, middle - 1)
    return low


def restricted(source: LogSource, last_block: int) -> LogSource:
    """The log up to this block."""
    return replace(source, last_block=min(last_block, source.last_block))
