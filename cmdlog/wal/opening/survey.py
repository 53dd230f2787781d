"""Reads a log directory as far as a start needs: every segment's head, the hard state file, and the newest segment whole.

One rule: nothing is changed, nothing is decided. The result is facts, each with the file and offset that shows it.
The cost does not depend on the log's size: a few sectors per older segment and one whole segment.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import Final

from cmdlog.wal.directory.instance import LOG_FOLDER, Identity, Instance
from cmdlog.wal.errors import Corrupt, Foreign, NewerFormat, WalError
from cmdlog.wal.files import TEMP_SUFFIX, Files
from cmdlog.wal.format.block import HEADER, SECTOR_BYTES, BadBlock, decode_header
from cmdlog.wal.format.segment import (
    BadSegment,
    SegmentHeader,
    decode_segment_header,
    free_number,
    segment_name,
    segment_sequence,
)
from cmdlog.wal.hard_state import HARDSTATE_NAME, HardStateCopies, HardStateValues, read_hardstate
from cmdlog.wal.opening.restart import Facts, RestartVerdict, decide, tail_facts
from cmdlog.wal.opening.scan import SegmentWalk, locate_damage, misfit, read_block, walk_segment

_HEAD_BYTES: Final = 2 * SECTOR_BYTES  # header sector and the first one of the checkpoint block


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment that is in use, under its name."""

    path: str
    header: SegmentHeader

    @property
    def sequence(self) -> int:
        return self.header.sequence


@dataclass(frozen=True, slots=True)
class SurveyProblem:
    """Why a fact holds."""

    fact: str  # a field of Facts
    path: str
    offset: int
    what: str
    block: int | None = None


@dataclass(slots=True)
class Survey:
    """Everything that a start looks at."""

    log_dir: str
    instance: Instance
    hard: HardStateValues
    hard_copies: HardStateCopies
    segments: list[SegmentFile] = field(default_factory=list)  # ascending, without `let_go`
    let_go: list[str] = field(default_factory=list)  # paths of segments that were noted as recycled and not yet renamed
    free: list[str] = field(default_factory=list)  # ready, and with TEMP_SUFFIX reserved ones
    problems: list[SurveyProblem] = field(default_factory=list)
    data: bytes = b""  # the newest segment
    walk: SegmentWalk | None = None

    @property
    def facts(self) -> Facts:
        """The facts of the whole directory. They are exclusive in the table's order."""
        found = {problem.fact for problem in self.problems}
        base = Facts(*(False,) * 9)
        if self.walk is not None:
            base = tail_facts(self.walk, evidence=self.evidence)
        return replace(base, **dict.fromkeys(found, True))

    @property
    def evidence(self) -> int:
        """What is known durable without the newest segment's own blocks: its head, and what an orderly close noted."""
        return max(self.hard.durable, self.segments[-1].header.first_block if self.segments else 0)


def identity_text(identity: Identity) -> str:
    """The identity as the hard state file repeats it."""
    return f"{identity.cluster_id.hex()}-{identity.node_id}-{identity.incarnation.hex()}"


def identity_texts(identity: Identity) -> set[str]:
    """The same of every incarnation whose files belong here."""
    lives = (identity.incarnation, *identity.earlier)
    return {identity_text(replace(identity, incarnation=incarnation)) for incarnation in lives}


def survey_log(files: Files, directory: str, instance: Instance, *, hard_state: HardStateValues | None = None) -> Survey:
    """Looks at the log of a node; `hard_state` stands in for a file that is lost.

    Raises: Corrupt for what cannot be read at all.
    """
    log_dir = os.path.join(directory, LOG_FOLDER)
    copies = HardStateCopies.DAMAGED
    if hard_state is None:
        hard_state, _, copies = read_hardstate(files, log_dir)
    survey = Survey(log_dir, instance, hard_state, copies)
    if hard_state.identity not in identity_texts(instance.identity):
        path = os.path.join(log_dir, HARDSTATE_NAME)
        survey.problems.append(SurveyProblem("foreign", path, 0, f"hard state of {hard_state.identity}"))
    # A name is a segment in use, one that was let go, a free file, or nothing of the log.
    for name in files.listdir(log_dir):
        path = os.path.join(log_dir, name)
        sequence = segment_sequence(name)
        if sequence is None:
            if free_number(name.removesuffix(TEMP_SUFFIX)) is not None:
                survey.free.append(path)
        elif sequence < hard_state.oldest:
            survey.let_go.append(path)
        else:
            _look_at_head(files, survey, path, sequence)
    _look_at_order(survey)
    if survey.segments and not survey.problems:
        newest = survey.segments[-1]
        survey.data = files.read_file(newest.path)
        survey.walk = walk_segment(survey.data, newest.header)
    return survey


def refusal(survey: Survey) -> WalError | None:
    """The error of a row that refuses; None when the log may be opened."""
    row = decide(survey.facts)
    problem = next((p for p in survey.problems if p.fact == row.yes), None)
    if row.verdict is RestartVerdict.NEWER:
        return NewerFormat(f"{_place(survey, problem)} is of a newer format")
    if row.verdict is RestartVerdict.FOREIGN and problem is not None:
        return Foreign(f"{problem.path}: {problem.what}; this directory belongs to {survey.instance.identity}")
    if row.verdict in (RestartVerdict.MISSING, RestartVerdict.DAMAGED_HEAD) and problem is not None:
        return Corrupt(problem.what, path=problem.path, offset=problem.offset, block=problem.block)
    if row.verdict in (RestartVerdict.DAMAGED_HEAD, RestartVerdict.CORRUPT, RestartVerdict.MISPLACED):
        return tail_corrupt(survey, row.verdict)
    return None


def tail_corrupt(survey: Survey, verdict: RestartVerdict) -> Corrupt:
    """The error for the place where the newest segment's chain ends though it must not."""
    walk = survey.walk
    assert walk is not None
    suspect = locate_damage(survey.data, walk.end, walk.segment)
    what = f"block that was known durable ({walk.end_reason})"
    if verdict is RestartVerdict.MISPLACED:
        what = f"block out of place ({walk.end_reason})"
    return Corrupt(
        what,
        path=survey.segments[-1].path,
        offset=walk.end,
        block=walk.expected,
        partition=suspect.partition,
        index=suspect.index,
        txn_id=suspect.txn_id,
    )


def _look_at_head(files: Files, survey: Survey, path: str, sequence: int) -> None:
    """Header sector and checkpoint block of one segment: into `segments`, or a problem."""
    file = files.open(path, read_only=True)
    try:
        size = file.size()
        data = file.pread(_HEAD_BYTES, 0)
        try:
            header = decode_segment_header(data[:SECTOR_BYTES])
        except BadSegment as bad:
            fact = "newer" if bad.newer else "damaged_head"
            survey.problems.append(SurveyProblem(fact, path, 0, f"segment header is bad ({bad.reason})"))
            return
        # Another owner, another place in the ring, another size; else it is ours, and its checkpoint is judged.
        identity = Identity(header.cluster_id, header.node_id, header.incarnation)
        if not survey.instance.identity.owns(identity):
            survey.problems.append(SurveyProblem("foreign", path, 0, f"segment of {identity}"))
        elif header.sequence != sequence:
            survey.problems.append(SurveyProblem("foreign", path, 0, f"segment {header.sequence} under another name"))
        elif not size == header.segment_bytes == survey.instance.segment_bytes:
            wanted = survey.instance.segment_bytes
            what = f"segment has {size} bytes and says {header.segment_bytes}, the instance file says {wanted}"
            survey.problems.append(SurveyProblem("damaged_head", path, min(size, wanted), what))
        else:
            survey.segments.append(SegmentFile(path, header))
            if problem := _checkpoint_problem(file.pread(_checkpoint_end(data), 0), header):
                fact = "newer" if problem == "newer" else "damaged_head"
                what = f"checkpoint block is bad ({problem})"
                survey.problems.append(SurveyProblem(fact, path, SECTOR_BYTES, what, header.first_block))
    finally:
        file.close()


def _checkpoint_end(data: bytes) -> int:
    """Offset after the checkpoint block as its header says; never more than one segment."""
    try:
        return SECTOR_BYTES + decode_header(data[SECTOR_BYTES : SECTOR_BYTES + HEADER.bytes]).total_bytes
    except BadBlock:
        return len(data)


def _checkpoint_problem(data: bytes, header: SegmentHeader) -> str:
    try:
        block = read_block(data, SECTOR_BYTES, header)
    except BadBlock as bad:
        return "newer" if bad.newer else bad.reason
    first = header.first_block
    return misfit(block, expected=first, chain=header.previous_chain, first=first)


def _look_at_order(survey: Survey) -> None:
    """Gaps, lost ends and broken succession."""
    named = {segment.sequence for segment in survey.segments} | {
        segment_sequence(os.path.basename(problem.path)) for problem in survey.problems
    }
    newest = max((segment.sequence for segment in survey.segments), default=0)
    for sequence in range(survey.hard.oldest, max(survey.hard.newest, newest) + 1):
        if sequence not in named:
            path = os.path.join(survey.log_dir, segment_name(sequence))
            survey.problems.append(SurveyProblem("missing", path, 0, f"segment {sequence} is missing"))
            return
    for before, after in zip(survey.segments, survey.segments[1:], strict=False):
        if before.sequence + 1 == after.sequence and after.header.previous_generation != before.header.generation:
            what = f"segment {before.sequence} is not the one that segment {after.sequence} followed"
            survey.problems.append(SurveyProblem("missing", before.path, 0, what))


def _place(survey: Survey, problem: SurveyProblem | None) -> str:
    if problem is not None:
        return problem.path
    return f"block at offset {survey.walk.end if survey.walk else 0} of {survey.segments[-1].path}"
