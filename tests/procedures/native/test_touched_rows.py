"""Touched rows and the hook that notes them, beside those in Python."""

from __future__ import annotations

import gc
import random
import weakref
from typing import Any, Final

import apsw
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from procedures.native import accelerator
from procedures.storage.changed_keys import Changes
from procedures.storage.row_digest import EMPTY, UNREADABLE, RowCheck, RowLog, TouchedRows, _net_bytes
from procedures.storage.state import Position
from tests.procedures.native.both_ways import in_python, needs_accelerator, outcome

pytestmark = needs_accelerator

SCHEMA: Final = (
    "CREATE TABLE number (k INTEGER PRIMARY KEY, v ANY) STRICT",
    "CREATE TABLE two (k INTEGER, l INTEGER, v ANY, PRIMARY KEY (l, k)) STRICT, WITHOUT ROWID",
    "CREATE TABLE three (k INTEGER, l INTEGER, m INTEGER, v ANY, PRIMARY KEY (k, l, m)) STRICT, WITHOUT ROWID",
    "CREATE TABLE word (v ANY, k TEXT PRIMARY KEY) STRICT, WITHOUT ROWID",
    "CREATE TABLE real (k REAL, v ANY, PRIMARY KEY (k)) STRICT, WITHOUT ROWID",
    "CREATE TABLE mixed (k ANY, v ANY, PRIMARY KEY (k)) STRICT, WITHOUT ROWID",
    "CREATE TABLE pair (k ANY, l TEXT, v ANY, PRIMARY KEY (k, l)) STRICT, WITHOUT ROWID",
    "CREATE TABLE rowid (k TEXT PRIMARY KEY, v ANY, w ANY AS (v || '!')) STRICT",
    "CREATE TABLE _cmdlog_keys (k INTEGER PRIMARY KEY, v ANY) STRICT",
    "CREATE TABLE _cmdlog_other (k INTEGER PRIMARY KEY, v ANY) STRICT",
)
TABLES: Final = ("number", "two", "three", "word", "real", "mixed", "pair", "rowid", "_cmdlog_keys", "_cmdlog_other")
FORMS: Final = (
    "INSERT INTO {t} (k, v) VALUES (:a, :b)",
    "INSERT OR REPLACE INTO {t} (k, v) VALUES (:a, :b)",
    "INSERT OR IGNORE INTO {t} (k, v) VALUES (:a, :b), (:b, :a)",
    "INSERT OR FAIL INTO {t} (k, v) VALUES (:b, :a), (:a, :b), (:a, 1)",
    "INSERT INTO {t} (k, v) VALUES (:a, :b), (:b, 1) ON CONFLICT DO UPDATE SET v = excluded.v, k = excluded.k",
    "UPDATE {t} SET v = :a WHERE k = :b",
    "UPDATE {t} SET v = v",
    "UPDATE {t} SET k = :a WHERE k = :b",
    "UPDATE {t} SET k = k + 1 WHERE k >= :a",
    "UPDATE OR REPLACE {t} SET k = :a WHERE k > :b",
    "UPDATE OR IGNORE {t} SET k = k || :b",
    "DELETE FROM {t} WHERE k = :a",
    "DELETE FROM {t}",
    "INSERT INTO {t} (k, v) VALUES (:a, CAST(x'ff' AS TEXT))",
    "SAVEPOINT s",
    "ROLLBACK TO s",
    "RELEASE s",
    "COMMIT",
)
# after the largest integer SQLite draws the next row id by chance
KEYS: Final = (0, 1, 2, -1, 1 << 62, -(1 << 63), 1.0, 2.5, -0.0, float("inf"), "a", "b", "", "1", b"a", b"", None)


class Watched:
    """A connection with tables, and a log of its rows."""

    def __init__(self) -> None:
        self.connection = apsw.Connection(":memory:")
        for statement in SCHEMA:
            self.connection.execute(statement)
        for table in TABLES:
            for key in range(4):
                columns = {"two": ("k", "l"), "three": ("k", "l", "m"), "pair": ("k", "l")}.get(table, ("k",))
                values = ", ".join(str(key) if column == "k" else str(key % 2) for column in columns)
                self.connection.execute(f"INSERT INTO {table} ({', '.join(columns)}, v) VALUES ({values}, 'v')")  # noqa: S608
        self.rows = RowLog(self.connection)
        self.rows.changes = Changes()
        self.rows.changes.cut(Position(1), keep=())
        self.checked: list[Any] = []

        def check(update: apsw.PreUpdate, row: Any) -> None:
            self.checked.append((update.op, row))
            if row[-1] == 2:
                raise ValueError("no 2")

        self.rows.checks = dict.fromkeys(("number", "word", "pair"), RowCheck(check))

    def run_batch(self, statements: list[tuple[str, str, Any, Any]]) -> Any:
        """What is known after it."""
        self.rows.begin_batch()
        done: list[Any] = []
        uncertain = False
        self.connection.execute("BEGIN")
        for form, table, a, b in statements:
            sql = form.format(t=table)
            values = {name[1:]: value for name, value in ((":a", a), (":b", b)) if name in sql}
            done.append(outcome(lambda sql=sql, values=values: self.connection.execute(sql, values).fetchall()))  # type: ignore[misc]
            uncertain |= not isinstance(done[-1][0], str) or sql.startswith("ROLLBACK")
        self.rows.uncertain = uncertain
        touched = {name: (list(table.first.items()), list(table.last.items())) for name, table in self.rows._touched.items()}
        known = done, touched, self.rows.digest(), outcome(self.rows.changed_rows), self.rows._named, self.checked
        if self.connection.in_transaction:
            self.connection.execute("COMMIT")
        assert self.rows.changes is not None
        self.rows.tell_changes(self.rows.changes)
        return repr(known)

    def changes(self) -> Any:
        """Keys that a delta would be made of."""
        assert self.rows.changes is not None
        return {name: sorted(keys, key=repr) for name, keys in self.rows.changes._part.items()}, self.rows.changes.gathering


keys = st.sampled_from(KEYS) | st.integers(0, 5)
batches = st.lists(
    st.lists(st.tuples(st.sampled_from(FORMS), st.sampled_from(TABLES), keys, keys), max_size=8), min_size=1, max_size=3
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(batches)
def test_random_changes_are_noted_as_in_python(program: list[Any]) -> None:
    """Batches on tables with every kind of key: the same rows, in the same order, digests, checks, errors and reports."""
    native = Watched()
    with in_python():
        python = Watched()
    for statements in program:
        one = native.run_batch(statements)
        with in_python():
            other = python.run_batch(statements)
        assert one == other
        assert native.changes() == python.changes()


def both(places: tuple[int, ...]) -> tuple[Any, Any]:
    """Touched rows of either kind."""
    return accelerator.TouchedRows("t", "SELECT", places), TouchedRows("t", "SELECT", places)


NUMBERS: Final = (0, 1, -1, 32767, 32768, (1 << 31) - 1, 1 << 31, -(1 << 31), -(1 << 31) - 1, 1 << 45, (1 << 63) - 1, -(1 << 63))
numbers = st.integers(-3, 3) | st.sampled_from(NUMBERS)
texts = st.text(max_size=3) | st.sampled_from(["a", "a\0", "a\0b", "\uffff", "\U00010000", "é"])
values = numbers | texts | st.none() | st.floats(allow_nan=False) | st.binary(max_size=3)


@pytest.mark.slow
@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.sampled_from([numbers, texts, numbers | texts | st.floats(-2, 2)]), min_size=1, max_size=3).flatmap(
        lambda kinds: st.lists(st.tuples(st.tuples(*kinds), st.none() | values, st.none() | values), max_size=40)
    )
)
def test_net_changes_have_the_bytes_of_python(noted: list[Any]) -> None:
    """Net changes are written as Python's marshal writes them; Python is asked only where keys of several kinds are sorted."""
    width = len(noted[0][0]) if noted else 1
    native, python = both(tuple(range(width)))
    for key, before, after in noted:
        for touched in (native, python):
            found = touched.key_of(key)
            touched.first.setdefault(found, None if before is None else (*key, before))
            touched.last[found] = None if after is None else (*key, after)
    made = native.net_bytes()
    assert made in (None, _net_bytes(python))
    changed = [key if isinstance(key, tuple) else (key,) for key in python.last if python.first[key] != python.last[key]]
    kinds = [{type(key[column]) for key in changed} for column in range(width)]
    assert (made is not None) == (not changed or all(kind in ({int}, {str}) for kind in kinds))


def test_net_changes_of_many_rows_have_the_bytes_of_python() -> None:
    """More rows than any run of the merge sort, in random order."""
    chance = random.Random(1)
    native, python = both((0, 1))
    for number in chance.sample(range(100_000), 3000):
        row = (number % 7, number, str(number))
        for touched in (native, python):
            key = touched.key_of(row)
            touched.first[key], touched.last[key] = None, row
    assert native.net_bytes() == _net_bytes(python)


@pytest.mark.parametrize("value", ["\ud800", 1 << 64, True, [], ()])
def test_unusual_values_are_left_to_python(value: object) -> None:
    """What SQLite does not give is written by Python alone, in a key or beside it."""
    beside, within = (accelerator.TouchedRows("t", "SELECT", (0,)) for _ in range(2))
    beside.first[1], beside.last[1] = None, (1, value)
    assert beside.net_bytes() is None
    if not isinstance(value, list):
        within.first[value], within.last[value] = None, (value,)
        assert within.net_bytes() is None


@pytest.mark.parametrize("places", [(0,), (2,), (1, 0), (0, 1, 2)])
def test_keys_are_those_of_python(places: tuple[int, ...]) -> None:
    """A key of one column is its value, of several a tuple in the order of the key."""
    native, python = both(places)
    assert native.key_of((1, "b", 2.5)) == python.key_of((1, "b", 2.5))
    assert (native.name, native.read) == ("t", "SELECT")


def test_misuse_of_touched_rows() -> None:
    """Wrong places, short rows and rows that are none are refused."""
    new: Any = accelerator.TouchedRows
    hook: Any = accelerator.UpdateHook
    refused: tuple[Any, ...] = (
        lambda: new("t", "SELECT"),
        lambda: new("t", "SELECT", [0]),
        lambda: new(1, "SELECT", (0,)),
        lambda: new("t", "SELECT", ("a",)),
        lambda: new("t", "SELECT", (0,)).key_of([1]),
        lambda: hook(None, [], print),
        lambda: hook(None, {}),
    )
    for wrong in refused:
        with pytest.raises(TypeError):
            wrong()
    with pytest.raises(ValueError):
        new("t", "SELECT", (-1,))
    with pytest.raises(IndexError):
        new("t", "SELECT", (3,)).key_of((1, 2, 3))
    touched = new("t", "SELECT", (0,))
    touched.last[1] = (1,)
    assert touched.net_bytes() is None


def test_the_hook_keeps_what_it_uses() -> None:
    """A check that replaces the checks, begins another batch and collects garbage does no harm."""
    watched = Watched()

    def check(update: apsw.PreUpdate, row: Any) -> None:
        watched.rows.checks = {}
        watched.rows._forget()
        gc.collect()

    watched.rows.begin_batch()
    watched.connection.execute("UPDATE number SET v = 7 WHERE k = 1")
    watched.rows.checks = {"number": RowCheck(check)}
    del check
    watched.connection.execute("UPDATE number SET v = 8")
    assert watched.rows.digest() != EMPTY


def test_text_that_is_no_utf8_is_unreadable_in_a_table_that_was_touched() -> None:
    """The second change of a table is noted in C, too; a text that Python cannot read makes the batch unreadable."""
    watched = Watched()
    watched.rows.begin_batch()
    watched.connection.execute("UPDATE word SET v = 'x'")
    watched.connection.execute("UPDATE word SET v = CAST(x'ff' AS TEXT)")
    assert watched.rows.digest() == UNREADABLE


def test_logs_are_collected() -> None:
    """Connection, log, hook and touched rows refer to each other; the collector finds them."""
    watched = Watched()
    watched.run_batch([(FORMS[5], "number", 9, 1), (FORMS[5], "number", 8, 1)])
    hook = weakref.ref(watched.rows.checks["number"].judge)
    del watched
    gc.collect()
    assert hook() is None
