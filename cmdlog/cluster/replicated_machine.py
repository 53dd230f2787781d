"""What the driver of consensus drives: the machine that makes entries and runs them, and who watches the leaders.

One rule: everything is called under the driver's lock and must not block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from cmdlog.raft import RaftCore
from cmdlog.raft.configuration import NodeId
from cmdlog.raft.messages import Entries, Fitness, SnapshotDescriptor
from cmdlog.raft.ready import EntriesWanted, ReadResult, SoftState
from cmdlog.wal.ids import Term

GroupRequest = tuple[int, Callable[[RaftCore], Any]]  # what a group is asked; one whose role forbids it is left as it is


class Machine(Protocol):
    """What makes entries and runs them: the node's sequencer and sites. Called under the driver's lock; must not block."""

    @property
    def pending_bytes(self) -> int:
        """About what `take_records` would return; read without a lock."""
        ...

    def take_records(self, bytes_max: int) -> Sequence[bytes]:
        """Entries of the groups that this node leads, each with the term and index that it was given (`lead`), and notes."""
        ...

    def skip_places(self, ends: Mapping[int, int]) -> None:
        """Consensus has placed entries of its own: where the next entry of these groups goes, if this node proposes it."""
        ...

    def written(self, block: int) -> None:
        """The oldest `take_records` that returned any is in the page cache."""
        ...

    def durable(self, block: int) -> None:
        """The same survives power loss here. Its entries need not be committed."""
        ...

    def committed(self, group: int, entries: Entries) -> None:
        """The next entries of the group are committed, and durable here: they may be run."""
        ...

    def run_marked(self, partitions: Iterable[int]) -> None:
        """The leader has executed more of these partitions."""
        ...

    def read(self, group: int, result: ReadResult) -> None:
        """A read that was asked for is decided."""
        ...

    def fetch(self, group: int, wanted: EntriesWanted, terms: Sequence[int], block: int | None) -> None:
        """Entries are to be read from the log, where they lie in `block` or later; `RaftCore.report_entries` is called with
        them, or with None."""
        ...

    def copy_offered(self, group: int, descriptor: SnapshotDescriptor) -> None:
        """This node is too far back: it has to be made again from a copy of that state of the group, or a later one."""
        ...

    def failed(self, error: BaseException) -> None:
        """The log is wedged, or a group broke an invariant: nothing is acknowledged any more."""
        ...


@dataclass(frozen=True, slots=True)
class GroupStanding:
    """What one group is at a moment."""

    term: Term
    leader: NodeId | None
    leads: bool
    confirmed: bool  # it leads, and an entry of its own term was handed out: the machine has all that was committed before

    @classmethod
    def of(cls, core: RaftCore) -> GroupStanding:
        """At this moment."""
        leads, handed = core.leader == core.id, core.log.term_at(core.log.handed)
        return cls(core.term, core.leader, leads, leads and handed == core.term)

    def is_of(self, core: RaftCore) -> bool:
        """Whether it is still what the group is. What was confirmed stays so within a term."""
        if self.term != core.term or self.leader != core.leader:
            return False
        return self.confirmed or not self.leads or core.log.term_at(core.log.handed) != core.term


class Watcher(Protocol):
    """Who decides what a change of leaders means. Called under the driver's lock."""

    def changed(self, views: Mapping[int, GroupStanding]) -> Sequence[GroupRequest]:
        """Some group has another view than when this was called last; what is to be asked of groups, in one round."""
        ...

    def roles_changed(self, roles: Sequence[tuple[int, SoftState, int]]) -> None:
        """Of these groups role or leader have changed: group, what it is now, its term."""
        ...

    def ticked(self, views: Mapping[int, GroupStanding]) -> Sequence[GroupRequest]:
        """A tick has passed; as `changed`."""
        ...

    def take_fitness(self, message: Fitness) -> None:
        """A peer says whether it should lead."""
        ...
