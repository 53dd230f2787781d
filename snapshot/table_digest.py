"""The content of a state as numbers: rows and a digest of every table of an image or of a closed state file.

One rule: the digest follows from the rows alone, not from pages, free space or the order of insertion, so that two replicas, or a
snapshot and a replay, compare equal exactly when their tables are equal. The idempotency keys are tables too and take part.

A table's digest is SHA-256 over its rows in key order, each as the UTF-8 text of Python's `repr` of its values (which
distinguishes 1 from 1.0 and '1', and -0.0 from 0.0). Reading is by chunks: memory does not grow with the table.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final
from urllib.parse import quote

import apsw

from procedures.storage.state_file import connect

ROWS_PER_CHUNK: Final = 100  # a millisecond between two steps of SQLite, where who must may rest
_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name"
_SCHEMA: Final = "SELECT sql FROM sqlite_schema WHERE sql IS NOT NULL AND name NOT LIKE '\\_cmdlog\\_%' ESCAPE '\\' ORDER BY name"


@dataclass(frozen=True, slots=True)
class TableDigest:
    rows: int
    sha256: str


def open_image(path: str | Path) -> apsw.Connection:
    """A read-only connection to a file that no one writes: no lock is taken and no file is made beside it."""
    uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
    return connect(uri, apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI)


def table_digests(connection: apsw.Connection) -> dict[str, TableDigest]:
    """Name -> rows and digest, of every table in ascending order of name."""
    names = [str(row[0]) for row in connection.execute(_TABLES)]
    return {name: table_digest(connection, name) for name in names}


def table_digest(connection: apsw.Connection, table: str) -> TableDigest:
    """Rows and digest of one table."""
    columns = connection.execute("SELECT name, pk FROM pragma_table_info(?)", (table,)).fetchall()
    keys = [_quoted(str(name)) for name, pk in sorted(columns, key=lambda column: int(str(column[1]))) if pk]
    order = f" ORDER BY {', '.join(keys)}" if keys else ""
    cursor = connection.execute(f"SELECT * FROM {_quoted(table)}{order}")  # noqa: S608 - the name is quoted
    digest, rows = hashlib.sha256(), 0
    while chunk := list(islice(cursor, ROWS_PER_CHUNK)):
        digest.update("".join(map(repr, chunk)).encode("utf-8", "surrogatepass"))
        rows += len(chunk)
    return TableDigest(rows, digest.hexdigest())


def schema_of(connection: apsw.Connection) -> list[str]:
    """The application's tables and indexes as SQL, by name."""
    return [str(row[0]) for row in connection.execute(_SCHEMA)]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
