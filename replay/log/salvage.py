"""Reads a log around its damaged and missing places.

One rule: it leaves out whole blocks and says which; it never guesses what they held. Whether a partition's stream is complete in
spite of that, `replay.log.scan` decides by the stream's own indexes and terms, which the head of every segment states again.

A damaged segment is walked as a whole: after a bad place the next good block of the same life and a higher number begins another
stretch. Its own chain cannot be compared, that of all later blocks is; the segment that follows must continue the last one.

When a plan was made, the gaps that it knows are the only ones that may be met from then on (`settle`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.block import HEADER, MAGIC, SECTOR_BYTES, BadBlock, BlockHeader, check_body
from cmdlog.wal.format.record import Record
from cmdlog.wal.ids import Lsn
from cmdlog.wal.opening.scan import misfit, read_block
from cmdlog.wal.opening.survey import SegmentFile
from cmdlog.wal.reader import ReadBlock, read_segment

Gap = tuple[int, int]
"""Blocks, both ends included, that cannot be read."""


@dataclass(frozen=True, slots=True)
class SalvagedSegment:
    """A segment, and which block is its last."""

    segment: SegmentFile
    last_block: int


class SalvagedLog:
    """Segments of one log by first block, with gaps between and in them. One reader at a time."""

    def __init__(self, files: Files, pieces: Sequence[SalvagedSegment], *, gaps: Iterable[Gap] | None = None) -> None:
        """`gaps` None: any may be met."""
        self._files, self._pieces = files, pieces
        self._found: set[Gap] = set()
        self._allowed = None if gaps is None else set(gaps)
        self._places: dict[
            str, list[tuple[int, BlockHeader]]
        ] = {}  # path of a damaged segment -> (offset, header) of good blocks
        self.damages: list[Corrupt] = []
        self.met = 0  # gaps so far, in the reading in progress

    def accept_gaps(self, first: int, last: int) -> tuple[Gap, ...]:
        """The gaps that were met in [first, last]; others are damage from here on."""
        self._allowed = {gap for gap in self._found if gap[0] <= last and gap[1] >= first}
        return tuple(sorted(self._allowed))

    @property
    def pieces(self) -> Sequence[SalvagedSegment]:
        """What is read, oldest first."""
        return self._pieces

    @property
    def gaps(self) -> list[Gap]:
        """All that were met, ascending."""
        return sorted(self._found)

    def records(self, after: Lsn | None, upto: Lsn | None) -> Iterator[tuple[Lsn, Record]]:
        """Records in (after, upto] of the good blocks, in order. Raises: Corrupt (a gap that was not settled, two histories)."""
        begin = after if after is not None else Lsn(self._pieces[0].segment.header.first_block, -1)
        end = upto.block if upto is not None else self._pieces[-1].last_block
        self.met, last = 0, min(int(end), self._pieces[-1].last_block)
        reached, checksum = int(begin.block) - 1, None  # number and checksum of the last block that was read
        for piece in self._pieces:
            header = piece.segment.header
            if header.first_block > end:
                break
            if piece.last_block < begin.block:
                continue
            if checksum is not None and reached == header.first_block - 1 and checksum != header.previous_chain:
                raise Corrupt("segment does not continue its predecessor", path=piece.segment.path, block=reached)
            for number, of_block, found in self._blocks(piece, min(last, piece.last_block)):
                self._note_gap(reached + 1, number - 1, piece)
                reached, checksum = number, of_block
                for lsn, record in found:
                    if lsn > begin and (upto is None or lsn <= upto):
                        yield lsn, record
        self._note_gap(reached + 1, last, self._pieces[-1])

    def _note_gap(self, first: int, last: int, piece: SalvagedSegment) -> None:
        if first > last:
            return
        self.met += 1
        if self._allowed is not None and not any(gap[0] <= first and last <= gap[1] for gap in self._allowed):
            raise Corrupt(f"blocks up to {last} cannot be read", path=piece.segment.path, block=first)
        self._found.add((first, last))

    def _blocks(self, piece: SalvagedSegment, upto: int) -> Iterator[tuple[int, int, list[tuple[Lsn, Record]]]]:
        """Number, checksum and records of the good blocks up to this one."""
        path, reached = piece.segment.path, 0
        if path not in self._places:
            try:
                for block in read_segment(self._files, piece.segment, upto=upto):
                    found = list(block.records())
                    reached = int(block.header.number)
                    yield reached, block.header.checksum, found
            except Corrupt as damage:
                self.damages.append(damage)
                self._places[path] = good_blocks(self._files, piece)
            else:
                return
        file = self._files.open(path, read_only=True)
        try:
            for offset, header in self._places[path]:
                if reached < header.number <= upto:
                    found = list(_read(file.pread(header.total_bytes, offset), path, offset, header).records())
                    yield int(header.number), header.checksum, found
        finally:
            file.close()


def _read(data: bytes, path: str, offset: int, header: BlockHeader) -> ReadBlock:
    try:
        return ReadBlock(header, path, offset, check_body(header, data))
    except BadBlock as bad:
        raise Corrupt(
            f"block that was good cannot be read ({bad.reason})", path=path, offset=offset, block=header.number
        ) from bad


def good_blocks(files: Files, piece: SalvagedSegment) -> list[tuple[int, BlockHeader]]:
    """Offset and header of every good block of a damaged segment, ascending."""
    segment = piece.segment.header
    file = files.open(piece.segment.path, read_only=True)
    try:
        data = file.pread(segment.segment_bytes, 0)
    finally:
        file.close()
    found: list[tuple[int, BlockHeader]] = []
    offset, expected, chain = SECTOR_BYTES, int(segment.first_block), segment.previous_chain
    knows_chain = True
    while offset + HEADER.bytes <= len(data) and expected <= piece.last_block:
        header = _good_block(data, offset, piece)
        fits = header is not None and expected <= header.number <= piece.last_block
        if header is not None and fits:
            number = expected if knows_chain else int(header.number)
            said = misfit(header, expected=number, chain=chain if knows_chain else header.chain, first=int(segment.first_block))
            fits = not said
        if header is None or not fits:
            offset, knows_chain = offset + SECTOR_BYTES, False
            continue
        found.append((offset, header))
        offset, expected, chain, knows_chain = offset + header.total_bytes, int(header.number) + 1, header.checksum, True
    return found


def _good_block(data: bytes, offset: int, piece: SalvagedSegment) -> BlockHeader | None:
    if data[offset : offset + len(MAGIC)] != MAGIC:
        return None
    try:
        header = read_block(data, offset, piece.segment.header)
        list(
            ReadBlock(
                header, piece.segment.path, offset, check_body(header, data[offset : offset + header.total_bytes])
            ).records()
        )
    except (BadBlock, Corrupt):
        return None
    return header
