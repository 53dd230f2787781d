"""SQL functions of exact numbers: whole numbers in, whole numbers out, or an error; and they agree with PostgreSQL."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from random import Random
from typing import Any

import apsw
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select

from procedures.numeric.functions import INTEGER_MAX, NAMES, UNITS, divide_rounding, register_numeric_functions
from tests.procedures.numeric.exact_site import open_filled
from tests.procedures.numeric.expressions import SCALES, SMALL, Hazards, Maker, away, rows_of, t

WHOLE = st.integers(-(1 << 63), INTEGER_MAX)


@pytest.fixture(scope="module")
def connection() -> Iterator[apsw.Connection]:
    """A connection with the functions alone."""
    opened = apsw.Connection(":memory:")
    register_numeric_functions(opened)
    yield opened
    opened.close()


def call(connection: apsw.Connection, name: str, *arguments: Any) -> Any:
    """One call of a function."""
    marks = ", ".join("?" for _ in arguments)
    return connection.execute(f"SELECT {name}({marks})", arguments).get


@given(WHOLE, WHOLE)
def test_division_rounds_half_away_from_zero(a: int, b: int) -> None:
    """As fractions have it."""
    if b:
        assert divide_rounding(a, b) == away(Fraction(a, b), 0)


@pytest.mark.parametrize(("sql", "wanted"), [
    ("numeric_add(1, 2)", 3), ("numeric_sub(1, 2)", -1), ("numeric_mul(-3, 2)", -6), ("numeric_div(-1, 2, 0)", -1),
    ("numeric_div(1, 3, 4)", 3333), ("numeric_mod(-7, 3)", -1), ("numeric_compare(10, 1, 100, 2)", 0),
    ("numeric_compare(9223372036854775807, 0, -9223372036854775808, 18)", 1), ("numeric_round(-15, 1, 'half')", -2),
    ("numeric_round(-15, 1, 'trunc')", -1), ("numeric_round(-15, 1, 'floor')", -2), ("numeric_round(-15, 1, 'ceil')", -1),
    ("numeric_cast(15, 2, 1500)", 1500), ("numeric_cast(-15, -1, 10)", -2), ("numeric_add(NULL, 1)", None),
    ("numeric_div(1, NULL, 4)", None), ("numeric_mod(NULL, 0)", None), ("numeric_compare(NULL, 0, 1, 0)", None),
])  # fmt: skip
def test_functions_by_example(connection: apsw.Connection, sql: str, wanted: int | None) -> None:
    """One each, with NULL among them."""
    assert connection.execute(f"SELECT {sql}").get == wanted


@pytest.mark.parametrize(("sql", "error"), [
    ("numeric_add(9223372036854775807, 1)", OverflowError), ("numeric_mul(9223372036854775807, 2)", OverflowError),
    ("numeric_sub(-9223372036854775807, 2)", OverflowError), ("numeric_div(9223372036854775807, 1, 4)", OverflowError),
    ("numeric_cast(1000, 0, 999)", OverflowError), ("numeric_div(1, 0, 4)", ZeroDivisionError),
    ("numeric_mod(1, 0)", ZeroDivisionError),
    ("numeric_add(1.5, 1)", TypeError), ("numeric_mul('1', 1)", TypeError), ("numeric_compare(1.0, 0, 1, 0)", TypeError),
    ("numeric_avg(1.5)", TypeError),
])  # fmt: skip
def test_what_64_bits_cannot_hold_is_an_error(connection: apsw.Connection, sql: str, error: type[Exception]) -> None:
    """And so is every float and text."""
    with pytest.raises(error):
        _ = connection.execute(f"SELECT {sql}").get


def test_the_average_of_a_moving_window(connection: apsw.Connection) -> None:
    """What leaves the window leaves the sum; no row, no average."""
    sql = "SELECT numeric_avg(column1) OVER (ROWS 1 PRECEDING) FROM (VALUES (1), (2), (NULL), (NULL), (-1))"
    assert [value for (value,) in connection.execute(sql)] == [10000, 15000, 20000, None, -10000]
    assert call(connection, "numeric_avg", None) is None


def test_names_are_those_that_the_compiler_writes() -> None:
    """The authorizer allows each of them."""
    assert all(name.startswith("numeric_") for name in NAMES - {UNITS})


# -- PostgreSQL


def binaries() -> Path | None:
    """Where PostgreSQL's programs are; None when there is none."""
    found = [Path(path).parent for path in [shutil.which("postgres")] if path]
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return found[-1] if found else None


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Any]:
    """A server of this test's own; gives a function from SQL to the lines that it prints."""
    programs = binaries()
    if programs is None:
        pytest.skip("PostgreSQL is not installed")
    with tempfile.TemporaryDirectory(prefix="postgresql-") as folder:  # pytest's own folders are closed to other users
        yield from serve_postgresql(programs, Path(folder))


def serve_postgresql(programs: Path, folder: Path) -> Iterator[Any]:
    """Runs the server in this folder."""
    as_user: list[str] = []
    if os.getuid() == 0:  # as which it refuses to run
        as_user = ["setpriv", "--reuid", "nobody", "--regid", "nogroup", "--clear-groups"]
        shutil.chown(folder, "nobody", "nogroup")
    environment = {**os.environ, "LC_ALL": "C", "HOME": str(folder)}

    def run(*command: object, given: str | None = None) -> str:
        done = subprocess.run(
            [*as_user, *map(str, command)], input=given, env=environment, capture_output=True, text=True, check=False, cwd=folder
        )
        assert not done.returncode, done.stderr + done.stdout
        return done.stdout

    run(programs / "initdb", "-D", folder / "data", "-U", "test", "-A", "trust", "--no-sync", "-N")
    options = f"-k {folder} -c listen_addresses='' -c fsync=off"
    run(programs / "pg_ctl", "-D", folder / "data", "-w", "-o", options, "-l", folder / "log", "start")
    try:
        yield lambda sql: run(
            programs / "psql",
            "-h",
            folder,
            "-U",
            "test",
            "-d",
            "postgres",
            "-X",
            "-q",
            "-t",
            "-A",
            "-v",
            "ON_ERROR_STOP=1",
            given=sql,
        ).splitlines()
    finally:
        run(programs / "pg_ctl", "-D", folder / "data", "-m", "immediate", "stop")


@pytest.mark.slow
def test_values_are_those_of_postgresql(postgresql: Any, tmp_path: Path) -> None:
    """Random expressions over the same rows, each rounded there where it is rounded here."""
    site = open_filled(tmp_path / "state.db")
    columns = ", ".join(f"{name} numeric" for name in SCALES)
    rows = ", ".join("(" + ", ".join("NULL" if value is None else str(value) for value in row) + ")" for row in SMALL)
    statements, wanted = [], []
    for seed in range(300):
        maker = Maker(Random(seed))
        node = maker.number(3)
        hazards = Hazards()
        for row in rows_of(large=False):
            node.value(row, hazards)
        if hazards.overflow or hazards.zero_division:
            continue
        given_ = {name: value for name, value in maker.binds.items() if f":{name}" in str(node.sql)}
        wanted.append([value for (value,) in site.run(select(node.sql).where(t.c.id < 100).order_by(t.c.id), **given_)])
        statements.append(f"SELECT coalesce(string_agg(coalesce(({node.pg})::text, '-'), ' ' ORDER BY id), '') FROM t;")  # noqa: S608
    site.close()
    filled = f"CREATE TABLE t (id int, {columns}); INSERT INTO t VALUES {rows}; "  # noqa: S608 - of this test
    lines = postgresql(filled + "\n".join(statements))
    found = [[None if value == "-" else Decimal(value) for value in line.split(" ")] for line in lines]
    assert len(wanted) > 150
    assert found == wanted
