"""Whether the pages of a state file are sound: `python -m replay.state.page_check DIRECTORY PARTITION…`, run by a node.

A killed node leaves its state files without a seal, since they changed to the end; at rest a flipped bit cannot be distinguished
from a write. SQLite's `quick_check` finds what breaks the structure: pages that are not a b-tree, records that are cut, rows out
of order. It does not find a value that changed within a record; a drill, which compares digests of rows, does.

One rule: it only reads, table by table, and it leaves when the site shuts the gate before the readers, so that it never keeps the
write-ahead log from being emptied; it begins that table again afterwards. It runs at low priority. Each partition yields a line
of JSON: `partition`, and `problem`, "" when there is none.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import apsw
import orjson

from cmdlog.whole_line_stdout import answer
from procedures.storage.state import BUSY_MILLISECONDS
from procedures.storage.state_file import connect
from replay.state.state_lock import is_shut
from replay.state.trust import state_path
from snapshot.background_io import Breath, make_way

STEPS_OF_BREATH: Final = 1000  # of SQLite's machine, between two looks at the clock
GATE_LOOK_S: Final = 0.01
_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY rootpage"


def page_problem(path: str, rest: Callable[[], object] = lambda: None) -> str:
    """The first problem that `quick_check` finds; "" when it finds none. `rest` is called repeatedly."""

    def rest_or_leave() -> bool:
        rest()
        return is_shut(path)

    try:
        connection = connect(path)
        try:
            connection.set_busy_timeout(BUSY_MILLISECONDS)
            tables = [("sqlite_schema",), *connection.execute(_TABLES).fetchall()]
            connection.set_progress_handler(rest_or_leave, STEPS_OF_BREATH)
            for (table,) in tables:
                found = _quick_check(connection, str(table).replace('"', '""'), path)
                if found != ("ok",):
                    return f"table {table}: {_in_one_line(found[0] if found else 'no answer')}"
        finally:
            connection.close()
    except (apsw.CorruptError, apsw.NotADBError) as error:
        return str(error)
    return ""


def _quick_check(connection: apsw.Connection, name: str, path: str) -> tuple[Any, ...] | None:
    """Again, after as long a pause, when the site wanted its readers gone."""
    while True:
        began = time.monotonic()
        try:
            return connection.execute(f'PRAGMA quick_check("{name}")').fetchone()
        except apsw.InterruptError:
            time.sleep(time.monotonic() - began)
        while is_shut(path):
            time.sleep(GATE_LOOK_S)


def _in_one_line(found: object) -> str:
    lines = [line for line in str(found).splitlines() if not line.startswith("***")]
    return ", ".join(lines[:3])


def main() -> int:
    """Entry point of the process."""
    make_way(os.SCHED_IDLE)
    directory, *partitions = sys.argv[1:]
    for partition in map(int, partitions):
        problem = page_problem(state_path(directory, partition), Breath())
        answer(orjson.dumps({"partition": partition, "problem": problem}, option=orjson.OPT_APPEND_NEWLINE))
    return 0


if __name__ == "__main__":
    sys.exit(main())
