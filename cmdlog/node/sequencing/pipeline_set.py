"""All partitions' pipelines: the lock of everything that works on them, and the ways out of them, to the sites and the log.

One rule: the caller holds the lock, but for `wake_log` and `group_calls`.
"""

from __future__ import annotations

import contextlib
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from cmdlog.node.sequencing.flight import CallRow, Flight, Pending, Read
from cmdlog.node.sequencing.partition_pipeline import Deliver, PartitionPipeline
from cmdlog.wal.errors import WalError


@dataclass(frozen=True, slots=True)
class LogControls:
    """What the sequencer asks of the log."""

    kick: Callable[[], None]  # there is something to take
    hasten: Callable[[], None]  # a caller waits until what is written is durable
    room_bytes: Callable[[], int]  # for calls
    notes_room_bytes: Callable[[], int] = lambda: 1 << 30  # for control records
    why_full: Callable[[], str] = lambda: "the log has no room until a snapshot lets its oldest segment go"


class PipelineSet:
    """See the module. `ended`: all callers were answered `outcome_unknown`; what comes afterwards has no caller."""

    def __init__(
        self,
        pipelines: Iterable[PartitionPipeline],
        deliver: Deliver,
        log: LogControls,
        *,
        now: Callable[[], float],
        proposes: bool = True,
    ) -> None:
        self.lock = threading.RLock()
        self.by_partition = {pipeline.partition: pipeline for pipeline in pipelines}
        self.busy: dict[int, PartitionPipeline] = {}  # with something for the log; a superset, in order of arrival
        self.log = log
        self.now = now
        self.ended = False
        self.proposes = proposes  # this node numbers entries: it votes alone, or leads
        self._deliver = deliver

    def pump(self, pipeline: PartitionPipeline, now: float = 0.0) -> None:
        """Gives the site what it may have."""
        while pipeline.unsent and (item := pipeline.next_to_send()) is not None:
            if isinstance(item, Flight):
                item.send(now or self.now())
                self._deliver.batch(pipeline.partition, item.record, item.index)
            else:
                self.send_read(item)

    def send_read(self, read: Read) -> None:
        """Gives a read to its site, after everything that the site was given."""
        self._deliver.read(read.partition, read.ident, read.calls)

    def pass_reads(self, pipeline: PartitionPipeline) -> None:
        """Reads that nothing is closed before move on; one that has nothing before it at all goes to the site."""
        closed = pipeline.closed
        while closed and not isinstance(closed[0], Pending):
            pipeline.unsent.append(closed[0])
            closed.popleft()
        self.pump(pipeline)

    def pass_step(self, flight: Flight) -> None:
        """A multi-partition call is done on the first partition: the others get it."""
        if flight.step is not None and flight.step.finish():
            for pipeline in self.by_partition.values():
                self.pump(pipeline)

    def wake_log(self) -> None:
        """A wedged log is reported to all callers by `failed`, so waking it raises nothing."""
        with contextlib.suppress(WalError):
            self.log.kick()

    def set_proposes(self, proposes: bool) -> None:
        """Whether this node numbers entries from now on."""
        self.proposes = proposes

    def end(self) -> bool:
        """Nothing is answered from now on; False if that is so already."""
        before, self.ended = self.ended, True
        return not before


def group_calls(calls: Sequence[CallRow]) -> Mapping[int, Sequence[CallRow]]:
    """Each partition's, in their order; usually all are of one."""
    if len({call[0] for call in calls}) == 1:
        return {calls[0][0]: calls}
    found = defaultdict[int, list[CallRow]](list)
    for call in calls:
        found[call[0]].append(call)
    return found
