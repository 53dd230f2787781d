"""The log as replay sees it: segments, their checkpoints, and records up to an end that is fixed when it is opened.

One rule: read-only, no lock. What the restart table refuses is refused here too, except that the good part before a damaged place
can be read when the caller has accepted the loss of the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.groups import Groups
from cmdlog.wal.ids import BlockNumber, Lsn
from cmdlog.wal.instance import load_instance
from cmdlog.wal.reader import read_records, read_segment
from cmdlog.wal.record import Record
from cmdlog.wal.restart import decide
from cmdlog.wal.survey import SegmentFile, Survey, refusal, survey_log

SURVEYS_MAX: Final = 3  # looks at the directory of a running node, which may recycle between two file names
END_OF_BLOCK: Final = 1 << 40  # an offset behind every record of a block


class LogSource:
    """An opened log. `last_block` is the end of what may be read; `damage` is why it is not the log's own end."""

    def __init__(self, files: Files, directory: str, *, accept_data_loss: bool = False) -> None:
        """Raises: WalError of the restart table; with `accept_data_loss` damage of the newest segment's tail is not raised."""
        self._files, self.directory = files, directory
        self.instance = load_instance(files, directory)
        self.damage: WalError | None = None
        survey = self._survey(accept_data_loss)
        self.segments: list[SegmentFile] = survey.segments
        self.verdict = decide(survey.facts).verdict.value
        assert survey.walk is not None
        self.last_block = int(survey.walk.expected) - 1

    @property
    def first_block(self) -> int:
        return int(self.segments[0].header.first_block)

    def read(self, *, from_block: int, upto_block: int | None = None) -> Iterator[tuple[Lsn, Record]]:
        """Records of the blocks in [from_block, upto_block], in order. Raises: Corrupt, Recycled."""
        last = self.last_block if upto_block is None else min(upto_block, self.last_block)
        after = Lsn(BlockNumber(from_block - 1), END_OF_BLOCK)
        return read_records(self._files, self.segments, last=last, after=after, upto=None)

    def checkpoint(self, segment: SegmentFile) -> Groups:
        """What the segment's head states about every group: everything before it, folded."""
        groups = Groups()
        for block in read_segment(self._files, segment, upto=int(segment.header.first_block)):
            for lsn, record in block.records():
                groups.observe(lsn, record)
        return groups

    def _survey(self, accept_data_loss: bool) -> Survey:
        attempt = 0
        while True:
            attempt += 1
            try:
                survey = survey_log(self._files, self.directory, self.instance)
                error = refusal(survey)
            except FileNotFoundError as missing:
                survey, error = None, WalError(str(missing))
            if survey is not None and error is None:
                return survey
            if survey is not None and accept_data_loss and isinstance(error, Corrupt) and survey.walk is not None:
                self.damage = error
                return survey
            if attempt >= SURVEYS_MAX:
                raise error or WalError("the log cannot be read")
