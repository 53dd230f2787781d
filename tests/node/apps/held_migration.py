"""An application whose migration waits for its end at a run that a test chooses: `before` it, and `after` it.

GATE names a folder, or nothing. Each run of the function on a partition adds a line to its file `runs`; the runs that its file
`held` lists note themselves there as `at-N` and never return.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Column, Integer, Text, bindparam, insert, select, update

from procedures import Database, Transaction

GATE: Final = "TESTS_MIGRATION_GATE"


def pass_gate(partition: int) -> None:
    """Counts the run, which may be one that is held."""
    if not (folder := os.environ.get(GATE)):
        return
    with open(f"{folder}/runs", "ab", buffering=0) as runs:
        line = runs.write(b"%d\n" % partition)
        number = runs.tell() // line  # two partitions may run at once: each gets the end of its own line
    if str(number) in Path(folder, "held").read_text().split():
        Path(folder, f"at-{number}").write_text(str(os.getpid()))
        while True:
            signal.pause()


def _application(*, migrated: bool) -> Database:
    made = Database("held")
    more = [Column("note", Text, nullable=False, server_default="")] if migrated else []
    number, count = Column("id", Integer, primary_key=True), Column("n", Integer, nullable=False)
    tally = made.table("tally", number, count, *more, partition_by="id")
    new, every = insert(tally).values(id=bindparam("id_"), n=1), select(tally).order_by(tally.c.id)
    if migrated:

        @made.migration("0001_double")
        def double(tx: Transaction, op: Any) -> None:
            op.add_column("tally", Column("note", Text, nullable=False, server_default=""))
            tx.execute(update(tally).values(n=tally.c.n * 2, note="doubled"))
            pass_gate(tx.partition)

    @made.procedure(partition_by="id")
    def put(tx: Transaction, id: int) -> int:  # noqa: A002 - a column's name
        """A new row."""
        tx.execute(new, id_=id)
        return id

    @made.procedure(read_only=True)
    def show(tx: Transaction) -> list[list[str]]:
        """All rows, column by column as declared."""
        return [[str(value) for value in row] for row in tx.execute(every)]

    return made


before, after = (_application(migrated=migrated) for migrated in (False, True))
