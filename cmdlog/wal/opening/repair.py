"""Acts on the restart table's verdict: makes the newest segment's tail durable and whole, so that appending may continue.

One rule: every step can be interrupted by a crash and is then done again from its start, with the same result. So the order is:
names first, then evidence aside, then the tail's bytes, then the seal that vouches for them, and the hard state file last.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

from cmdlog.wal.errors import Corrupt, DiskFull
from cmdlog.wal.files import File, Files
from cmdlog.wal.format.block import HEADER, BlockFlag, decode_header, encode_block
from cmdlog.wal.format.record import BadRecord
from cmdlog.wal.format.segment import free_name, free_number
from cmdlog.wal.group_state import GroupStates
from cmdlog.wal.hard_state import HardStateCopies, HardStateFile
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.opening.restart import Action, RestartRow, RestartVerdict
from cmdlog.wal.opening.scan import BlockAt, SegmentWalk, records_at
from cmdlog.wal.opening.survey import Survey

CUTS_KEPT_MAX: Final = 8  # evidence files; the oldest go first
_CUT_NAME: Final = re.compile(r"cut-(\d{16})\.bin(\.\d+)?")
_CHUNK_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class CutReport:
    """What was cut from the log's end, and where it is kept."""

    path: str
    offset: int
    block: BlockNumber  # first number that was cut; it is given again
    reason: str
    kept: str | None  # path of the copy; None when there was no room for it


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a start found and did."""

    verdict: RestartVerdict
    cut: CutReport | None
    groups: GroupStates
    open_count: int
    tail_lsn: Lsn  # the last block
    notes: tuple[str, ...]

    @property
    def txn_id_max(self) -> int:
        return self.groups.txn_id_max


@dataclass(frozen=True, slots=True)
class Mended:
    """The tail after repair."""

    place: BlockAt  # of the last block
    sealed: bool  # it needs no seal: it is one, or other evidence covers it
    recovered: Recovered


def mend(files: Files, survey: Survey, row: RestartRow, hard: HardStateFile) -> Mended:
    """Durable on return: every block up to `place`, their segment's name, and the hard state.

    Raises: WriteFailed, DiskFull, Corrupt when a block's records do not decode.
    """
    walk = survey.walk
    assert walk is not None
    assert row.action is not Action.REFUSE
    notes = [f"{row.verdict.value}: {row.story}"] if row.verdict is not RestartVerdict.CLEAN else []
    notes += _finish_recycling(files, survey)
    _confirm_newest_name(files, survey, hard)
    groups = _fold(survey, walk)
    place, open_count = walk.places[-1], walk.places[-1].header.open_count + 1
    cut = None
    if row.action is Action.CUT:
        cut = _keep_cut(files, survey, walk, notes)
    # Blocks that nothing vouches for are written once more before the seal vouches for them.
    file = files.open(survey.segments[-1].path)
    try:
        _rewrite(file, survey, walk, cutting=row.action is Action.CUT)
        if not place.header.flags & BlockFlag.SEAL and row.action is not Action.GO_ON:
            place = _seal(file, walk, open_count)
    finally:
        file.close()
    _settle_hard_state(survey, groups, hard, notes)
    recovered = Recovered(row.verdict, cut, groups, open_count, Lsn(place.header.number, 0), tuple(notes))
    sealed = bool(place.header.flags) or row.action is Action.GO_ON
    return Mended(place, sealed, recovered)


def _finish_recycling(files: Files, survey: Survey) -> list[str]:
    """Removes the segments that the hard state file says nobody needs; new files are made in their place.

    Not renamed to free ones: after a failed folder sync such a name may be a second one of a file that is in use again.
    """
    for path in survey.let_go:
        files.unlink(path)
    if survey.let_go:
        files.fsync_dir(survey.log_dir)
    return [f"recycling of {os.path.basename(path)} was finished" for path in survey.let_go]


def _confirm_newest_name(files: Files, survey: Survey, hard: HardStateFile) -> None:
    """Names the newest segment once more if the hard state file does not know it yet.

    Its rotation was interrupted. If that was by a failed folder sync, the name may be in the cache alone, and syncing again would
    lie. Nothing was acknowledged in this segment, so a crash between the two renames only takes the rotation back.
    """
    newest = survey.segments[-1]
    if newest.sequence <= hard.state.newest:
        return
    taken = {free_number(os.path.basename(path)) for path in survey.free}
    spare = os.path.join(survey.log_dir, free_name(next(n for n in range(len(taken) + 1) if n not in taken)))
    for source, target in ((newest.path, spare), (spare, newest.path)):
        files.rename(source, target)
        files.fsync_dir(survey.log_dir)


def _fold(survey: Survey, walk: SegmentWalk) -> GroupStates:
    """The groups' state from the checkpoint and all records after it."""
    groups = GroupStates()
    for place in walk.places:
        start = place.offset + HEADER.bytes
        try:
            count = 0
            for lsn, record in records_at(survey.data, place):
                groups.observe(lsn, record)
                count += 1
        except BadRecord as bad:
            path, number = survey.segments[-1].path, place.header.number
            raise Corrupt(f"block with good checksums but a bad record ({bad})", path=path, offset=start, block=number) from bad
        if count != place.header.record_count:
            path, number = survey.segments[-1].path, place.header.number
            raise Corrupt(f"block with {count} records says {place.header.record_count}", path=path, offset=start, block=number)
    groups.hard_state_changed = False
    return groups


def _keep_cut(files: Files, survey: Survey, walk: SegmentWalk, notes: list[str]) -> CutReport:
    """Copies what will be zeroed aside, and drops the oldest such copies."""
    last = max((place.offset + place.header.total_bytes for place in walk.later), default=0)
    data = survey.data[walk.end :] if walk.segment.earlier_life == 0 else survey.data[walk.end : max(last, walk.end + 4096)]
    data = data.rstrip(b"\0")
    path = os.path.join(survey.log_dir, f"cut-{walk.expected:016d}.bin")
    kept: str | None = None
    try:
        kept = files.quarantine(path, data)
    except DiskFull:
        notes.append(f"no room to keep the {len(data)} bytes that were cut")
    names = sorted(name for name in files.listdir(survey.log_dir) if _CUT_NAME.fullmatch(name))
    for name in names[:-CUTS_KEPT_MAX]:
        files.unlink(os.path.join(survey.log_dir, name))
    return CutReport(survey.segments[-1].path, walk.end, walk.expected, walk.end_reason, kept)


def _rewrite(file: File, survey: Survey, walk: SegmentWalk, *, cutting: bool) -> None:
    """Puts the blocks that nothing vouches for on disk once more, and zeros over what is cut."""
    known = max(survey.evidence, walk.evidence)
    start = next((place.offset for place in walk.places if place.header.number > known), walk.end)
    for offset in range(start, walk.end, _CHUNK_BYTES):
        file.pwrite(survey.data[offset : min(offset + _CHUNK_BYTES, walk.end)], offset)
    if cutting:
        for offset in range(walk.end, len(survey.data), _CHUNK_BYTES):
            file.pwrite(bytes(min(_CHUNK_BYTES, len(survey.data) - offset)), offset)
    if cutting or start < walk.end:
        file.fdatasync()


def _seal(file: File, walk: SegmentWalk, open_count: int) -> BlockAt:
    """Writes the seal that vouches for the rewritten blocks. A sector is always left for it."""
    last = walk.places[-1].header
    data, _ = encode_block(
        [],
        flags=BlockFlag.SEAL,
        generation=walk.segment.generation,
        number=last.number + 1,
        durable_upto=last.number,
        chain=last.checksum,
        open_count=open_count,
    )
    file.pwrite(data, walk.end)
    file.fdatasync()
    return BlockAt(decode_header(data), walk.end)


def _settle_hard_state(survey: Survey, groups: GroupStates, hard: HardStateFile, notes: list[str]) -> None:
    """Merges log and hard state file, and writes the file when it was behind or only half whole."""
    for partition, (term, vote) in hard.state.votes.items():
        try:
            groups.merge_vote(partition, term, vote)
        except ValueError as error:
            raise Corrupt(str(error), path=survey.segments[-1].path) from error
    newest = survey.segments[-1].sequence
    if survey.hard_copies is HardStateCopies.DAMAGED:
        notes.append("one copy of the hard state was damaged and is replaced by the other")
    if survey.hard_copies is not HardStateCopies.EQUAL or hard.state.newest != newest or hard.state.votes != groups.votes:
        hard.state.newest, hard.state.votes = newest, dict(groups.votes)
        hard.save()
