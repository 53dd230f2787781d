"""The logs that a read is given: what each holds, which one counts for a partition, and from where.

One rule: `replay.plan.authority` decides which log counts, and only entries that are known to be committed are read (in a
cluster of one, all). What the chosen log does not reach back to, or what is unreadable in it, comes from another log at hand, as
far as that one itself knows its entries to be committed: then both hold the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from cmdlog.operator_error import full_text
from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.ids import PARTITIONS_MAX
from cmdlog.wal.opening.survey import SegmentFile
from replay.log.archive_reach import archived_of, describe_stray, first_block_of, why_stray
from replay.log.collect_evidence import gather
from replay.log.evidence import NodeEvidence
from replay.log.source import LogSource, open_source
from replay.log.spans import salvage
from replay.plan.authority import ClusterVerdict, GroupVerdict, decide
from replay.plan.sole_voter import votes_alone
from replay.spark.base.filesystems import check_node, open_place
from replay.spark.base.options import BadOption
from replay.spark.reading.read_task import DataLoss
from replay.spark.reading.segment_index import IndexedEntries, SegmentLook, look_at, looks_at
from snapshot.archive_layout import ArchivedSegment

Floor = Mapping[int, int | None]  # partition -> the lowest TxnId that is wanted; None: from the beginning


@dataclass(frozen=True, slots=True)
class SegmentRun:
    """Segments of one log that follow each other, all read well; or a stretch of a damaged one, and those after it."""

    looks: Sequence[SegmentLook]
    whole: bool  # it reaches the log's end

    def base(self, partition: int) -> tuple[int, int]:
        """The last entry before it, and the highest TxnId."""
        _, first = self._first(partition)
        return (first.base, first.base_txn) if first is not None else (0, 0)

    def seam(self, partition: int) -> IndexedEntries:
        """What a run states about those before it: entries that it holds again, or does not know, are void there."""
        look, first = self._first(partition)
        return IndexedEntries(voids=[(look.first_block, -1, first.base + 1)] if first is not None else [])

    def _first(self, partition: int) -> tuple[SegmentLook, IndexedEntries | None]:
        """After a damaged place some blocks may pass before a record states where the partition is."""
        for look in self.looks:
            if (of := look.by_partition.get(partition)) is not None and of.based:
                return look, of
        return self.looks[0], None

    def end(self, partition: int, *, votes_alone: bool) -> int:
        """The last entry of it that counts. What follows a damaged place may have made void what no mark shows as committed,
        unless there is no other voter, so that none could."""
        found = [of for look in self.looks if (of := look.by_partition.get(partition)) is not None and of.based]
        if not found:
            return 0
        return found[-1].last_index if self.whole or votes_alone else min(found[-1].last_index, max(of.commit for of in found))


@dataclass(slots=True)
class NodeLog:
    """One directory."""

    path: str  # as it was given
    files: Files
    directory: str
    evidence: NodeEvidence
    segments: Sequence[tuple[SegmentFile, int]] = ()  # archived and live, with the last block of each
    identity: Identity | None = None
    problem: str = ""  # why nothing of it is read
    strays: Sequence[ArchivedSegment] = ()  # before what is read, and nothing shows that it belongs there
    runs: Sequence[SegmentRun] = ()
    damages: list[Corrupt] = field(default_factory=list)
    _is_read: bool = False

    @property
    def alone(self) -> bool:
        """Whether all that is durable in it is committed."""
        return votes_alone(self.evidence)

    @property
    def looks(self) -> list[SegmentLook]:
        return [look for run in self.runs for look in run.looks]

    def entries(self, partition: int) -> list[IndexedEntries]:
        """The partition's, in the order of the log."""
        found: list[IndexedEntries] = []
        for number, run in enumerate(self.runs):
            found += [run.seam(partition)] if number else []
            found += [look.by_partition[partition] for look in run.looks if partition in look.by_partition]
        return found

    def open(self, *, fail: bool) -> None:
        """Finds its segments. Raises: WalError when the log is refused, unless `fail` is False."""
        if self.evidence.refused is not None:
            if fail:
                raise DataLoss(f"{self.path} cannot be read: {self.evidence.refused.what}")
            self.problem = self.evidence.refused.what
            return
        try:
            source = open_source(self.files, self.directory) if fail else self._salvaged()
        except WalError as error:
            if fail:
                raise
            self.problem = full_text(error)
            return
        self.identity = source.instance.identity
        archived, self.strays = archived_of(self.files, source)
        if not fail:  # as far as it can be read; the gaps are reported
            self.damages += [Corrupt(why_stray(one), path=one.path) for one in self.strays]
            archived = [*_apart(self.strays, first_block_of(archived, source)), *archived] if self.strays else archived
        self.segments = [(one.segment, one.last_block) for one in archived if one.segment is not None] + _live(source)

    def _salvaged(self) -> LogSource:
        """The log as it is, or around its damage when a restart would refuse it."""
        try:
            return open_source(self.files, self.directory)
        except WalError:
            return salvage(self.files, self.directory)

    def read(self, floor: Floor, *, fail: bool) -> None:
        """Looks once through the segments that may hold something from the floor on. Raises: Corrupt, Recycled."""
        if self._is_read:
            return
        self._is_read = True
        looks: list[SegmentLook] = []
        for segment, last_block in self.segments[self._first_of(floor) :]:
            found, damages = looks_at(self.files, segment, last_block, anew=not fail)
            for damage in damages:
                if fail:
                    raise damage
                self.damages.append(damage)
            looks += found
        if (broken := _broken(looks)) is not None:
            if fail:
                raise broken
            self.damages.append(broken)
        self.runs = _runs(looks)

    def first_base(self, partition: int) -> int:
        """The last entry before the whole log, by its first head."""
        if not self.segments:
            return 1 << 63
        segment, _ = self.segments[0]
        head = look_at(self.files, segment, int(segment.header.first_block))
        of = head.by_partition.get(partition)
        return of.base if of is not None else 0

    def heads(self) -> Iterator[SegmentLook]:
        """The first block of each segment, also of those before what was read."""
        for segment, _ in self.segments:
            yield look_at(self.files, segment, int(segment.header.first_block))

    def _first_of(self, floor: Floor) -> int:
        """Number of the last segment before which nothing is wanted; found by bisection, since TxnIds ascend."""
        if not floor or any(wanted is None for wanted in floor.values()):
            return 0

        def too_late(number: int) -> bool:
            segment, _ = self.segments[number]
            head = look_at(self.files, segment, int(segment.header.first_block))
            if head.damage is not None:
                return True
            bases = {partition: head.by_partition.get(partition, IndexedEntries()).base_txn for partition in floor}
            return any(wanted is not None and wanted <= bases[partition] for partition, wanted in floor.items())

        low, high = 0, len(self.segments)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if too_late(middle) else (middle, high)
        return low


@dataclass(frozen=True, slots=True)
class LogRange:
    """Entries (after, upto] of a partition, from one log."""

    log: NodeLog
    after: int
    upto: int
    base_txn: int  # the highest TxnId before the log's first entry, when `after` is that; else 0


@dataclass(frozen=True, slots=True)
class Gap:
    """Entries [first, last] of a partition that are in no log at hand."""

    partition: int
    first: int
    last: int


@dataclass(slots=True)
class Logs:
    """All directories of one read."""

    logs: Sequence[NodeLog]
    verdict: ClusterVerdict

    @property
    def partitions(self) -> list[int]:
        return [group for group in self.verdict.groups if group < PARTITIONS_MAX]

    def by_directory(self, directory: str) -> NodeLog:
        return next(log for log in self.logs if log.directory == directory)

    def upto(self, of: GroupVerdict) -> int:
        """The last entry that counts."""
        return of.last_index if self.by_directory(of.chosen).alone else of.commit

    def describe_strays(self) -> str:
        """The nearest archived segment before what is read, and why it does not count; else ""."""
        for log in self.logs:
            for stray in reversed(log.strays):
                return describe_stray(stray)
        return ""

    def pieces(self, partition: int, floor: Floor, *, fail: bool) -> tuple[list[LogRange], list[Gap]]:
        """Where the partition's committed entries are read, the last first; and what is missing."""
        of = self.verdict.groups[partition]
        order = [of.chosen, *(directory for directory in of.copies if directory != of.chosen)]
        found: list[LogRange] = []
        gaps: list[Gap] = []
        need = self.upto(of)
        wanted = floor.get(partition)
        for number, directory in enumerate(order):
            log = self.by_directory(directory)
            reached = not need or (wanted is not None and bool(found) and wanted > found[-1].base_txn)
            if number and not gaps and (reached or log.first_base(partition) >= need):
                continue
            log.read(floor, fail=fail)
            stated = log.evidence.groups.get(partition)
            upto = self.upto(of) if not number else stated.commit if stated is not None else 0
            need, gaps = _cover(self._spans(partition, log, upto), found, gaps, need, partition)
        return found, gaps

    def _spans(self, partition: int, log: NodeLog, upto: int) -> list[LogRange]:
        return [
            LogRange(log, base, end, base_txn)
            for run in reversed(log.runs)
            for base, base_txn in (run.base(partition),)
            if (end := min(run.end(partition, votes_alone=log.alone), upto)) > base
        ]


def _cover(
    spans: Iterable[LogRange], found: list[LogRange], gaps: Sequence[Gap], need: int, partition: int
) -> tuple[int, list[Gap]]:
    """Takes what is not found yet; returns up to which entry the beginning is still missing, and the later holes."""
    holes = [(0, need), *((gap.first - 1, gap.last) for gap in gaps)]
    for span in spans:
        left: list[tuple[int, int]] = []
        for low, high in holes:
            after, upto = max(low, span.after), min(high, span.upto)
            if after >= upto:
                left.append((low, high))
                continue
            found.append(LogRange(span.log, after, upto, span.base_txn if after == span.after else 0))
            left += [hole for hole in ((low, after), (upto, high)) if hole[0] < hole[1]]
        holes = left
    found.sort(key=lambda piece: -piece.after)
    begin = next((high for low, high in holes if low == 0), 0)
    return begin, sorted((Gap(partition, low + 1, high) for low, high in holes if low), key=lambda gap: gap.first)


def open_logs(paths: Sequence[str], *, fail: bool) -> Logs:
    """Opens the directories and decides. Raises: what `decide` refuses, and `open_each`."""
    logs = open_each(paths, fail=fail)
    return Logs(logs, decide([log.evidence for log in logs], accept_data_loss=not fail))


def open_each(paths: Sequence[str], *, fail: bool) -> list[NodeLog]:
    """Opens the directories, each by itself.

    Raises: WalError or DataLoss for a directory that cannot be read, unless `fail` is False; BadOption.
    """
    logs = []
    for path in paths:
        files, directory = open_place(path)
        check_node(path, files, directory)
        logs.append(NodeLog(path, files, directory, gather(files, directory)))
    if len({log.directory for log in logs}) != len(logs):
        raise BadOption("a node directory is given twice")
    for log in logs:
        log.open(fail=fail)
    return logs


def _live(source: LogSource) -> list[tuple[SegmentFile, int]]:
    """With the last block of each."""
    if source.patchwork is not None:
        return [(piece.segment, piece.last_block) for piece in source.patchwork.pieces]
    ends = [int(after.header.first_block) - 1 for _, after in pairwise(source.segments)] + [source.last_block]
    return list(zip(source.segments, ends, strict=True)) if source.segments else []


def _apart(strays: Sequence[ArchivedSegment], first: int) -> list[ArchivedSegment]:
    """The readable ones, none of which begins before another one ends."""
    found: list[ArchivedSegment] = []
    for one in reversed(strays):
        if one.segment is not None and one.last_block < first:
            found.insert(0, one)
            first = one.first_block
    return found


def _broken(looks: Sequence[SegmentLook]) -> Corrupt | None:
    """A segment whose head continues another block than the one before it."""
    for last, look in pairwise(looks):
        if last.last_block + 1 == look.first_block == look.segment.header.first_block and not _continues(last, look):
            return Corrupt("segment does not continue its predecessor", path=look.segment.path, block=last.last_block)
    return None


def _continues(last: SegmentLook, look: SegmentLook) -> bool:
    header = look.segment.header
    return (last.segment.header.generation, last.chain) == (header.previous_generation, header.previous_chain)


def _runs(looks: Sequence[SegmentLook]) -> list[SegmentRun]:
    """The looks, split where something is missing between them."""
    groups: list[list[SegmentLook]] = []
    for look in looks:
        last = groups[-1][-1] if groups else None
        goes_on = (
            last is not None
            and last.damage is None
            and last.last_block + 1 == look.first_block == look.segment.header.first_block
            and _continues(last, look)
        )
        if goes_on:
            groups[-1].append(look)
        else:
            groups.append([look])
    return [SegmentRun(group, group is groups[-1] and group[-1].damage is None) for group in groups]


def wanted_partitions(logs: Logs, asked: Collection[int] | None) -> list[int]:
    """Raises: BadOption for one that the cluster does not have."""
    known = logs.partitions
    if asked is not None and (unknown := sorted(set(asked) - set(known))):
        raise BadOption(f"partitions: there is no {unknown[0]}; the log has {', '.join(map(str, known))}")
    return [partition for partition in known if asked is None or partition in asked]
