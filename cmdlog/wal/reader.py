"""Reads records back from the segments, every byte checked.

One rule: a reader never writes, takes no lock and needs none. It holds files open, so a segment that is renamed away under it
stays readable until it is overwritten, and then its generation says so: `Recycled`. A caller that must not meet that holds an
anchor.

Segments before the newest were durable when their successor got its name. So whatever is bad in them is damage: `Corrupt`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.directory.instance import Instance, load_instance
from cmdlog.wal.errors import MOVED_ON_HINT, Corrupt, WalError
from cmdlog.wal.files import File, Files
from cmdlog.wal.format.block import HEADER, SECTOR_BYTES, BadBlock, BlockHeader, check_body, decode_header
from cmdlog.wal.format.record import BadRecord, Record, decode_body
from cmdlog.wal.format.segment import BadSegment, SegmentHeader, decode_segment_header
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.opening.restart import decide
from cmdlog.wal.opening.scan import SegmentWalk, locate_damage, misfit
from cmdlog.wal.opening.survey import SegmentFile, Survey, refusal, survey_log

_CHUNK_BYTES: Final = 256 << 10  # stays in a processor's cache until its records are cut out
_SURVEYS_MAX: Final = 10  # looks at the directory of a running node, which may recycle between two file names


class Recycled(WalError):
    """The segment was overwritten, or let go, while it was read."""

    hint = MOVED_ON_HINT


@dataclass(frozen=True, slots=True)
class ReadBlock:
    """A checked block; `data` is its bytes on disk, `body` the part with records."""

    header: BlockHeader
    path: str
    offset: int
    body: bytes

    def records(self) -> Iterator[tuple[Lsn, Record]]:
        """Raises: Corrupt."""
        count = 0
        try:
            for offset, record in decode_body(self.body):
                yield Lsn(self.header.number, offset), record
                count += 1
        except BadRecord as bad:
            what = f"block with good checksums but a bad record ({bad})"
            raise Corrupt(what, path=self.path, offset=self.offset, block=self.header.number) from bad
        if count != self.header.record_count:
            what = f"block with {count} records says {self.header.record_count}"
            raise Corrupt(what, path=self.path, offset=self.offset, block=self.header.number)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a block of a segment begins, as an earlier reading found it."""

    number: int
    offset: int
    chain: int  # checksum of the header of the block before


def read_segment(files: Files, segment: SegmentFile, *, upto: int, start: Spot | None = None) -> Iterator[ReadBlock]:
    """The segment's blocks with number <= `upto`, all of which are known to be there; from its head, or from `start` on.

    Raises: Corrupt, Recycled.
    """
    header = segment.header
    start = start or Spot(int(header.first_block), SECTOR_BYTES, header.previous_chain)
    file = _open(files, segment)
    try:
        yield from _blocks(file, segment, start, upto)
    finally:
        file.close()


def _open(files: Files, segment: SegmentFile) -> File:
    """Raises: Recycled when the name is gone: a running node has let the segment go since it was listed."""
    try:
        return files.open(segment.path, read_only=True)
    except FileNotFoundError as error:
        raise Recycled(f"segment {segment.sequence} ({segment.path}) was released before it was read") from error


def _blocks(file: File, segment: SegmentFile, start: Spot, upto: int) -> Iterator[ReadBlock]:
    header = segment.header
    number, chain, offset = start.number, start.chain, start.offset
    data, base = b"", offset  # data holds the file from offset `base` on
    while number <= upto and offset < header.segment_bytes:
        if len(data) < offset - base + SECTOR_BYTES:
            data, base = file.pread(_CHUNK_BYTES, offset), offset
        try:
            block = decode_header(data[offset - base : offset - base + HEADER.bytes])
            if block.generation != header.generation:
                raise BadBlock("generation")
            if len(data) < offset - base + block.total_bytes:
                data, base = file.pread(max(_CHUNK_BYTES, min(block.total_bytes, header.segment_bytes)), offset), offset
            body = check_body(block, data, offset - base)
        except BadBlock as bad:
            raise _bad(file, segment, number, offset, bad.reason) from bad
        if reason := misfit(block, expected=number, chain=chain, first=header.first_block):
            raise _bad(file, segment, number, offset, reason)
        yield ReadBlock(block, segment.path, offset, body)
        number, chain, offset = number + 1, block.checksum, offset + block.total_bytes


def _bad(file: File, segment: SegmentFile, number: int, offset: int, reason: str) -> WalError:
    """Damage, or a segment that got another life under the reader."""
    try:
        now = decode_segment_header(file.pread(SECTOR_BYTES, 0))
    except BadSegment:
        now = None
    if now is not None and now.generation != segment.header.generation:
        return Recycled(f"segment {segment.sequence} ({segment.path}) was recycled while it was read at block {number}")
    suspect = locate_damage(file.pread(segment.header.segment_bytes, 0), offset, segment.header)
    return Corrupt(
        f"block that was durable cannot be read ({reason})",
        path=segment.path,
        offset=offset,
        block=number,
        partition=suspect.partition,
        index=suspect.index,
        txn_id=suspect.txn_id,
    )


def read_records(
    files: Files, segments: Sequence[SegmentFile], *, last: int, after: Lsn | None, upto: Lsn | None
) -> Iterator[tuple[Lsn, Record]]:
    """Records in (after, upto] of these consecutive segments; `last` is the newest block that counts.

    Raises: Corrupt, Recycled; WalError when `after` lies before the first segment.
    """
    if not segments:
        return
    first = segments[0].header.first_block
    if after is not None and after.block + 1 < first:
        raise WalError(f"block {after.block} is no longer in the log, which starts at block {first}")
    start = Lsn(BlockNumber(0), -1) if after is None else after
    end = min(last, upto.block) if upto is not None else last
    bounds = [segment.header.first_block - 1 for segment in segments[1:]] + [end]
    chain: tuple[int, int] | None = None  # number and checksum of the segment's last block
    for segment, last_here in zip(segments, bounds, strict=True):
        if segment.header.first_block > end:
            return
        if chain is not None and chain != (segment.header.first_block - 1, segment.header.previous_chain):
            raise Corrupt("segment does not continue its predecessor", path=segment.path, block=chain[0])
        chain = None
        if last_here < start.block:
            continue
        for block in read_segment(files, segment, upto=min(last_here, end)):
            chain = (block.header.number, block.header.checksum)
            number = block.header.number
            if number < start.block:
                continue
            if number > start.block and (upto is None or number < upto.block):
                yield from block.records()
                continue
            for lsn, record in block.records():
                if lsn > start and (upto is None or lsn <= upto):
                    yield lsn, record


class LogReader:
    """A node's log as it is, read-only: works on a copy, on a stopped node, and beside a running one.

    Opening judges the directory by the restart table and raises what it refuses; nothing is repaired. `last_block` is the end of
    the good chain at that moment: on a running or crashed node it may include blocks that were not acknowledged yet.
    """

    def __init__(self, files: Files, directory: str) -> None:
        self.files = files
        self.directory = directory
        self.instance = load_instance(files, directory)
        self.survey = survey_settled(files, directory, self.instance)
        if (error := refusal(self.survey)) is not None:
            raise error
        self.verdict = decide(self.survey.facts).verdict

    @property
    def segments(self) -> list[SegmentFile]:
        return self.survey.segments

    @property
    def walk(self) -> SegmentWalk:
        assert self.survey.walk is not None
        return self.survey.walk

    @property
    def last_block(self) -> BlockNumber:
        return BlockNumber(self.walk.expected - 1)

    def read(self, after: Lsn | None = None, upto: Lsn | None = None) -> Iterator[tuple[Lsn, Record]]:
        """Records in (after, upto], in order. Raises: Corrupt, Recycled."""
        return read_records(self.files, self.segments, last=self.last_block, after=after, upto=upto)

    def header(self) -> SegmentHeader:
        return self.segments[-1].header


def survey_settled(files: Files, directory: str, instance: Instance) -> Survey:
    """Looks again while something is wrong: two file names of a running node may cross. What is damaged stays so.

    Raises: Recycled; Corrupt for what cannot be read at all.
    """
    for _ in range(_SURVEYS_MAX - 1):
        with contextlib.suppress(Corrupt, FileNotFoundError):
            survey = survey_log(files, directory, instance)
            if refusal(survey) is None:
                return survey
    try:
        return survey_log(files, directory, instance)
    except FileNotFoundError as missing:
        raise Recycled(f"{missing.filename} was released while it was being opened") from missing
