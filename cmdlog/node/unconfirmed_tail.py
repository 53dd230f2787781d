"""The last entries before a crash, not known to have been executed: run by watched sites before any call is accepted.

One rule: a start must come through whatever call ended the run before. A call that hangs, or that ends its process, is in the log
before it is executed, and a replay would hang or end at it again, at every start. So the start replays what is known to have been
executed, and leaves the rest to site processes of its own, with the same watchdog and the same logged skips as ever.
"""

from __future__ import annotations

import queue
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cmdlog.node.settings import Settings
from cmdlog.node.site_events import SiteEvents
from cmdlog.node.sites.frames import BatchAnswer
from cmdlog.node.sites.site_faults import SiteFault
from cmdlog.node.sites.supervisor import ProcessSites, SiteOwner
from cmdlog.wal.errors import DiskFull, WalError, WriteFailed
from cmdlog.wal.format.batch import decode_batch
from cmdlog.wal.format.record import Record, RecordKind
from cmdlog.wal.ids import MULTI_PARTITION, txn_partition
from replay.plan.node_plan import Plan

_ERRORS: Final[Mapping[str, type[WalError]]] = {"disk_full": DiskFull, "io": WriteFailed}


def catch_up(desk: SiteEvents, left: Mapping[int, Sequence[Record]], settings: Settings) -> None:
    """Brings the states of these partitions to the end of `left`. The log must be running: it takes the skips.

    Raises: RuntimeError when sites do not start; WalError when they cannot run, or the log takes no skip.
    """
    sites = ProcessSites(
        [sorted(left)],
        call_timeout_s=settings.call_timeout_s,
        restarts_max=settings.site_restarts_max,
        start_timeout_s=settings.start_timeout_s,
    )
    owner = _Owner(desk, sites, left, settings.partitions)
    positions = sites.start(owner)
    try:
        sites.attach(None)
        owner.site_up(positions)
        owner.wait()
    finally:
        sites.close()


def skips_behind(plan: Plan) -> list[tuple[int, int, int]]:
    """(partition, index, position) of calls that are not run, in entries that the replay leaves to the sites."""
    skips = [(part.partition, index, at) for part in plan.partitions for index, every in part.skips.items() for at in every]
    ends = {part.partition: part.to_index for part in plan.partitions}
    return [skip for skip in skips if skip[1] > ends[skip[0]]]


class _Owner(SiteOwner):
    """In the node's place: feeds the entries, and a successor from where it starts. Nothing else is asked of these sites."""

    def __init__(self, desk: SiteEvents, sites: ProcessSites, left: Mapping[int, Sequence[Record]], partitions: int) -> None:
        self._desk, self._sites, self._left, self._partitions = desk, sites, left, partitions
        self._open = {partition: entries[-1].index for partition, entries in left.items()}  # where each is at its end
        self._ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def wait(self) -> None:
        """Until every partition is at its end, or none can get there."""
        error = self._ended.get()
        if error is not None:
            raise error

    def site_up(self, positions: dict[int, int]) -> None:
        for partition, position in sorted(positions.items()):
            self._reached(partition, position)
            for record in self._left[partition]:
                if record.index > position:
                    self._sites.batch(partition, record.raw, record.index)

    def applied(self, partition: int, index: int, answer: BatchAnswer | None) -> None:
        self._reached(partition, index)

    def _reached(self, partition: int, index: int) -> None:
        if self._open.get(partition, index + 1) <= index:
            del self._open[partition]
            if not self._open:
                self._ended.put(None)

    def hello(self, partitions: Sequence[int]) -> dict[str, Any]:
        return self._desk.hello(partitions)

    def skip(self, fault: SiteFault) -> None:
        self._desk.skip(fault, self._places(fault))

    def _places(self, fault: SiteFault) -> list[tuple[int, int]]:
        """Where the call must be skipped: a multi-partition call on all partitions, or on none if any has executed it."""
        txns: dict[tuple[int, int], int] = {}
        txns |= {
            (p, r.index): decode_batch(r).first_txn for p, of in self._left.items() for r in of if r.kind is RecordKind.BATCH
        }
        txn = txns[fault.partition or 0, fault.index]
        places = sorted(place for place, first in txns.items() if first == txn)
        if txn_partition(txn) != MULTI_PARTITION:
            return places
        return places if len(places) == self._partitions and not any(self._desk.has_applied(*place) for place in places) else []

    def broken(self, error: BaseException) -> None:
        self._ended.put(error)

    def refuse_calls(self, partitions: Sequence[int], fault: SiteFault | None) -> None:
        """No call was accepted yet: the start fails with the reason, and is repeated when that is gone."""
        if fault is not None:
            self._ended.put(_ERRORS.get(fault.kind, WalError)(f"the site cannot run: {fault.message}"))

    def free_bytes(self) -> int:
        return self._desk.free_bytes()
