"""Ad-hoc queries read, and do nothing else, within their limits."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from cmdlog.node.outcome import NotReady
from cmdlog.node.queries.query import QueryLimit, QueryLimits, QueryRefused, QueryResult, run_query
from cmdlog.procedure_calls import QueryParameters
from procedures.storage.state import PartitionState
from tests.waiting import PATIENCE_S


@pytest.fixture
def paths(tmp_path: Path) -> dict[int, str]:
    """Two state files with a table of five and of no rows."""
    found = {}
    for partition, count in ((0, 5), (1, 0)):
        path = tmp_path / f"p{partition}.sqlite"
        state = PartitionState.open(path, partition=partition)
        state.connection.execute("CREATE TABLE items (id INTEGER NOT NULL PRIMARY KEY, name TEXT, data BLOB)")
        for n in range(count):
            state.connection.execute("INSERT INTO items VALUES (?, ?, ?)", (n, f"n{n}", bytes([n])))
        state.connection.execute("UPDATE _cmdlog_meta SET txn_id = ?", (100 + partition,))
        state.close()
        found[partition] = str(path)
    return found


def run(
    paths: dict[int, str],
    sql: str,
    params: QueryParameters = (),
    *,
    rows_max: int = 100,
    timeout_s: float = 5.0,
    wal_bytes_max: int = 1 << 30,
    bytes_max: int = 1 << 24,
) -> QueryResult:
    """A query within wide limits."""
    return run_query(paths, sql, params, QueryLimits(rows_max, bytes_max, timeout_s, wal_bytes_max))


def test_rows_of_all_partitions_with_their_positions(paths: dict[int, str]) -> None:
    """Rows are concatenated in partition order, and each partition says as of which transaction it was read."""
    result = run(paths, "SELECT id, name AS title FROM items WHERE id >= ? ORDER BY id", [3])
    assert result.columns == ["id", "title"]
    assert list(result.rows) == [(3, "n3"), (4, "n4")]
    assert result.as_of == {0: 100, 1: 101}


@pytest.mark.parametrize("partitions", [(0,), (1,), (0, 1)])
def test_columns_are_named_without_rows_too(paths: dict[int, str], partitions: tuple[int, ...]) -> None:
    """An empty result still says which columns it would have."""
    result = run({p: paths[p] for p in partitions}, "SELECT id, name FROM items WHERE id > 99")
    assert (result.columns, list(result.rows)) == (["id", "name"], [])


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO items VALUES (9, 'x', NULL)",
        "UPDATE items SET name = 'x'",
        "DELETE FROM items",
        "REPLACE INTO items VALUES (1, 'x', NULL)",
        "INSERT INTO items SELECT * FROM items RETURNING id",
        "WITH gone AS (SELECT 1 AS id) DELETE FROM items WHERE id IN (SELECT id FROM gone) RETURNING id",
        "CREATE TABLE more (id INTEGER PRIMARY KEY)",
        "CREATE TEMP TABLE more (id INTEGER PRIMARY KEY)",
        "DROP TABLE items",
        "ALTER TABLE items RENAME TO others",
        "CREATE VIEW v AS SELECT 1",
        "PRAGMA query_only = 0",
        "PRAGMA journal_mode",
        "PRAGMA table_xinfo(items)",
        "PRAGMA table_info(items)",
        "SELECT * FROM pragma_table_xinfo('items')",
        "ATTACH '/tmp/elsewhere' AS other",
        "DETACH main",
        "VACUUM",
        "VACUUM INTO '/tmp/elsewhere'",
        "REINDEX",
        "ANALYZE",
        "BEGIN",
        "COMMIT",
        "ROLLBACK",
        "SAVEPOINT x",
        "RELEASE x",
        "EXPLAIN SELECT 1",
        "EXPLAIN DELETE FROM items",
        "SELECT 1; SELECT 2",
        "SELECT 1; DELETE FROM items",
        "SELECT 1 WHERE 0; SELECT 2",
        "",
        ";",
        "-- nothing",
        "nonsense",
        "SELECT * FROM nowhere",
        "SELECT * FROM _cmdlog_meta",
        "SELECT txn_id FROM _cmdlog_meta",
        "SELECT * FROM _cmdlog_keys",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM sqlite_schema",
        "SELECT * FROM main.sqlite_master",
        "SELECT * FROM sqlite_temp_master",
        "SELECT load_extension('x')",
        "SELECT readfile('/etc/passwd')",
        "SELECT randomblob(10)",
        "SELECT 1\0; DELETE FROM items",
    ],
)
def test_only_one_select_runs(paths: dict[int, str], sql: str) -> None:
    """Writes in every disguise, PRAGMA, ATTACH, transaction control, internal tables and second statements are refused."""
    before = {p: Path(path).read_bytes() for p, path in paths.items()}
    with pytest.raises(QueryRefused) as refused:
        run(paths, sql)
    assert (refused.value.code, refused.value.problems) == ("invalid_parameters", [("sql", str(refused.value))])
    assert {p: Path(path).read_bytes() for p, path in paths.items()} == before
    assert len(run(paths, "SELECT * FROM items").rows) == 5


@pytest.mark.parametrize(
    "sql", ["SELECT 1 AS one", "VALUES (1)", "SELECT 1;", "/* c */ SELECT 1 -- c", "WITH x AS (SELECT 1) SELECT * FROM x"]
)
def test_a_select_may_look_different(paths: dict[int, str], sql: str) -> None:
    """Comments, a closing semicolon, VALUES and WITH are SELECTs."""
    assert list(run({0: paths[0]}, sql).rows) == [(1,)]


@pytest.mark.parametrize("params", [[], [1, 2], [2**63], [-(2**63) - 1], [[1]], [{}], ["\ud800"], [object()]])
def test_parameters_that_do_not_bind_are_refused(paths: dict[int, str], params: list[Any]) -> None:
    """Too few, too many, too large and values of no SQL type are the caller's error."""
    with pytest.raises(QueryRefused):
        run(paths, "SELECT ? + id FROM items", params)


@pytest.mark.parametrize("value", [None, 0, -(2**63), 2**63 - 1, 1.5, "it's; DROP TABLE items", b"\0\xff", True])
def test_parameters_are_bound_not_pasted(paths: dict[int, str], value: Any) -> None:
    """Every scalar comes back as it was given."""
    assert list(run({0: paths[0]}, "SELECT ?", [value]).rows) == [(value,)]


def test_parameters_have_names(paths: dict[int, str]) -> None:
    """Any of SQLite's signs; one name may come twice. Each name needs a value, and each value a name."""
    named = "SELECT id FROM items WHERE id IN (:a, @b, $c) OR id = :a"
    assert list(run(paths, named, {"a": 1, "b": 3, "c": 4}).rows) == [(1,), (3,), (4,)]
    with pytest.raises(QueryRefused, match="has a parameter c, and params has no value for it"):
        run(paths, named, {"a": 1, "b": 3})
    with pytest.raises(QueryRefused, match="has no parameter d; it has a, b, c"):
        run(paths, named, {"a": 1, "b": 3, "c": 4, "d": 5})
    with pytest.raises(QueryRefused, match="has no name"):
        run(paths, "SELECT ?", {"a": 1})


def test_more_rows_than_allowed_are_refused_over_all_partitions(paths: dict[int, str]) -> None:
    """The row limit counts the partitions together and is inclusive."""
    assert len(run(paths, "SELECT id FROM items", rows_max=5).rows) == 5
    with pytest.raises(QueryLimit, match="query_rows_max=4"):
        run(paths, "SELECT id FROM items", rows_max=4)
    both = {0: paths[0], 1: paths[0]}
    with pytest.raises(QueryLimit, match="query_rows_max=9"):
        run(both, "SELECT id FROM items", rows_max=9)


def test_a_query_without_end_ends(paths: dict[int, str]) -> None:
    """A statement that would run for ever is stopped at the time limit, with the setting's name."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(QueryLimit, match=r"query_timeout_s=0\.05"):
        run(paths, endless, timeout_s=0.05)


def test_a_result_has_a_size_limit(paths: dict[int, str]) -> None:
    """Neither one value nor all values together may fill the memory; small values count, too."""
    with pytest.raises(QueryLimit, match="query_bytes_max=100000"):
        run(paths, "SELECT zeroblob(200000)", bytes_max=100_000)
    with pytest.raises(QueryLimit, match="query_bytes_max=100000"):
        run(paths, "SELECT zeroblob(30000) FROM items", bytes_max=100_000)
    with pytest.raises(QueryLimit, match="query_bytes_max=1000"):
        run({0: paths[0]}, "SELECT 1,2,3,4,5,6,7,8,9 FROM items", bytes_max=1000)


def test_an_infinity_is_refused(paths: dict[int, str]) -> None:
    """JSON has none, and null would be another value."""
    for sql in ("SELECT 9e999", "SELECT -9e999", "SELECT max(id) * 1e308 * 1e308 FROM items"):
        with pytest.raises(QueryRefused, match="infinity"):
            run({0: paths[0]}, sql)


def test_text_that_is_no_unicode_is_refused(paths: dict[int, str]) -> None:
    """Bytes cast to text need not be UTF-8; the answer could not hold them."""
    with pytest.raises(QueryRefused):
        run(paths, "SELECT CAST(x'ff' AS TEXT)")


def test_a_refusal_says_what_is_not_allowed(paths: dict[int, str]) -> None:
    """The authorizer's reason, not just `not authorized`."""
    with pytest.raises(QueryRefused, match="_cmdlog_meta is not for procedures"):
        run(paths, "SELECT * FROM _cmdlog_meta")
    with pytest.raises(QueryRefused, match="randomblob"):
        run(paths, "SELECT randomblob(10)")


def test_a_query_is_ended_when_nobody_waits(paths: dict[int, str]) -> None:
    """Whoever runs it may say so at any time."""
    with pytest.raises(QueryLimit, match="cancelled"):
        run_query(paths, ENDLESS, (), QueryLimits(1, 1000, 60.0, 1 << 30), cancelled=lambda: True)


def test_a_partition_without_a_file_is_not_the_callers_fault(paths: dict[int, str], tmp_path: Path) -> None:
    """A missing state file is named, not made."""
    with pytest.raises(NotReady, match="partition 7"):
        run({7: str(tmp_path / "missing.sqlite")}, "SELECT 1")
    assert not (tmp_path / "missing.sqlite").exists()


def test_a_damaged_file_is_not_the_callers_fault(tmp_path: Path) -> None:
    """Nor is one that is no database."""
    (tmp_path / "p0.sqlite").write_bytes(b"no database at all, " * 500)
    with pytest.raises(NotReady, match="partition 0"):
        run({0: str(tmp_path / "p0.sqlite")}, "SELECT 1")


ENDLESS = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


def test_a_reader_that_lets_the_write_ahead_file_grow_is_cancelled(paths: dict[int, str]) -> None:
    """It pins the file, whatever its own time limit says; one that was long before it came is not its doing."""
    state = PartitionState.open(paths[0], partition=0)
    state.connection.execute("CREATE TABLE bulk (id INTEGER NOT NULL PRIMARY KEY, data BLOB)")
    told: list[str] = []

    def read() -> None:
        with pytest.raises(QueryLimit) as caught:
            run({0: paths[0]}, ENDLESS, timeout_s=PATIENCE_S, wal_bytes_max=1 << 20)
        told.append(str(caught.value))

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(10_000):
        state.connection.execute("INSERT INTO bulk VALUES (?, zeroblob(8000))", (number,))
        if not reader.is_alive():
            break
    reader.join(PATIENCE_S)
    assert "wal_bytes_max=1048576" in told[0]
    assert run({0: paths[0]}, "SELECT count(*) FROM items", wal_bytes_max=1).rows == [(5,)]
    state.close()
