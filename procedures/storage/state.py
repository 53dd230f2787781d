"""The SQLite file of one partition: user tables, and in the same file how far the log is applied.

The log is the truth, so SQLite need not sync: WAL mode with `synchronous=OFF` leaves a whole file after a killed process,
at its own applied index; after a power loss the file is not trusted at all (snapshot and log rebuild it).

`_cmdlog_meta` holds one row, changed in the same transaction as each batch:

| column | |
|---|---|
| partition, format | whose file this is; another one is refused |
| idx, term, checksum, txn_id | the last applied batch (`Position`) |
| clock | activity clock of the idempotency keys, milliseconds (`procedures.idempotency.key_table`) |

`_cmdlog_keys` and `_cmdlog_sessions` are described in `procedures.idempotency`. `_cmdlog_migrations`, made when the first is
done, names the migrations that the state has, numbered in the order in which they ran. Only one process and one SQLite library
may have the file open for writing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import apsw

from procedures.errors import StateRefused
from procedures.native import open_statements
from procedures.numeric.functions import register_numeric_functions
from procedures.storage.authorizer import Authorizer
from procedures.storage.state_file import connect

PAGE_BYTES: Final = 4096  # the block size of the file systems below; a fixed one keeps snapshot images comparable
FRAME_BYTES: Final = PAGE_BYTES + 24  # of a page in the log, with its header
PAGES_CHECKPOINT: Final = 4000  # 16 MB: a checkpoint costs as much as the distinct pages in it, so larger is cheaper per call
FILE_BYTES_KEPT: Final = 32 << 20  # of a log that is used again; what it grew beyond that goes back
FORMAT = 1
CACHE_KIBIBYTES = 64 << 10
STATEMENTS_CACHED = 1024  # APSW's default of 100 would prepare again in applications with more statements
BUSY_MILLISECONDS = 5000  # a reader that opens the file takes short locks; the site waits for them instead of failing

_META = """CREATE TABLE _cmdlog_meta (
    id INTEGER NOT NULL PRIMARY KEY CHECK (id = 1), format INTEGER NOT NULL, partition INTEGER NOT NULL,
    idx INTEGER NOT NULL, term INTEGER NOT NULL, checksum INTEGER NOT NULL, txn_id INTEGER NOT NULL,
    clock INTEGER NOT NULL) STRICT"""
_KEYS = """CREATE TABLE _cmdlog_keys (
    idx INTEGER NOT NULL PRIMARY KEY, due INTEGER NOT NULL, clock INTEGER NOT NULL, keys BLOB NOT NULL,
    outcomes BLOB) STRICT"""
_SESSIONS = """CREATE TABLE _cmdlog_sessions (
    idx INTEGER NOT NULL PRIMARY KEY, clock INTEGER NOT NULL, stage INTEGER NOT NULL, calls BLOB NOT NULL,
    outcomes BLOB NOT NULL) STRICT"""
_MIGRATIONS = """CREATE TABLE IF NOT EXISTS _cmdlog_migrations (
    name TEXT NOT NULL PRIMARY KEY, idx INTEGER NOT NULL) STRICT, WITHOUT ROWID"""
_UPDATE_META = "UPDATE _cmdlog_meta SET idx = ?, term = ?, checksum = ?, txn_id = ?, clock = ?"


class Position(NamedTuple):
    """The last batch that the state contains; all zeros for a new one."""

    index: int = 0  # type: ignore[assignment] # a tuple has a method of that name
    term: int = 0
    checksum: int = 0
    txn_id: int = 0


class StateLog:
    """SQLite's write-ahead log of the state (https://www.sqlite.org/wal.html): what it holds, and when its pages move.

    One rule: pages move into the state file after a commit, never during one. They move up to the oldest reader's view. SQLite
    starts at the log's beginning again when all of it has moved and no reader is left. Readers that overlap leave no such moment,
    and the log grows for as long as they come. `cmdlog.node.sites.site_executor` makes the moment, `empty` uses it.

    Attributes:
        bytes: of the commits in the log, since SQLite started at its beginning.
        pages_checkpoint: pages from which on they move after each commit.
    """

    __slots__ = ("bytes", "pages_checkpoint")

    def __init__(self, connection: apsw.Connection) -> None:
        """From now on the connection's commits are counted here."""
        self.pages_checkpoint = PAGES_CHECKPOINT
        self.bytes = 0
        connection.pragma("journal_size_limit", FILE_BYTES_KEPT)
        connection.set_wal_hook(self._committed)

    def empty(self, connection: apsw.Connection) -> bool:
        """Moves all pages and, without readers, cuts the file to nothing; whether it did."""
        try:
            connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:  # a reader; or the volume, which the next batch meets as well
            return False
        self.bytes = 0
        return True

    def _committed(self, connection: apsw.Connection, _name: str, pages: int) -> int:
        self.bytes = pages * FRAME_BYTES
        if pages >= self.pages_checkpoint:
            with contextlib.suppress(apsw.Error):  # it is committed; SQLite's own checkpoint ignores errors as well
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_PASSIVE)
        return apsw.SQLITE_OK


class PartitionState:
    """The open state file of one partition; one thread at a time.

    Attributes:
        connection: the site's own, for the executor and for the stepwise backup of a snapshot.
        position: the last applied batch.
        clock: activity clock, milliseconds.
        log: SQLite's write-ahead log of the file.
        statements: that run on the connection without a cursor; None where everything goes through one.
    """

    __slots__ = ("_cursor", "clock", "connection", "guard", "log", "partition", "path", "position", "statements")

    def __init__(self, path: Path, partition: int, connection: apsw.Connection, log: StateLog, guard: Authorizer) -> None:
        self.path = path
        self.partition = partition
        self.connection = connection
        self.log = log
        self._cursor = connection.cursor()
        self.guard = guard
        row = _read_meta(connection, path, partition)
        self.position = Position(*row[:4])
        self.clock: int = row[4]
        self.statements = open_statements(connection)

    @classmethod
    def open(cls, path: str | Path, *, partition: int) -> PartitionState:
        """Opens the state of a partition, making an empty one if there is no file.

        Raises:
            StateRefused: the file is of another partition or format, or no state file.
        """
        path = Path(path)
        try:
            connection = apsw.Connection(str(path), statementcachesize=STATEMENTS_CACHED)
            connection.set_busy_timeout(BUSY_MILLISECONDS)
            _configure(connection)
            log = StateLog(connection)
            register_numeric_functions(connection)
            _create_if_empty(connection, partition)
            guard = Authorizer()
            connection.authorizer = guard
            return cls(path, partition, connection, log, guard)
        except (apsw.NotADBError, apsw.CorruptError) as error:
            raise StateRefused(f"{path} is no readable state file ({error}); rebuild it with `cmdlog recover`") from None

    def save(self, position: Position, clock: int) -> None:
        """Writes the position inside the open transaction; its owner sets `position` and `clock` after COMMIT."""
        self._cursor.execute(_UPDATE_META, (position.index, position.term, position.checksum, position.txn_id, clock))

    def schema(self) -> dict[str, str]:
        """Name → CREATE statement of the user's tables and indexes."""
        return read_schema(self.connection)

    def migrations_done(self) -> list[str]:
        """Names of the migrations that the state has, in the order in which they ran."""
        return read_migrations(self.connection)

    def add_migrations_done(self, names: Sequence[str]) -> None:
        """In the open transaction: these are done, too. Raises: apsw.ConstraintError for one that is already."""
        if names:
            self.connection.execute(_MIGRATIONS)
        for name in names:
            self.connection.execute("INSERT INTO _cmdlog_migrations SELECT ?, count(*) FROM _cmdlog_migrations", (name,))

    def check_keys(self) -> None:
        """Raises StateRefused if a table has no primary key: its rows could not be distinguished in digests."""
        without = rows_of(
            self.connection,
            "SELECT name FROM sqlite_master AS t WHERE type = 'table' "
            "AND NOT EXISTS (SELECT 1 FROM pragma_table_info(t.name) WHERE pk > 0)",
        )
        if without:
            raise StateRefused(f"table {without[0][0]} has no primary key")

    def empty_log(self) -> bool:
        """Moves what the write-ahead log holds, and cuts it to nothing; False while a reader, or a transaction here, needs it."""
        if self.connection.in_transaction:
            return False
        self.connection.set_busy_timeout(0)  # readers may stay for seconds, and calls wait for this thread
        try:
            return self.log.empty(self.connection)
        finally:
            self.connection.set_busy_timeout(BUSY_MILLISECONDS)

    def close(self, *, force: bool = False) -> None:
        """`force`: whatever SQLite says of it, as after a failure of the machine."""
        if self.statements is not None:
            self.statements.close()
        self.connection.close(force)


def _configure(connection: apsw.Connection) -> None:
    for pragma, value in (
        ("page_size", PAGE_BYTES),
        ("journal_mode", "wal"),
        ("synchronous", "off"),
        ("foreign_keys", 1),
        ("cache_size", -CACHE_KIBIBYTES),
        ("temp_store", "memory"),
        ("trusted_schema", 0),
    ):
        connection.pragma(pragma, value)
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)  # "text" in double quotes is a name, never silently a string
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DDL, 0)


def _create_if_empty(connection: apsw.Connection, partition: int) -> None:
    """One transaction, so that a killed process leaves no half-made file."""
    if connection.execute("SELECT count(*) FROM sqlite_master").get != 0:
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        connection.execute(_META)
        connection.execute(_KEYS)
        connection.execute(_SESSIONS)
        connection.execute("INSERT INTO _cmdlog_meta VALUES (1, ?, ?, 0, 0, 0, 0, 0)", (FORMAT, partition))
        connection.execute("COMMIT")
    except apsw.Error:
        if connection.in_transaction:  # a full disk has ended it: a ROLLBACK would fail, and hide why
            connection.execute("ROLLBACK")
        raise


def _read_meta(connection: apsw.Connection, path: Path, partition: int) -> tuple[int, int, int, int, int]:
    try:
        row = rows_of(connection, "SELECT format, partition, idx, term, checksum, txn_id, clock FROM _cmdlog_meta")
    except apsw.SQLError:
        raise StateRefused(f"{path} is a SQLite file, but no state of a partition") from None
    if len(row) != 1:
        raise StateRefused(f"{path} holds {len(row)} positions instead of one")
    (found_format, found_partition, *rest) = row[0]
    if found_format != FORMAT:
        raise StateRefused(f"{path} has format {found_format}, this version reads {FORMAT}")
    if found_partition != partition:
        raise StateRefused(f"{path} is the state of partition {found_partition}, not of {partition}")
    index, term, checksum, txn_id, clock = rest
    return index, term, checksum, txn_id, clock


def rows_of(connection: apsw.Connection, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
    """All rows of a statement of ours."""
    return connection.execute(sql, values).fetchall()


def read_schema(connection: apsw.Connection) -> dict[str, str]:
    """Name → CREATE statement of the user's tables and indexes in a state file."""
    sql = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL AND substr(name, 1, 8) <> '_cmdlog_' ORDER BY name"
    return {str(name): str(text) for name, text in rows_of(connection, sql)}


def read_migrations(connection: apsw.Connection) -> list[str]:
    """Names of the migrations that a state file has been through, in the order in which they ran."""
    if not rows_of(connection, "SELECT 1 FROM sqlite_master WHERE name = '_cmdlog_migrations'"):
        return []
    return [str(name) for (name,) in rows_of(connection, "SELECT name FROM _cmdlog_migrations ORDER BY idx")]


def open_reader(path: str | Path) -> tuple[apsw.Connection, Authorizer]:
    """A read-only connection to a state file that a site may be writing; each read transaction sees one frozen state."""
    connection = connect(path, statements_cached=STATEMENTS_CACHED)
    connection.set_busy_timeout(BUSY_MILLISECONDS)
    connection.pragma("query_only", 1)
    connection.pragma("cache_size", -CACHE_KIBIBYTES)
    connection.config(apsw.SQLITE_DBCONFIG_DQS_DML, 0)
    register_numeric_functions(connection)
    guard = Authorizer()
    connection.authorizer = guard
    return connection, guard
