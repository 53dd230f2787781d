"""Statements measured where they run: inside a call, on a site's own executor.

One rule: the first call warms what is compiled once, and only the second is measured.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from procedures import Database
from procedures.execution.executor import Executor, Invocations
from procedures.storage.state import PartitionState


def run_twice(db: Database, before: Callable[[], None]) -> None:
    """Calls the procedure with number 0 with 0, then with 1; `before` each of them."""
    with tempfile.TemporaryDirectory() as folder:
        state = PartitionState.open(Path(folder) / "0.db", partition=0)
        executor = Executor(state, lambda _: db, digest_rows=True, millis_of=lambda txn: txn >> 21, progress=None)
        executor.apply_schema(index=1, term=1, checksum=0, txn_id=1, statements=db.schema_statements())
        for call in (0, 1):
            before()
            batch = Invocations(2 + call, 1, 0, catalog=1, txn_ids=[2 + call], procedures=[0], params=[[call]], keys=None)
            if executor.apply(batch).bodies != [b"null"]:
                raise SystemExit("the procedure failed")
