"""One segment, scanned before a read is planned: what is where, which entries are void, which calls were skipped.

One rule: every block is checked here, so that nothing is planned on bytes that are damaged; a row is not decoded. Void entries
and SKIPs cannot be known while a log is read (`replay.log.voids_and_skips`), and tasks that read parts of it at the same time
cannot inform each other.

A scan ends at damage. After it the next good block of the same life begins another one (`replay.log.salvage`), which knows
nothing about what was lost: its first entry says where a partition is.

A sealed segment never changes, so what was found in it is kept for the next scan.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import orjson

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.batch import batch_span, decode_batch
from cmdlog.wal.format.record import BadRecord, Record, RecordKind
from cmdlog.wal.ids import CLUSTER_GROUP, PARTITION_BITS, Lsn
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import ReadBlock, Recycled, Spot, read_segment
from replay.log.salvage import SalvagedSegment, good_blocks
from replay.log.voids_and_skips import Place
from replay.spark.base.options import TXN_MAX
from replay.spark.reading.read_task import Names

SPOT_BYTES: Final = 1 << 20  # a task may begin at each of these
TICK: Final = 1 << PARTITION_BITS  # between two calls of a batch that follow each other
KEPT_MAX: Final = 256  # looks; one takes 64 bytes per batch, some hundred kilobytes for a segment of 64 MB in blocks of 32 KB


def _numbers() -> array[int]:
    """Eight bytes each: a list takes forty."""
    return array("q")


@dataclass(slots=True)
class IndexedEntries:
    """The batches of one partition, in the order of the log; and what else its records say."""

    base: int = 0  # where the look begins: the last entry before it …
    base_txn: int = 0  # … and the highest TxnId, or one that is higher and below all that follow
    based: bool = False  # a head, or an entry, has said so
    base_term: int = 0  # of that entry, with its checksum, where a head states them
    base_checksum: int = 0
    last: int = 0  # the last entry after it
    commit: int = 0  # entries up to here are known committed
    blocks: array[int] = field(default_factory=_numbers)
    offsets: array[int] = field(default_factory=_numbers)  # of the record in the block's body
    indexes: array[int] = field(default_factory=_numbers)
    terms: array[int] = field(default_factory=_numbers)
    checksums: array[int] = field(default_factory=_numbers)
    firsts: array[int] = field(default_factory=_numbers)  # TxnId of the first call
    lasts: array[int] = field(default_factory=_numbers)
    counts: array[int] = field(default_factory=_numbers)  # of calls
    voids: list[Place] = field(default_factory=list)
    skips: list[tuple[int, int, int]] = field(default_factory=list)  # (index of the SKIP, index of the batch, position)


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
    found = _look(files, segment, last_block)
    if found.damage is None:
        _kept[key] = found
        while len(_kept) > KEPT_MAX:
            _kept.popitem(last=False)
    return found


@dataclass(frozen=True, slots=True)
class Stretches:
    """What can be read of one segment."""

    looks: Sequence[SegmentLook]
    damages: Sequence[Corrupt]


def looks_at(files: Files, segment: SegmentFile, last_block: int, *, anew: bool = False) -> Stretches:
    """The same, and after damage a scan of each stretch of good blocks. Raises: Recycled."""
    found = [look_at(files, segment, last_block, anew=anew)]
    if found[0].damage is not None:
        places = good_blocks(files, SalvagedSegment(segment, last_block))
        reached = found[0].last_block
        while found[-1].damage is not None:
            place = next(((offset, header) for offset, header in places if header.number > reached), None)
            if place is None:
                break
            number = int(place[1].number)
            found.append(_look(files, segment, last_block, Spot(number, place[0], place[1].chain)))
            reached = max(number, found[-1].last_block)
    damages = {(look.damage.offset, look.damage.block): look.damage for look in found if look.damage is not None}
    return Stretches([look for look in found if look.spots], list(damages.values()))


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


def _look(files: Files, segment: SegmentFile, last_block: int, start: Spot | None = None) -> SegmentLook:
    entries: dict[int, IndexedEntries] = {}
    names: dict[int, tuple[tuple[str, tuple[str, ...] | None], ...]] = {}
    spots: list[Spot] = []
    first = start.number if start is not None else int(segment.header.first_block)
    size, seen, chain, damage = 0, first - 1, start.chain if start is not None else segment.header.previous_chain, None
    at = seen
    try:
        for block in read_segment(files, segment, upto=last_block, start=start):
            if not spots or block.offset - spots[-1].offset >= SPOT_BYTES:
                spots.append(Spot(int(block.header.number), block.offset, chain))
            at = int(block.header.number)
            _take_block(block, entries, names)
            seen, chain, size = int(block.header.number), block.header.checksum, size + block.header.total_bytes
    except Corrupt as found:
        damage = found
        if at > seen:  # some of the block's records were taken
            return replace(_look(files, segment, seen, start), damage=found)
    return SegmentLook(segment, seen, size, tuple(spots), entries, names, damage, chain)


def _take_block(block: ReadBlock, entries: dict[int, IndexedEntries], names: dict[int, Any]) -> None:
    """Raises: Corrupt."""
    for lsn, record in block.records():
        of = entries.get(record.partition)
        if of is None:
            of = entries[record.partition] = IndexedEntries()
        try:
            _take(of, lsn, record, names)
        except (BadRecord, KeyError, TypeError, ValueError) as bad:
            what = f"record of {record.kind.name} with valid checksums ({bad})"
            raise Corrupt(what, path=block.path, offset=block.offset, block=block.header.number) from bad


def _take(of: IndexedEntries, lsn: Lsn, record: Record, names: dict[int, Any]) -> None:
    kind = record.kind
    if kind < 16:
        if not of.based:
            of.based, of.base, of.base_txn = True, record.index - 1, TXN_MAX if record.index > 1 else 0
        if record.index <= of.last:
            _void(of, lsn, record.index)
        of.last = record.index
        if kind is RecordKind.BATCH:
            _take_batch(of, lsn, record)
        elif kind is RecordKind.SKIP:
            value = record.json()
            of.skips.append((record.index, int(value["index"]), int(value["position"])))
        elif kind is RecordKind.CATALOG:
            _note_names(names, record.json())
    elif kind is RecordKind.COMMIT_MARK:
        of.commit = max(of.commit, record.index)
    elif kind is RecordKind.TRUNCATION:
        _void(of, lsn, record.index)
        of.last = record.index - 1
    elif kind is RecordKind.CHECKPOINT:
        value = record.json()
        of.based, of.base = True, max(of.last, int(value["last_index"]))
        of.last = of.base
        of.base_term, of.base_checksum = int(value["last_term"]), int(value["last_checksum"])
        of.base_txn, of.commit = int(value["last_txn"]), max(of.commit, int(value["commit"]))
        if record.partition == CLUSTER_GROUP:
            for parts in value["catalogs"]:
                _note_names(names, parts[3])


def _take_batch(of: IndexedEntries, lsn: Lsn, record: Record) -> None:
    first, last, count = batch_span(record)
    if of.base_txn == TXN_MAX:
        of.base_txn = first - 1
    of.blocks.append(lsn.block)
    of.offsets.append(lsn.offset)
    of.indexes.append(record.index)
    of.terms.append(record.term)
    of.checksums.append(record.checksum)
    of.firsts.append(first)
    of.lasts.append(last)
    of.counts.append(count)


def _void(of: IndexedEntries, lsn: Lsn, index: int) -> None:
    of.voids.append((int(lsn.block), lsn.offset, index))
    of.skips = [skip for skip in of.skips if skip[0] < index]


def _note_names(names: dict[int, Any], value: Mapping[str, Any]) -> None:
    stated = value.get("procedures")
    if stated is None:  # the record of an early version: the bundle says it
        stated = orjson.loads(value["bundle"])["procedures"]
    found = []
    for procedure in stated:
        parameters = procedure.get("parameters")
        found.append((str(procedure["name"]), tuple(map(str, parameters)) if parameters is not None else None))
    names[int(value["version"])] = tuple(found)
