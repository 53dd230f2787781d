"""Which keys a statement pins, by its text."""

from __future__ import annotations

from typing import Any

import pytest

from procedures.statements.key_pins import KeyedTable, find_key_pins

TABLES = [
    KeyedTable("seats", ("row", "taken", "guest"), "row", numbered=True),
    KeyedTable("guests", ("name", "seat"), "name"),
    KeyedTable("prices", ("row", "cents"), None),
]


def pinned(sql: str) -> list[tuple[str, list[list[Any]]]]:
    """(table, claims) of a text; parameters by name, constants as they are."""
    pins = find_key_pins(sql, TABLES)
    return [(pin.table, [[value.name or value.constant for value in claim] for claim in pin.claims]) for pin in pins]


X = [("seats", [["x"]])]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT taken FROM seats WHERE seats.row = :x",
        "SELECT taken FROM seats WHERE :x == \"ROW\" AND taken = 1",
        "SELECT taken FROM main.seats AS s WHERE ((s.row IS :x))",
        "SELECT count(*) FROM seats WHERE row IN (:x)",
        "SELECT 1 FROM seats WHERE row IS NOT DISTINCT FROM :x",
        "SELECT 1 FROM seats WHERE (row, taken) = (:x, 1)",
        "SELECT 1 FROM seats WHERE (taken, row) IN (VALUES (1, :x))",
        "SELECT 1 FROM seats WHERE NOT (row != :x OR taken)",
        "SELECT 1 FROM seats WHERE NOT row NOT IN (:x)",
        "SELECT 1 FROM seats WHERE (row = :x) = 1 AND (row <> :x) IS 0",
        "SELECT 1 FROM seats WHERE rowid = :x",
        "SELECT 1 FROM seats WHERE taken BETWEEN 0 AND 1 AND row = :x",
        "SELECT row FROM seats GROUP BY row HAVING row = :x",
        "UPDATE OR IGNORE seats SET taken = taken + 1 WHERE row = :x RETURNING taken",
        "DELETE FROM seats AS s WHERE s.row = :x",
        "INSERT INTO prices SELECT row, 5 FROM seats WHERE row = :x ON CONFLICT DO NOTHING",
        "REPLACE INTO prices WITH c AS (SELECT row FROM seats WHERE row = :x) SELECT row, 5 FROM c",
        "UPDATE prices SET cents = s.taken FROM seats AS s WHERE s.row = :x AND s.row = prices.row",
        "SELECT EXISTS (SELECT * FROM seats WHERE row = :x)",
        "SELECT 1 WHERE NOT EXISTS (SELECT * FROM seats WHERE row = :x)",
        "SELECT coalesce((SELECT taken FROM seats WHERE row = :x), 0)",
        "SELECT CASE WHEN 1 THEN (SELECT taken FROM seats WHERE row = :x) END",
        "SELECT 1 FROM (SELECT row AS r FROM seats) AS s WHERE s.r = :x",
        "SELECT 1 FROM (SELECT s.* FROM seats s) WHERE row = :x",
        "WITH c(r, t) AS NOT MATERIALIZED (SELECT row, taken FROM seats) SELECT t FROM c WHERE r = :x",
        "SELECT 1 FROM prices JOIN seats ON seats.row = prices.row WHERE prices.row = :x",
        "SELECT 1 FROM prices, seats WHERE seats.row = prices.row AND prices.row = :x",
        "SELECT 1 FROM prices LEFT OUTER JOIN seats ON seats.row = :x",
        "SELECT 1 FROM prices LEFT JOIN seats ON seats.row = prices.row WHERE prices.row = :x",
        "SELECT 1 FROM prices LEFT JOIN (seats JOIN prices p ON p.row = seats.row) ON p.row = :x",
        "SELECT (SELECT taken FROM seats WHERE row = p.cents) FROM prices p WHERE p.cents = :x",
        "SELECT 1 FROM seats WHERE row IN (SELECT cents FROM prices WHERE cents = :x)",
        "SELECT 1 FROM seats WHERE row = (SELECT cents FROM prices WHERE cents = :x)",
        "SELECT 1 FROM seats WHERE EXISTS (SELECT 1 FROM prices WHERE prices.row = seats.row AND prices.row = :x)",
        "SELECT 1 FROM prices UNION ALL SELECT taken FROM seats WHERE row = :x ORDER BY 1",
        "SELECT row FROM (SELECT row FROM seats UNION SELECT row FROM prices) WHERE row = :x",
            "SELECT 1 FROM seats WHERE row IN (SELECT :x)",
            "SELECT 1 FROM seats WHERE row = (SELECT :x AS wanted)",
            "SELECT 1 FROM seats WHERE row = (VALUES (:x))",
            "SELECT 1 FROM seats WHERE (taken, row) IN (SELECT 1, :x)",
            "SELECT 1 FROM seats WHERE row = CAST(:x AS INTEGER)",
            "SELECT 1 FROM seats JOIN (SELECT :x AS v) AS p ON p.v = seats.row",
            "SELECT 1 FROM seats, (VALUES (1, :x)) WHERE row = column2",
            "WITH k(a, v) AS (VALUES (1, :x)) UPDATE seats SET taken = 1 FROM k WHERE k.v = seats.row",
            "WITH k AS (SELECT :x AS v) DELETE FROM seats WHERE row IN (SELECT v FROM k)",
            "SELECT 1 FROM prices JOIN seats USING (row) WHERE prices.row = :x",
            "SELECT 1 FROM prices LEFT JOIN seats USING (row) WHERE row = :x",
            "SELECT 1 FROM prices NATURAL JOIN seats WHERE prices.row = :x",
            "SELECT 1 FROM seats WHERE row = :x OR 0 = 1",
            "SELECT 1 FROM seats WHERE NOT (row != :x AND 1 = 1)",
            "SELECT count(*) FILTER (WHERE row = :x), count(*) FROM seats",
    ],
)  # fmt: skip
def test_a_key_is_pinned_however_it_is_written(sql: str) -> None:
    """By any comparison that leaves one value, of any statement, and over whatever equals it."""
    assert pinned(sql) == X


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1 FROM seats WHERE taken = :x",
        "SELECT 1 FROM seats WHERE row = :x OR taken = 1",
        "SELECT 1 FROM seats WHERE NOT row = :x",
        "SELECT 1 FROM seats WHERE row NOT IN (:x)",
        "SELECT 1 FROM seats WHERE row >= :x AND row < :y",
        "SELECT 1 FROM seats WHERE row < :x = 0",
        "SELECT 1 FROM seats WHERE row + 1 = :x",
        "SELECT 1 FROM seats WHERE row = :x + 1",
        "SELECT 1 FROM seats WHERE row = :x COLLATE NOCASE",
        "SELECT 1 FROM seats WHERE abs(row) = :x",
        "SELECT 1 FROM seats WHERE row = :x IS NULL",
        "SELECT 1 FROM seats WHERE row IS NULL",
        "SELECT 1 FROM seats WHERE row IN (SELECT 1 FROM (SELECT 1) WHERE 1!=1)",
        "SELECT 1 FROM seats WHERE CAST(row AS TEXT) = :x",
        "SELECT 1 FROM seats WHERE row IN (SELECT :x UNION SELECT cents FROM prices)",
        "WITH RECURSIVE c(n) AS (SELECT :x UNION ALL SELECT n + 1 FROM c WHERE n < 9) SELECT 1 FROM c JOIN seats ON row = n",
        "WITH k(v) AS (VALUES (:x), (:y + 1)) SELECT 1 FROM seats JOIN k ON row = v",
        "SELECT 1 FROM prices JOIN seats USING (cents) WHERE prices.row = :x",
        "SELECT 1 FROM seats WHERE CASE WHEN row = :x AND 1 THEN 0 ELSE 1 END",
        "SELECT 1 FROM seats WHERE row IN (SELECT cents FROM prices WHERE row = :x)",
        "SELECT 1 FROM seats JOIN prices ON seats.row = prices.row",
        "SELECT 1 FROM seats LEFT JOIN prices ON seats.row = :x",
        "SELECT 1 FROM seats RIGHT JOIN prices ON seats.row = :x",
        "SELECT 1 FROM prices WHERE row = :x",
        "SELECT 1 FROM json_each(:list) WHERE row = :x",
        "WITH seats AS (SELECT cents AS row FROM prices) SELECT 1 FROM seats WHERE row = :x",
        "SELECT max(row) AS row FROM (SELECT max(row) AS row FROM seats) WHERE row = :x",
        "SELECT 1 FROM seats, (SELECT row AS r FROM prices WHERE row = :x) AS p WHERE seats.guest = p.r",
        "INSERT INTO seats VALUES (:x, 1, NULL) ON CONFLICT (row) DO UPDATE SET taken = 0 WHERE row = :x",
        "WITH RECURSIVE n(row) AS (SELECT :x UNION ALL SELECT row + 1 FROM n WHERE row = :x) SELECT row FROM n",
    ],
)  # fmt: skip
def test_what_leaves_other_keys_pins_nothing(sql: str) -> None:
    """Ranges, negations, functions of the key, conditions on other tables and names of other things."""
    assert pinned(sql) == []


@pytest.mark.parametrize(
    ("condition", "claims"),
    [
        ("row IN (:x, 7, -3)", [["x", 7, -3]]),
        ("row IN (__[POSTCOMPILE_rows])", [["rows"]]),
        ("row = :x OR (row = :y AND taken)", [["x", "y"]]),
        ("row = :x AND row IN (:y, :z)", [["x"], ["y", "z"]]),
        ("(row = guest OR row = 4) AND guest = :x", [["x", 4]]),
        ("row = 'a''b'", [["a'b"]]),
    ],
)
def test_all_that_is_said_of_a_key_is_a_claim(condition: str, claims: list[list[Any]]) -> None:
    """Of each comparison its values; an OR has those of all its sides."""
    assert pinned(f"SELECT 1 FROM seats WHERE {condition}") == [("seats", claims)]  # noqa: S608 - of this table of cases


def test_each_use_of_a_cte_has_rows_of_its_own() -> None:
    """What one of them equals says nothing about the other."""
    sql = (
        "WITH c AS (SELECT row, guest FROM seats) SELECT 1 FROM c AS one JOIN c AS other ON other.row = one.guest "
        "JOIN guests ON guests.name = other.guest WHERE one.row = :x"
    )
    assert pinned(sql) == X
