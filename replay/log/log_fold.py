"""The fold over a log's records: where each partition's stream ends, what is void in it, and which calls are skipped.

One rule: it follows from the records alone, in log order, and every pass over a log keeps these facts this way. A pass adds
what it looks for besides in the hooks of `StreamFold`; what it keeps per record is its own affair.

None of it can be known on the way through a log. A void suffix is known to be void only where its replacement lies, and a SKIP
may lie anywhere after the batch that it concerns. So entries are applied or listed in a second pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from cmdlog.wal.format.control_record import Skip
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.group_state import GroupState, GroupStates
from cmdlog.wal.ids import Lsn
from cmdlog.wal.skips import SkipSet
from replay.log.source import LogSource

_SKIP: Final = RecordKind.SKIP  # looked up once: in Python 3.11 that costs more than the comparison
_DIGEST: Final = RecordKind.DIGEST
_COMMIT_MARK: Final = RecordKind.COMMIT_MARK
_CHECKPOINT: Final = RecordKind.CHECKPOINT
_TRUNCATION: Final = RecordKind.TRUNCATION

Place = tuple[int, int, int]  # (block, offset, number): what a record there says about those before it


def is_void(voids: Iterable[Place], lsn: Lsn, index: int) -> bool:
    """Whether a later record of the log made this entry void."""
    return any(index >= first and lsn < (block, offset) for block, offset, first in voids)


@dataclass(slots=True, kw_only=True)
class StreamFold:
    """One partition's stream, as far as its records have come. Invariant: `skipped` and `multi` hold nothing of a void entry."""

    last_index: int = 0
    executed: int = 0  # the last batch whose digest was met: the live run had executed it, so no skip of it can follow
    voids: list[Place] = field(default_factory=list)  # entries from that index on, before there, are void
    skipped: SkipSet = field(default_factory=SkipSet)
    multi: dict[int, int] = field(default_factory=dict)  # TxnId -> index of the multi-partition calls, of passes that note them

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the stream's next record. Raises: BadRecord when a payload is not what its kind says."""
        kind = record.kind
        if kind < 16:
            self.before_entry(record)
            if record.index <= self.last_index:
                self.cut(lsn, record.index)
            self.last_index = record.index
            if kind is _SKIP:
                self.skipped.add(Skip.from_record(record))
            self.entry(lsn, record)
        elif kind is _DIGEST:
            self.executed = max(self.executed, record.index)
            self.digest(record)
        elif kind is _COMMIT_MARK:
            self.commit_mark(record)
        elif kind is _CHECKPOINT:
            self.checkpoint(GroupState.from_checkpoint(record))
        elif kind is _TRUNCATION:
            self.cut(lsn, record.index)

    def cut(self, lsn: Lsn, index: int) -> None:
        """Entries from `index` on that lie before here are void."""
        self.voids.append((int(lsn.block), lsn.offset, index))
        self.last_index, self.executed = index - 1, min(self.executed, index - 1)
        self.skipped.cut(index)
        self.multi = {txn: at for txn, at in self.multi.items() if at < index}
        self.was_cut(index)

    # -- hooks -----------------------------------------------------------------------------------------------------------

    def before_entry(self, record: Record) -> None:
        """An entry comes."""

    def entry(self, lsn: Lsn, record: Record) -> None:
        """It is the stream's last one now."""

    def was_cut(self, index: int) -> None:
        """Entries from that index on are void."""

    def digest(self, record: Record) -> None:
        """Of a batch that the live run executed."""

    def commit_mark(self, record: Record) -> None:
        """Of the stream."""

    def checkpoint(self, state: GroupState) -> None:
        """What the head of a segment states about the stream."""


S = TypeVar("S", bound=StreamFold)


class LogFold(Generic[S]):
    """One pass over a log: the state of every group, and the streams of some partitions. One thread."""

    def __init__(self, streams: dict[int, S]) -> None:
        self.streams, self.groups = streams, GroupStates()

    def read(self, source: LogSource, *, from_block: int) -> None:
        """From the segment that begins there to the log's end. Raises: Corrupt, Recycled, BadRecord."""
        patchwork, met = source.patchwork, 0
        for lsn, record in source.read(from_block=from_block):
            if patchwork is not None and patchwork.met != met:
                met = patchwork.met
                self.gap()
            self.observe(lsn, record)
        if patchwork is not None and patchwork.met != met:
            self.gap()

    def observe(self, lsn: Lsn, record: Record) -> None:
        """Takes the log's next record."""
        self.groups.observe(lsn, record)
        stream = self.streams.get(record.partition)
        if stream is not None:
            stream.observe(lsn, record)

    def gap(self) -> None:
        """Blocks are left out here."""
