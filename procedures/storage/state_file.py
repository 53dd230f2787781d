"""Connections to SQLite files that may come from anywhere: of a copied directory, a backup, another machine's snapshot.

One rule: what the file's schema says is data. A function or a virtual table that could do harm is not called because a view, a
trigger, a CHECK or a generated column of the file names it (`trusted_schema`, https://www.sqlite.org/security.html).
"""

from __future__ import annotations

from pathlib import Path

import apsw


def connect(path: str | Path, flags: int = apsw.SQLITE_OPEN_READONLY, *, statements_cached: int = 100) -> apsw.Connection:
    """A connection to the file. Raises: apsw.Error."""
    connection = apsw.Connection(str(path), flags=flags, statementcachesize=statements_cached)
    connection.config(apsw.SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0)
    return connection
