"""What a core wants done: the only thing that comes out of it.

One rule: everything in one Ready belongs to one moment, and Readies are handled in the order in which they were taken. The duties
that go with each field are numbered in the package's head.
"""

from __future__ import annotations

from cmdlog.raft.entries import Completion
from cmdlog.raft.messages import Entries, HardState, Message, SnapshotDescriptor
from cmdlog.raft.values import value
from cmdlog.wal.ids import Index, Term


@value
class ReadResult:
    """The read may be served once `index` is applied; None: its leader is gone, ask again."""

    context: int
    index: Index | None


@value
class PlacedProposals:
    """Where proposals stand: consecutive from `first` on, if they are ever committed. When another term is committed at their
    index, they are not there; until then their outcome is unknown."""

    first: Index
    term: Term


@value
class Ready:
    """Work for the caller; fields in the order in which they are to be written."""

    hard_state: HardState | None  # term, vote, commit: changed, or worth writing beside the entries
    snapshot: SnapshotDescriptor | None  # a copy that is complete becomes the log: one atomic record, before `entries`
    entries: Entries | None  # to be written; they replace everything from their first index on
    send_now: list[Message]  # may leave before the write
    send_after_fsync: list[Message]  # only after this write and all earlier ones are durable
    committed: Entries | None  # to be applied, in order, each once; durable here already
    reads: list[ReadResult]  # reads that are decided
    copy: SnapshotDescriptor | None  # start copying this, in place of any earlier one; then `report_snapshot`
    completion: Completion | None  # give it to `advance` when this write and all earlier ones are durable; None: no write

    @property
    def writes(self) -> bool:
        """Whether there is anything to make durable."""
        return self.completion is not None
