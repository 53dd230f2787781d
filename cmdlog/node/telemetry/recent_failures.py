"""Traces of procedures that raised, for as long as somebody may ask: by the transaction that decided, the newest ones.

One rule: what is kept here is for people. An outcome is complete without it, and after a restart it is gone.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cmdlog.node.outcome import CallOutcome
from procedures.execution.failure_trace import FailureTrace
from procedures.idempotency.known_outcome import Status

TRACES_KEPT: Final = 1024  # at most 8 MB, as a text has at most 8,000 characters


class RecentFailures:
    """Those of one node. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: dict[int, FailureTrace] = {}  # by transaction, the oldest first

    def add(self, traces: Sequence[FailureTrace]) -> None:
        """A site has run these calls."""
        if not traces:
            return
        with self._lock:
            self._traces.update((trace.txn_id, trace) for trace in traces)
            while len(self._traces) > TRACES_KEPT:
                del self._traces[next(iter(self._traces))]

    def trace_of(self, outcome: CallOutcome) -> FailureTrace | None:
        """The trace of a call that raised, also when its outcome is repeated under its key; None when there is none (any more).

        An exception of this process is in it the first time alone: its caller gets it, and nobody else keeps it alive.
        """
        if outcome.status != Status.FAILED:
            return None
        if outcome.trace is not None:
            return outcome.trace
        with self._lock:
            found = self._traces.get(outcome.txn_id)
            if found is not None and found.raised is not None:
                self._traces[outcome.txn_id] = replace(found, raised=None)
        return found
