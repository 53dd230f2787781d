"""Differences between states: against a plain model over random tables, and as an operator meets them."""

from __future__ import annotations

import random
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import apsw
import pyarrow.parquet as pq
import pytest

from replay.diff.diff import DiffRefused, RowChange, TableDiff, diff
from replay.diff.parquet import parquet_files
from replay.diff.state_reader import States

Row = tuple[Any, ...]
MODEL_SEEDS = 60
NUMBERS = (
    "WITH RECURSIVE s(k) AS (SELECT ? UNION ALL SELECT k + 2 FROM s WHERE k < 40000) INSERT INTO t SELECT k, 1000 + k FROM s"
)
VALUES: list[Any] = [None, 0, 1, -7, 2**62, 0.5, 1.0, -1e300, "", "a", "B", "ä", "z\U0001f600", b"", b"a", b"\xff\x00", "A"]
KEYS: list[Any] = [value for value in VALUES if value is not None]


def states(*partitions: apsw.Connection) -> States:
    """Connections as a side."""
    return States("side", "states", dict(enumerate(partitions)), {})


def tables(partitions: int, ddl: str) -> list[apsw.Connection]:
    """Empty partitions with one table `t`."""
    connections = [apsw.Connection(":memory:") for _ in range(partitions)]
    for connection in connections:
        connection.execute(ddl)
    return connections


def fill(connections: list[apsw.Connection], rows: list[Row], chance: random.Random, *, replicated: bool) -> None:
    """Rows anywhere, or everywhere."""
    for row in rows:
        for connection in connections if replicated else [chance.choice(connections)]:
            connection.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(row))})", row)  # noqa: S608 - question marks


def typed(row: Row) -> Row:
    """What makes 1 and 1.0 two values."""
    return (*map(type, row), *row)


def modelled(left: list[Row], right: list[Row], width: int) -> dict[str, int]:
    """Numbers of differences, found the slow way: by key as SQLite compares them, or as multisets."""
    if not width:
        old, new = Counter(map(typed, left)), Counter(map(typed, right))
        return {"added": (new - old).total(), "removed": (old - new).total(), "changed": 0}
    counts = dict.fromkeys(("added", "removed", "changed"), 0)
    keys = {row[:width] for row in left} | {row[:width] for row in right}  # 1 == 1.0 here, as in an index
    for key in keys:
        old_rows = {typed(row) for row in left if row[:width] == key}
        new_rows = {typed(row) for row in right if row[:width] == key}
        gone, come = len(old_rows - new_rows), len(new_rows - old_rows)
        counts["changed"] += min(gone, come)
        counts["removed"] += max(gone - come, 0)
        counts["added"] += max(come - gone, 0)
    return counts


def compare(sides: list[list[apsw.Connection]], left: list[Row], right: list[Row], width: int) -> TableDiff:
    """Holds what `diff` says against the model."""
    changes: list[RowChange] = []
    report = diff(states(*sides[0]), states(*sides[1]), limit=3, sink=lambda _table: changes.append)
    (table,) = report.tables
    assert {kind: table.counts[kind] for kind in ("added", "removed", "changed")} == modelled(left, right, width)
    assert len(changes) == table.counts.total()
    assert table.examples == changes[:3]
    assert table.rows == [len(left), len(right)]
    left_again = (
        Counter(map(typed, left))
        - Counter(typed(c.old) for c in changes if c.old)
        + Counter(typed(c.new) for c in changes if c.new)
    )
    assert left_again == Counter(map(typed, right)), "the changes do not lead from left to right"
    assert report.equal == (not changes)
    return table


def random_rows(chance: random.Random, width: int, columns: int) -> list[Row]:
    """Rows with distinct keys, if there are keys."""
    rows: list[Row] = []
    seen: set[Row] = set()
    for _ in range(chance.randrange(40)):
        key = tuple(chance.choice(KEYS) for _ in range(width))
        if width and key in seen:
            continue
        seen.add(key)
        rows.append((*key, *(chance.choice(VALUES) for _ in range(columns - width))))
    return rows


@pytest.mark.parametrize("seed", range(MODEL_SEEDS))
def test_random_tables_give_what_a_plain_comparison_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any types in any column, no key or one of several columns, any number of partitions on both sides."""
    chance = random.Random(seed)
    monkeypatch.setattr("replay.diff.rows.CHUNK_ROWS", chance.randrange(1, 12))
    width = chance.randrange(4)
    columns = width + chance.randrange(0 if width else 1, 3)
    left = random_rows(chance, width, columns)
    right = [row for row in left if chance.random() < 0.7] if seed % 2 else random_rows(chance, width, columns)
    right = [(*row[:-1], chance.choice(VALUES)) if columns > width and chance.random() < 0.3 else row for row in right]
    if not width:
        left, right = left + left[:3], right + left[:2]
    names = [f"c{n}" for n in range(columns)]
    key = f", PRIMARY KEY ({', '.join(names[:width])})" if width else ""
    ddl = f"CREATE TABLE t ({', '.join(names)}{key}){' WITHOUT ROWID' if width and seed % 3 else ''}"
    replicated = bool(width) and seed % 5 == 0
    sides = [tables(chance.randrange(1, 4), ddl) for _ in range(2)]
    for connections, rows in zip(sides, (left, right), strict=True):
        fill(connections, rows, chance, replicated=replicated)
    compare(sides, left, right, width)


@pytest.mark.parametrize("seed", range(MODEL_SEEDS))
def test_tables_of_applications_give_what_a_plain_comparison_gives(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """STRICT tables, in which stretches of equal rows are passed over: rows that moved, changed, came and went; copies."""
    chance = random.Random(seed)
    monkeypatch.setattr("replay.diff.rows.CHUNK_ROWS", chance.choice((1, 3, 20, 1000)))
    left = [
        (chance.randrange(200) // 2, f"k{n}", chance.choice((None, 0.5, 1.0)), b"x" * (n % 3))
        for n in range(chance.randrange(500))
    ]
    right = [
        (*row[:2], chance.choice((None, 2.0)), row[3]) if chance.random() < 0.02 else row
        for row in left
        if chance.random() < 0.98
    ]
    right += [(chance.randrange(200), f"new{n}", 0.0, b"") for n in range(chance.randrange(9))]
    ddl = "CREATE TABLE t (a INTEGER NOT NULL, b TEXT NOT NULL, r REAL, x BLOB, PRIMARY KEY (a, b)) STRICT, WITHOUT ROWID"
    sides = [tables(chance.randrange(1, 4), ddl) for _ in range(2)]
    for connections, rows in zip(sides, (left, right), strict=True):
        fill(connections, rows, chance, replicated=seed % 3 == 0)
    assert compare(sides, left, right, 2).exact


@pytest.mark.parametrize("ddl", ["CREATE TABLE t (k INTEGER PRIMARY KEY, v)", "CREATE TABLE t (k INT PRIMARY KEY, v ANY) STRICT"])
def test_number_of_another_type_is_another_value(ddl: str) -> None:
    """1 and 1.0 differ wherever a column can hold both, in the key, too."""
    left, right = tables(1, ddl), tables(2, ddl)
    left[0].execute("INSERT INTO t VALUES (1, 1), (2, 5)")
    right[1].execute("INSERT INTO t VALUES (1, 1.0), (2, 5)")
    (table,) = diff(states(*left), states(*right), limit=9).tables
    assert table.examples == [RowChange("changed", (1, 1), (1, 1.0))]
    free = "CREATE TABLE t (k PRIMARY KEY, v) WITHOUT ROWID"
    left, right = tables(1, free), tables(1, free)
    left[0].execute("INSERT INTO t VALUES (1, 1)")
    right[0].execute("INSERT INTO t VALUES (1.0, 1)")
    assert diff(states(*left), states(*right), limit=9).tables[0].counts["changed"] == 1


def test_copy_of_a_replicated_table_that_differs_shows() -> None:
    """Equal copies count once; one partition that holds another row is a difference."""
    ddl = "CREATE TABLE t (k TEXT PRIMARY KEY, v INTEGER) STRICT, WITHOUT ROWID"
    left, right = tables(2, ddl), tables(3, ddl)
    for connection in [*left, *right]:
        connection.execute("INSERT INTO t VALUES ('a', 1)")
    assert diff(states(*left), states(*right), limit=5).equal
    right[1].execute("UPDATE t SET v = 2")
    report = diff(states(*left), states(*right), limit=5)
    assert report.tables[0].examples == [RowChange("added", None, ("a", 2))]


def test_collation_of_a_key_does_not_disturb_the_order() -> None:
    """Keys that SQLite sorts without regard to case are still joined right."""
    ddl = "CREATE TABLE t (k TEXT COLLATE NOCASE PRIMARY KEY, v INTEGER) WITHOUT ROWID"
    left, right = tables(1, ddl), tables(1, ddl)
    left[0].execute("INSERT INTO t VALUES ('b', 1), ('C', 1), ('a', 1)")
    right[0].execute("INSERT INTO t VALUES ('B', 1), ('C', 1), ('a', 2)")
    report = diff(states(*left), states(*right), limit=9)
    assert dict(report.tables[0].counts) == {"added": 1, "removed": 1, "changed": 1}


def test_tables_and_columns_of_one_side_are_named() -> None:
    """A table or column that the other side lacks is a difference, even without rows; other columns are compared."""
    left = tables(1, "CREATE TABLE t (k INTEGER PRIMARY KEY, a TEXT, v INTEGER)")
    right = tables(1, "CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER, b TEXT)")
    right[0].execute("CREATE TABLE u (k INTEGER PRIMARY KEY)")
    left[0].execute("INSERT INTO t VALUES (1, 'x', 1), (2, 'y', 1)")
    right[0].execute("INSERT INTO t VALUES (1, 1, 'q'), (2, 2, 'q')")
    report = diff(states(*left), states(*right), limit=9)
    one, other = report.tables
    assert (one.only, one.examples) == ({"left": ["a"], "right": ["b"]}, [RowChange("changed", (2, 1), (2, 2))])
    assert (other.left, other.equal, report.equal) == (None, False, False)


def test_tables_with_other_keys_are_compared_as_multisets() -> None:
    """Without a common identity rows are not paired."""
    left = tables(1, "CREATE TABLE t (a INTEGER PRIMARY KEY, b INTEGER)")
    right = tables(1, "CREATE TABLE t (a INTEGER, b INTEGER PRIMARY KEY)")
    left[0].execute("INSERT INTO t VALUES (1, 2), (2, 3)")
    right[0].execute("INSERT INTO t VALUES (1, 2), (2, 4)")
    (table,) = diff(states(*left), states(*right), limit=9).tables
    assert (table.key, dict(table.counts)) == ((), {"removed": 1, "added": 1})


def test_unknown_table_and_disagreeing_partitions_are_refused() -> None:
    """Neither is an empty result."""
    left = tables(1, "CREATE TABLE t (a INTEGER PRIMARY KEY)")
    with pytest.raises(DiffRefused, match="there are: t"):
        diff(states(*left), states(*left), tables=["x"], limit=1)
    other = tables(1, "CREATE TABLE t (a TEXT PRIMARY KEY, b)")
    with pytest.raises(DiffRefused, match="differently from another"):
        diff(states(*left, *other), states(*left), limit=1)


@pytest.mark.parametrize("name", ["../out", "/tmp/x", "a b", "a.b", "a\n"])
def test_a_table_with_the_name_of_no_application_is_refused(name: str, tmp_path: Path) -> None:
    """A state may come from another machine, and `--parquet` names a file by each table."""
    strange = states(*tables(1, f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY)'))
    with parquet_files(str(tmp_path / "out")) as sink, pytest.raises(DiffRefused, match="cannot be declared"):
        diff(strange, strange, limit=1, sink=sink)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_table() -> None:
    """Only the rows at hand are held: a stream that is read ahead would show as more live rows."""
    ddl = "CREATE TABLE t (k INTEGER PRIMARY KEY, v INTEGER) STRICT"
    left, right = tables(2, ddl), tables(2, ddl)
    for connections in (left, right):
        for n, connection in enumerate(connections):
            connection.execute(NUMBERS, (n,))
    right[1].execute("UPDATE t SET v = 0 WHERE k = 39999")
    blocks: list[int] = []

    def sink(_table: TableDiff) -> Any:
        blocks.append(sys.getallocatedblocks())
        return lambda _change: blocks.append(sys.getallocatedblocks())

    assert diff(states(*left), states(*right), limit=0, sink=sink).tables[0].counts["changed"] == 1
    assert blocks[1] - blocks[0] < 2000


def test_parquet_files_hold_every_difference_with_types(tmp_path: Path) -> None:
    """One file per table, typed for STRICT tables, as SQL literals for others; nothing is there before all is."""
    ddl = "CREATE TABLE t (k TEXT, n INTEGER, r REAL, b BLOB, change TEXT, PRIMARY KEY (k, n)) STRICT, WITHOUT ROWID"
    left, right = tables(1, ddl), tables(2, ddl)
    for connection in [*left, *right]:
        connection.execute("CREATE TABLE u (a)")
    left[0].execute("INSERT INTO t VALUES ('a', 1, 1.5, x'00', 'c'), ('b', 2, NULL, NULL, NULL)")
    right[1].execute("INSERT INTO t VALUES ('a', 1, 2.5, x'00', 'c'), ('c', 3, 0.5, x'ff', 'd')")
    left[0].execute("INSERT INTO u VALUES ('x'), (1)")
    with parquet_files(str(tmp_path / "changes")) as sink:
        diff(states(*left), states(*right), limit=0, sink=sink)
        assert not (tmp_path / "changes").exists()
    table = pq.read_table(tmp_path / "changes" / "t.parquet")
    assert [(f.name, str(f.type)) for f in table.schema][:6] == [
        ("k", "string"), ("n", "int64"), ("change", "string"), ("old_r", "double"), ("new_r", "double"), ("old_b", "binary"),
    ]  # fmt: skip
    rows = {row["k"]: row for row in table.to_pylist()}
    assert [rows[k]["change"] for k in "abc"] == ["changed", "removed", "added"]
    assert (rows["a"]["old_r"], rows["a"]["new_r"], rows["c"]["new_b"], rows["b"]["new_r"]) == (1.5, 2.5, b"\xff", None)
    other = pq.read_table(tmp_path / "changes" / "u.parquet").to_pylist()
    assert [(row["change"], row["old_a"]) for row in other] == [("removed", "1"), ("removed", "'x'")]


def test_exact_decimals_of_other_scales_are_compared_as_numbers() -> None:
    """1.50 on one side is 1.500 on the other; each row keeps the digits of its side."""
    marked = 'CREATE TABLE t (k INTEGER PRIMARY KEY, a INTEGER CONSTRAINT "numeric({},{}) a" CHECK (a BETWEEN -{} AND {})) STRICT'
    left, right = apsw.Connection(":memory:"), apsw.Connection(":memory:")
    for connection, digits, scale, values in ((left, 6, 2, (150, -275, None)), (right, 8, 3, (1500, -2751, None))):
        limit = 10**digits - 1
        connection.execute(marked.format(digits, scale, limit, limit))
        connection.executemany("INSERT INTO t VALUES (?, ?)", list(enumerate(values)))
    report = diff(states(left), states(right), tables=(), limit=9).tables[0]
    assert [(change.kind, change.old, change.new) for change in report.examples] == [("changed", (1, -275), (1, -2751))]
