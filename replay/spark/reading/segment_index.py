"""One segment, scanned before a read is planned: what is where, which entries are void, which calls were skipped.

One rule: every block is checked here, so that nothing is planned on bytes that are damaged; a row is not decoded. Void entries
and SKIPs cannot be known on the way through a log (`replay.log.log_fold`), and tasks that read parts of it at the same time
cannot inform each other.

This is a pass of its own, segment by segment: it notes where every batch is, so that tasks can begin in the middle of a file.

A scan ends at damage. After it the next good block of the same life begins another one (`replay.log.salvage`), which knows
nothing about what was lost: its first entry states where a partition is.

A sealed segment never changes, so what was found in it is kept for the next scan.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.batch import batch_span, decode_batch
from cmdlog.wal.format.control_record import CatalogVersion
from cmdlog.wal.format.record import BadRecord, Record, RecordKind
from cmdlog.wal.group_state import GroupState
from cmdlog.wal.ids import PARTITION_BITS, Lsn
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import ReadBlock, Recycled, Spot, read_segment
from cmdlog.wal.skips import SkipSet
from replay.log.log_fold import StreamFold
from replay.log.salvage import SalvagedSegment, good_blocks
from replay.spark.base.options import TXN_MAX
from replay.spark.reading.read_task import Names

_BATCH: Final = RecordKind.BATCH
_CATALOG: Final = RecordKind.CATALOG
_COMMIT_MARK: Final = RecordKind.COMMIT_MARK
_CHECKPOINT: Final = RecordKind.CHECKPOINT
SPOT_BYTES: Final = 1 << 20  # a task may begin at each of these
TICK: Final = 1 << PARTITION_BITS  # between two calls of a batch that follow each other
KEPT_MAX: Final = 256  # looks; one takes 64 bytes per batch, some hundred kilobytes for a segment of 64 MB in blocks of 32 KB


def _numbers() -> array[int]:
    """Eight bytes each: a list takes forty."""
    return array("q")


@dataclass(slots=True, kw_only=True)
class IndexedEntries(StreamFold):
    """The batches of one partition, in the order of the log; and what else its records state."""

    base: int = 0  # where the look begins: the last entry before it …
    base_txn: int = 0  # … and the highest TxnId, or one that is higher and comes before all that follow
    based: bool = False  # a head, or an entry, has stated it
    base_term: int = 0  # of that entry, with its checksum, where a head states them
    base_checksum: int = 0
    commit: int = 0  # entries up to here are known committed
    blocks: array[int] = field(default_factory=_numbers)
    offsets: array[int] = field(default_factory=_numbers)  # of the record in the block's body
    indexes: array[int] = field(default_factory=_numbers)
    terms: array[int] = field(default_factory=_numbers)
    checksums: array[int] = field(default_factory=_numbers)
    firsts: array[int] = field(default_factory=_numbers)  # TxnId of the first call
    lasts: array[int] = field(default_factory=_numbers)
    counts: array[int] = field(default_factory=_numbers)  # of calls
    names: Names = field(default_factory=dict)  # of the code that its records state: those of the cluster group

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the stream's next record. Raises: BadRecord, KeyError, TypeError, ValueError of one that is malformed."""
        self.fold(lsn, record)
        kind = record.kind
        if not self.based and record.is_entry:
            self.based, self.base, self.base_txn = True, record.index - 1, TXN_MAX if record.index > 1 else 0
        if kind is _BATCH:
            self._note_batch(lsn, record)
        elif kind is _CATALOG:
            self._note_names(CatalogVersion.from_record(record))
        elif kind is _COMMIT_MARK:
            self.commit = max(self.commit, record.index)
        elif kind is _CHECKPOINT:
            self._note_head(GroupState.from_checkpoint(record))

    def _note_head(self, state: GroupState) -> None:
        self.based, self.base = True, max(self.last_index, state.last_index)
        self.last_index = self.base
        self.base_term, self.base_checksum = state.last_term, state.last_checksum
        self.base_txn, self.commit = state.last_txn, max(self.commit, state.commit)
        for catalog in state.catalogs.values():
            self._note_names(CatalogVersion.from_json(catalog.value))

    def _note_batch(self, lsn: Lsn, record: Record) -> None:
        first, last, count = batch_span(record)
        if self.base_txn == TXN_MAX:
            self.base_txn = first - 1
        self.blocks.append(lsn.block)
        self.offsets.append(lsn.offset)
        self.indexes.append(record.index)
        self.terms.append(record.term)
        self.checksums.append(record.checksum)
        self.firsts.append(first)
        self.lasts.append(last)
        self.counts.append(count)

    def _note_names(self, catalog: CatalogVersion) -> None:
        found = []
        for procedure in catalog.value.get("procedures", ()):
            parameters = procedure.get("parameters")
            found.append((str(procedure["name"]), tuple(map(str, parameters)) if parameters is not None else None))
        self.names = {**self.names, catalog.version: tuple(found)}


@dataclass(frozen=True, slots=True)
class SegmentLook:
    """What one segment holds, or a stretch of a damaged one."""

    segment: SegmentFile
    last_block: int
    bytes: int  # of blocks
    spots: tuple[Spot, ...]  # where reading can begin, ascending, the head first
    by_partition: Mapping[int, IndexedEntries]
    names: Names
    damage: Corrupt | None = None  # why it ends before the segment does
    chain: int = 0  # what the block after it must carry

    @property
    def first_block(self) -> int:
        return self.spots[0].number


_kept: OrderedDict[tuple[str, int, int], SegmentLook] = OrderedDict()


def look_at(files: Files, segment: SegmentFile, last_block: int, *, anew: bool = False) -> SegmentLook:
    """Reads the segment's blocks up to that one; damage ends the scan, and is reported.

    A block that goes bad after a scan is met by the task that reads it. A caller that must know before scans `anew`.

    Raises: Recycled.
    """
    key = (segment.path, segment.header.generation, last_block)
    if (kept := _kept.get(key)) is not None and not anew:
        _kept.move_to_end(key)
        return kept
    found = _read_segment(files, segment, last_block)
    if found.damage is None:
        _kept[key] = found
        while len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)
    return found


def looks_at(
    files: Files, segment: SegmentFile, last_block: int, *, anew: bool = False
) -> tuple[list[SegmentLook], list[Corrupt]]:
    """The same, and after damage a scan of each stretch of good blocks; and the damages. Raises: Recycled."""
    found = [look_at(files, segment, last_block, anew=anew)]
    if found[0].damage is not None:
        places = good_blocks(files, SalvagedSegment(segment, last_block))
        reached = found[0].last_block
        while found[-1].damage is not None:
            place = next(((offset, header) for offset, header in places if header.number > reached), None)
            if place is None:
                break
            number = int(place[1].number)
            found.append(_read_segment(files, segment, last_block, Spot(number, place[0], place[1].chain)))
            reached = max(number, found[-1].last_block)
    damages = {(look.damage.offset, look.damage.block): look.damage for look in found if look.damage is not None}
    return [look for look in found if look.spots], list(damages.values())


def txn_ids(files: Files, look: SegmentLook, partition: int, number: int) -> Sequence[int]:
    """The TxnIds of a partition's batch of the segment, by its number there. Reads only if they do not follow each other.

    Raises: Corrupt, Recycled.
    """
    of = look.by_partition[partition]
    first, last, count = of.firsts[number], of.lasts[number], of.counts[number]
    if last - first == (count - 1) * TICK:
        return range(first, last + 1, TICK)
    block_number, offset = of.blocks[number], of.offsets[number]
    spot = max((spot for spot in look.spots if spot.number <= block_number), key=lambda spot: spot.number)
    for block in read_segment(files, look.segment, upto=block_number, start=spot):
        for lsn, record in block.records() if block.header.number == block_number else ():
            if lsn.offset == offset:
                return decode_batch(record).txn_ids
    raise Recycled(f"block {block_number} of segment {look.segment.sequence} has changed")


def _read_segment(files: Files, segment: SegmentFile, last_block: int, start: Spot | None = None) -> SegmentLook:
    entries: dict[int, IndexedEntries] = {}
    spots: list[Spot] = []
    first = start.number if start is not None else int(segment.header.first_block)
    size, seen, chain, damage = 0, first - 1, start.chain if start is not None else segment.header.previous_chain, None
    at = seen
    try:
        for block in read_segment(files, segment, upto=last_block, start=start):
            if not spots or block.offset - spots[-1].offset >= SPOT_BYTES:
                spots.append(Spot(int(block.header.number), block.offset, chain))
            at = int(block.header.number)
            _take_block(block, entries)
            seen, chain, size = int(block.header.number), block.header.checksum, size + block.header.total_bytes
    except Corrupt as found:
        damage = found
        if at > seen:  # some of the block's records were taken
            return replace(_read_segment(files, segment, seen, start), damage=found)
    names = {version: named for of in entries.values() for version, named in of.names.items()}
    return SegmentLook(segment, seen, size, tuple(spots), entries, names, damage, chain)


def _take_block(block: ReadBlock, entries: dict[int, IndexedEntries]) -> None:
    """Raises: Corrupt."""
    for lsn, record in block.records():
        of = entries.get(record.partition)
        if of is None:
            of = entries[record.partition] = IndexedEntries()
        try:
            of.observe(lsn, record)
        except (BadRecord, KeyError, TypeError, ValueError) as bad:
            what = f"record of {record.kind.name} with valid checksums ({bad})"
            raise Corrupt(what, path=block.path, offset=block.offset, block=block.header.number) from bad


def skips_of_stretches(found: Iterable[IndexedEntries]) -> SkipSet:
    """The skips that are in force, of stretches of one log in its order: what one makes void is also void in those before it."""
    live = SkipSet()
    for of in found:
        for _, _, index in of.voids:
            live.cut(index)
        live.add(*of.skipped)
    return live
