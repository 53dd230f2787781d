"""The log as replay sees it: where its segments begin, what their heads state, and records up to an end that stays fixed.

One rule: read-only. `open_source` needs no lock and looks for itself; `source_of` takes a log that the caller has just opened,
which spares a second look at the newest segment. What the restart table refuses is refused here too, except that the good part
before a damaged place can be read when the caller has accepted the loss of the rest.

Segments of the archive that end where the live ones begin can be put before them (`in_front`); from then on it is one log,
and every block of it is checked the same way, chain included. A run of archived segments that does not reach the live ones can be
read alone (`alone`). Where blocks of them are damaged or missing, the others can still be read (`around_gaps`). Which of these a
recovery needs is decided in `replay.log.archive_reach`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, TypeVar

from cmdlog.wal.directory.instance import Instance, load_instance
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.ids import CLUSTER_GROUP, BlockNumber, Lsn
from cmdlog.wal.log import Log
from cmdlog.wal.opening.restart import decide
from cmdlog.wal.opening.survey import SegmentFile, Survey, refusal
from cmdlog.wal.reader import LogReader, Recycled, read_records, survey_settled
from replay.log.salvage import Gap, SalvagedLog, SalvagedSegment
from snapshot.archive_layout import ArchivedSegment, list_segments

LOOKS_MAX: Final = 5  # of a reading that can begin again; each of them reads some of the log
BEHIND_BLOCK: Final = 1 << 40  # an offset after every record of a block

T = TypeVar("T")
Records = Iterator[tuple[Lsn, Record]]


@dataclass(frozen=True, slots=True)
class LogSource:
    """An opened log."""

    directory: str
    instance: Instance
    verdict: str  # row of the restart table
    first_blocks: Sequence[int]  # of the segments, ascending
    last_block: int  # the end of what may be read
    damage: WalError | None  # why that is not the log's own end
    records: Callable[[Lsn | None, Lsn | None], Records]  # (after, upto]
    segments: Sequence[SegmentFile]  # oldest first
    archived: tuple[str, ...] = ()  # names of those that lie in the archive
    provisional: bool = False  # the log continues after `last_block`: a plan must prove that it needs nothing from there
    txn_id_max: int = 0  # a transaction id that the log knows after `last_block`; a recovered node must not give it again
    partitions: tuple[int, ...] = ()  # where heads of segments may be unreadable; else what the newest one says
    patchwork: SalvagedLog | None = None  # blocks may be left out, and it knows which

    def read(self, *, from_block: int, upto_block: int | None = None) -> Records:
        """Records of the blocks in [from_block, upto_block], in order. Raises: Corrupt, Recycled."""
        last = self.last_block if upto_block is None else min(upto_block, self.last_block)
        return self.records(Lsn(BlockNumber(from_block), -1), Lsn(BlockNumber(last), BEHIND_BLOCK))

    def read_with_gaps(self, *, from_block: int) -> Iterator[tuple[Lsn, Record] | None]:
        """Records from the segment that begins there to the log's end, and None where blocks are left out. Raises: as `read`."""
        records, patchwork = self.read(from_block=from_block), self.patchwork
        return records if patchwork is None else _with_gaps(records, patchwork)

    def start_block(self, indexes: Mapping[int, int]) -> int:
        """First block of the newest segment from which every entry after these indexes (partition -> index) can be read.

        The oldest segment's if none is. Found by halves, since streams grow: an archive may have thousands of segments.
        """

        def reaches(first: int) -> bool:
            groups = self.checkpoint(first).by_partition
            return all(p in groups and groups[p].last_index <= index for p, index in indexes.items())

        low, high = 0, len(self.first_blocks)  # the answer is in [low, high)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if reaches(self.first_blocks[middle]) else (low, middle)
        return self.first_blocks[low]

    def checkpoint(self, first_block: int) -> GroupStates:
        """What the head of the segment that begins there states about every group: everything before it, folded."""
        return GroupStates.fold(self.read(from_block=first_block, upto_block=first_block))

    def beginnings(self) -> dict[int, int]:
        """Group -> the index after which its entries begin here. A log that a recovery made states it in its second block."""
        groups = self.checkpoint(self.first_blocks[0])
        if not groups.by_partition:
            records = self.read(from_block=self.first_blocks[0])
            groups = GroupStates.fold(takewhile(lambda found: found[1].kind is RecordKind.CHECKPOINT, records))
        return {p: state.last_index for p, state in groups.by_partition.items()}


def source_of(wal: Log) -> LogSource:
    """The log that the caller has opened and not yet started."""
    return LogSource(
        wal.directory,
        wal.instance,
        wal.recovered.verdict.value,
        wal.first_blocks(),
        int(wal.durable_block),
        None,
        wal.read,
        wal.segments,
    )


def in_front(files: Files, source: LogSource, run: Sequence[ArchivedSegment]) -> LogSource:
    """The log with these archived segments, which end where it begins."""
    segments = [*_readable(run), *source.segments]
    return _replaced(files, source, segments, tuple(archived.name for archived in run), source.last_block)


def alone(files: Files, source: LogSource, run: Sequence[ArchivedSegment]) -> LogSource:
    """These archived segments of the log, which follow each other, without the rest."""
    piece = _replaced(files, source, _readable(run), tuple(archived.name for archived in run), run[-1].last_block)
    return replace(piece, txn_id_max=fold_end(source).txn_id_max)


def around_gaps(
    files: Files, source: LogSource, archived: Sequence[ArchivedSegment], *, to_live: bool, gaps: Iterable[Gap] | None = None
) -> LogSource:
    """These archived segments, and the live ones after them if `to_live`, without what is damaged or missing."""
    pieces = [SalvagedSegment(found.segment, found.last_block) for found in archived if found.segment is not None]
    if to_live:
        ends = [*(block - 1 for block in source.first_blocks[1:]), source.last_block]
        pieces += [SalvagedSegment(segment, end) for segment, end in zip(source.segments, ends, strict=True)]
    patchwork = SalvagedLog(files, pieces, gaps=gaps)
    return replace(
        source,
        first_blocks=[int(piece.segment.header.first_block) for piece in pieces],
        last_block=pieces[-1].last_block,
        records=patchwork.records,
        segments=[piece.segment for piece in pieces],
        archived=tuple(found.name for found in archived if found.segment is not None),
        provisional=not to_live,
        txn_id_max=0 if to_live else fold_end(source).txn_id_max,
        partitions=tuple(partitions_of(source)),
        patchwork=patchwork,
    )


def partitions_of(source: LogSource) -> list[int]:
    """The partitions that the log knows of: those of the newest checkpoint, or of the records after a first, empty one."""
    if source.partitions:
        return list(source.partitions)
    groups = source.checkpoint(source.first_blocks[-1])
    if not groups.by_partition:
        groups = fold_end(source)
    count = groups.cluster.partitions
    return list(range(count)) if count else sorted(p for p in groups.by_partition if p != CLUSTER_GROUP)


def fold_end(source: LogSource) -> GroupStates:
    """Every group as the log ends: the newest segment's head states all before it."""
    return GroupStates.fold(source.read(from_block=source.first_blocks[-1]) if source.first_blocks else ())


def _with_gaps(records: Records, patchwork: SalvagedLog) -> Iterator[tuple[Lsn, Record] | None]:
    met = 0
    for found in records:
        if patchwork.met != met:
            met = patchwork.met
            yield None
        yield found
    if patchwork.met != met:
        yield None


def _readable(run: Sequence[ArchivedSegment]) -> list[SegmentFile]:
    return [archived.segment for archived in run if archived.segment is not None]


def _replaced(
    files: Files, source: LogSource, segments: Sequence[SegmentFile], archived: tuple[str, ...], last_block: int
) -> LogSource:
    return replace(
        source,
        first_blocks=[int(segment.header.first_block) for segment in segments],
        last_block=last_block,
        records=lambda after, upto: read_on(
            files, source.directory, source.instance, segments, last=last_block, after=after, upto=upto
        ),
        segments=segments,
        archived=archived,
    )


def read_on(
    files: Files,
    directory: str,
    instance: Instance,
    segments: Sequence[SegmentFile],
    *,
    last: int,
    after: Lsn | None,
    upto: Lsn | None,
) -> Records:
    """As `read_records`. What a running node lets go meanwhile is read in its archive, where that has it: it is the same.

    Raises: Corrupt; Recycled, where the archive has it not.
    """
    while True:
        try:
            for found in read_records(files, segments, last=last, after=after, upto=upto):
                after = found[0]
                yield found
        # The archive has the segments by other paths, or there is nothing more to read.
        except Recycled:
            there = _archived_instead(files, directory, instance, segments)
            if there == segments:
                raise
            segments = there
        else:
            return


def read_log_on(reader: LogReader) -> Records:
    """The same of the whole of a reader's log. Raises: as `read_on`."""
    given = (reader.files, reader.directory, reader.instance, reader.segments)
    return read_on(*given, last=reader.last_block, after=None, upto=None)


def _archived_instead(files: Files, directory: str, instance: Instance, segments: Sequence[SegmentFile]) -> Sequence[SegmentFile]:
    """The same segments, those that the archive has by their files there."""
    archived = {
        (found.segment.header.first_block, found.segment.header.previous_chain): found.segment
        for found in list_segments(files, directory, instance.identity)
        if found.segment is not None
    }
    return [archived.get((of.header.first_block, of.header.previous_chain), of) for of in segments]


def settled(look: Callable[[], T]) -> T:
    """Reads a running node's log, again and again while the node removes what is being read. Raises: Recycled."""
    for _ in range(LOOKS_MAX - 1):
        with contextlib.suppress(Recycled):
            return look()
    return look()


def open_source(files: Files, directory: str, *, accept_data_loss: bool = False) -> LogSource:
    """Opens a directory's log, also while the node runs.

    Raises: WalError of the restart table; with `accept_data_loss` damage of the newest segment's tail is not raised.
    """
    instance = load_instance(files, directory)
    survey, damage = _survey(files, directory, instance, accept_data_loss=accept_data_loss)
    assert survey.walk is not None
    last_block, segments = int(survey.walk.expected) - 1, survey.segments
    return LogSource(
        directory,
        instance,
        decide(survey.facts).verdict.value,
        [int(segment.header.first_block) for segment in segments],
        last_block,
        damage,
        lambda after, upto: read_on(files, directory, instance, segments, last=last_block, after=after, upto=upto),
        segments,
    )


def _survey(files: Files, directory: str, instance: Instance, *, accept_data_loss: bool) -> tuple[Survey, WalError | None]:
    survey = survey_settled(files, directory, instance)
    error = refusal(survey)
    if error is not None and not (accept_data_loss and isinstance(error, Corrupt) and survey.walk is not None):
        raise error
    return survey, error
