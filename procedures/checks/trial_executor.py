"""The executor of a run of `check`, on a state of its own.

One rule: the run's environment decides what two runs differ in; the code runs as a version does that has no record yet.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from procedures.declaration.database import Database
from procedures.execution.executor import Executor
from procedures.idempotency.request_history import VersionFacts
from procedures.storage.state import PartitionState

REVERSE: Final = "CMDLOG_CHECK_REVERSE"  # set for a run: rows come the other way round when no ORDER BY asks for an order
MILLIS_BITS: Final = 21


@contextlib.contextmanager
def trial_executor(database: Database, path: Path, *, partition: int) -> Iterator[tuple[Executor, PartitionState]]:
    """The executor and the state of that path, closed at the end. Raises: StateRefused."""
    with contextlib.closing(PartitionState.open(path, partition=partition)) as state:
        state.connection.pragma("reverse_unordered_selects", int(os.environ.get(REVERSE, "0")))
        executor = Executor(
            state,
            lambda _version: database,
            digest_rows=True,
            millis_of=lambda txn: txn >> MILLIS_BITS,
            progress=None,
            facts=lambda _version: VersionFacts(),
        )
        try:
            yield executor, state
        finally:
            executor.close()
