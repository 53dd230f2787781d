"""The switch from one version of the code to the next, between two calls and without a pause.

One rule: a call runs the version that it was bound to when it was placed. What waits keeps the version that ran until then; what
is placed later is bound to the next one, or is not placed at all. Both are decided under the lock of the pipelines.
"""

from __future__ import annotations

from collections.abc import Callable

from cmdlog.node.outcome import CodeChanged, MigratingRefusal
from cmdlog.node.sequencing.admission import Admission
from cmdlog.node.sequencing.block_builder import Closing
from cmdlog.node.sequencing.pipeline_set import PipelineSet
from cmdlog.wal.ids import MULTI_PARTITION, PARTITION_BITS


class CodeSwitch:
    """`check_bound` is called under the lock, `switch_code` takes it."""

    def __init__(self, pipelines: PipelineSet, closing: Closing, admission: Admission) -> None:
        self._pipelines, self._closing, self._admission = pipelines, closing, admission

    @property
    def version(self) -> int:
        """The version that calls run that are placed now."""
        return self._closing.catalog

    def check_bound(self, catalog: int) -> None:
        """Whether a call that was bound to this version may be placed; 0 is any. Raises: CodeChanged."""
        if catalog and catalog != self._closing.catalog:
            raise CodeChanged(f"the call was bound to version {catalog} of the code, version {self._closing.catalog} runs")

    def switch_code(self, version: int, bind: Callable[[], None]) -> None:
        """Calls that are placed from now on run this version. `bind` is called under the lock: it binds calls to that code."""
        with self._pipelines.lock:
            for pipeline in self._pipelines.by_partition.values():
                pipeline.bind_waiting(self._closing.catalog)
            self._closing.run_catalog(version)
            bind()

    def hold_calls(self) -> None:
        """Calls are refused while tables change, but for those that were placed before.

        Raises: CallRefused, if calls are refused for another reason.
        """
        with self._pipelines.lock:
            if not isinstance(self._admission.refusal, MigratingRefusal):
                self._admission.raise_refusal()
            self._admission.refuse(MigratingRefusal("the tables change; the call was not logged"))

    def accept_calls(self) -> None:
        """The change is over. What refuses calls since, as the node's end, stays."""
        with self._pipelines.lock:
            if isinstance(self._admission.refusal, MigratingRefusal):
                self._admission.refuse(None)

    def reserve_txn(self) -> int:
        """A TxnId after all that were given, before all that will be."""
        with self._pipelines.lock:
            return self._closing.reserve_tick() << PARTITION_BITS | MULTI_PARTITION
