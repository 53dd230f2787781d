"""Statements measured where they run: inside a call, on a site's own executor.

One rule: the first call warms what is compiled once, and only what follows is measured, unless the first is what is asked for.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from procedures import Database
from procedures.execution.executor import Executor, Invocations
from procedures.idempotency.request_history import VersionFacts
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState


def run_twice(db: Database, before: Callable[[], None]) -> None:
    """Calls the only procedure with 0, then with 1; `before` each of them."""
    (procedure,) = db.procedures
    run_calls(db, procedure, calls=2, before=before)


def run_calls(db: Database, procedure: str, *, calls: int, before: Callable[[], None], partitions: int | None = None) -> None:
    """Calls a procedure with 0, 1, 2, … on an empty state, each in a batch of its own; `before` each of them.

    Args:
        partitions: how many there are, of which this is the first; None: what belongs to others is not judged.
    """
    number = [each.name for each in db.procedure_list].index(procedure)
    with tempfile.TemporaryDirectory() as folder:
        state = PartitionState.open(Path(folder) / "0.db", partition=0)
        executor = Executor(
            state,
            lambda _: db,
            digest_rows=True,
            millis_of=lambda txn: txn >> 21,
            progress=None,
            facts=lambda _: VersionFacts(partitions),
        )
        executor.apply_schema(index=1, term=1, checksum=0, txn_id=1, change=StatedChange(tuple(db.schema_statements())))
        for call in range(calls):
            before()
            batch = Invocations(2 + call, 1, 0, catalog=1, txn_ids=[2 + call], procedures=[number], params=[[call]], keys=None)
            if executor.apply(batch).bodies != [b"null"]:
                raise SystemExit("the procedure failed")
        state.close()
