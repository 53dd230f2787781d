"""A Numeric changes its decimals while checks, generated columns and indexes speak of it."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import CheckConstraint, Column, Computed, Float, Index, Integer, Numeric, column

from procedures import Database
from procedures.declaration.columns.held_values import values_shown
from procedures.errors import MigrationFailed
from tests.procedures.migration.people import ChangingSite, as_logged, program

Items = Callable[[Any, Any], list[Any]]  # of the columns `paid` and `owed`


def _declared(items: Items, paid: Any, owed: Any) -> Callable[[Database], None]:
    def declare(db: Database) -> None:
        numbers = Column("paid", paid), Column("owed", owed)
        db.table("t", Column("id", Integer, primary_key=True), *numbers, *items(*numbers), partition_by="id")

    return declare


def _alone(*items: Any) -> Callable[[Database], None]:
    def declare(db: Database) -> None:
        db.table("t", Column("id", Integer, primary_key=True), *items, partition_by="id")

    return declare


def _to(kind: Any) -> Callable[[Any, Any], None]:
    def migrate(tx: Any, op: Any) -> None:
        op.alter_column("t", "n", type_=kind)

    return migrate


RULES: dict[str, Items] = {
    "a check with a name": lambda paid, owed: [CheckConstraint(paid <= Decimal("99.50"), name="most")],
    "a check without one": lambda paid, owed: [CheckConstraint(paid <= Decimal("99.50"))],
    "a check of both columns": lambda paid, owed: [CheckConstraint(paid <= owed, name="covered")],
    "a check of a sum": lambda paid, owed: [CheckConstraint(paid + owed <= Decimal("199.9"), name="sum")],
    "two checks": lambda paid, owed: [CheckConstraint(paid >= Decimal("0.5")), CheckConstraint(paid <= owed)],
    "a check of zero in text": lambda paid, owed: [CheckConstraint("paid >= 0", name="positive")],
    "a generated column": lambda paid, owed: [Column("left", Numeric(16, 4), Computed(owed - paid, persisted=True))],
    "a partial index": lambda paid, owed: [Index("rich", "id", sqlite_where=paid > Decimal("20.25"))],
    "a unique partial index": lambda paid, owed: [Index("rich", "owed", unique=True, sqlite_where=paid > Decimal("20.25"))],
    "an index of an expression": lambda paid, owed: [Index("rest", owed - paid)],
    "a plain index": lambda paid, owed: [Index("by_paid", "paid")],
}
CHANGES: dict[str, tuple[Any, Any, Callable[[Any], object]]] = {
    "one": (Numeric(12, 4), Numeric(10, 2), lambda op: op.alter_column("t", "paid", type_=Numeric(12, 4))),
    "both": (
        Numeric(12, 4),
        Numeric(14, 4),
        lambda op: (
            op.alter_column("t", "paid", type_=Numeric(12, 4)),
            op.alter_column("t", "owed", type_=Numeric(14, 4)),
        ),
    ),
    "twice": (
        Numeric(12, 3),
        Numeric(10, 2),
        lambda op: (
            op.alter_column("t", "paid", type_=Numeric(12, 4)),
            op.alter_column("t", "paid", type_=Numeric(12, 3)),
        ),
    ),
    "back": (
        Numeric(10, 2),
        Numeric(10, 2),
        lambda op: (
            op.alter_column("t", "paid", type_=Numeric(12, 4)),
            op.alter_column("t", "paid", type_=Numeric(10, 2)),
        ),
    ),
}


def _change(tmp_path: Path, items: Items, paid: Any, owed: Any, run: Callable[[Any], object], *rows: str) -> ChangingSite:
    """The live site afterwards; another one played the entry, and is equal."""
    first = program(_declared(items, Numeric(10, 2), Numeric(10, 2)))
    later = program(_declared(items, paid, owed), ("0001", lambda tx, op: run(op)))
    live, replica = (ChangingSite(tmp_path / name, first) for name in ("live.db", "replica.db"))
    for site in (live, replica):
        site.start()
        site.run_sql(*rows)
    change = live.deploy(later)
    replica.programs |= live.programs
    replica.apply(as_logged(change))
    assert live.dump() == replica.dump()
    assert live.rehearse(later) is None
    replica.close()
    return live


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("change", CHANGES)
def test_rule_says_the_same_of_other_decimals(tmp_path: Path, rule: str, change: str) -> None:
    """It is as declared at the end, and the rows that it lets in are the same ones."""
    paid, owed, run = CHANGES[change]
    site = _change(
        tmp_path, RULES[rule], paid, owed, run, "INSERT INTO t (id, paid, owed) VALUES (1, 9800, 9950), (2, 2000, 3000)"
    )
    fresh = ChangingSite(tmp_path / "fresh.db", program(_declared(RULES[rule], paid, owed)))
    fresh.start()
    for number, cents in enumerate((0, 50, 9800, 9950, 9951, 12000), start=3):
        values = f"({number}, {cents * 10 ** (paid.scale - 2)}, {9950 * 10 ** (owed.scale - 2)})"
        taken: list[bool | str] = []
        for each in (site, fresh):
            try:
                each.run_sql(f"INSERT INTO t (id, paid, owed) VALUES {values}")  # noqa: S608 - numbers
                taken.append(True)
            except Exception as error:  # noqa: BLE001 - by SQLite
                taken.append(type(error).__name__)
        assert taken[0] == taken[1] or rule == "a unique partial index"
    site.close()
    fresh.close()


def test_integer_that_becomes_a_numeric_or_a_float_takes_its_rules_along(tmp_path: Path) -> None:
    """Whatever changes how a value is stored."""

    def of(kind: Any) -> Callable[[Database], None]:
        return _alone(Column("n", kind), CheckConstraint(column("n") <= 9900, name="most"))

    for number, (was, becomes, text) in enumerate((
        (Integer(), Numeric(8, 2), "n <= 990000"), (Numeric(8, 2), Integer(), "n <= 9900"), (Numeric(8, 2), Float(), "n <= 9900"),
    )):  # fmt: skip
        site = ChangingSite(tmp_path / f"{number}.db", program(of(was)))
        site.start()
        site.run_sql("INSERT INTO t VALUES (1, 5000)")
        site.deploy(program(of(becomes), ("0001", _to(becomes))))
        assert f"CHECK ({text})" in site.state.schema()["t"]
        site.close()


def test_column_gets_another_name_and_type_at_once(tmp_path: Path) -> None:
    """What speaks of it is found in the declaration by the new name."""

    def of(name: str, scale: int) -> Callable[[Database], None]:
        return _alone(Column(name, Numeric(8, scale)), CheckConstraint(column(name) <= Decimal("9.5"), name="most"))

    site = ChangingSite(tmp_path / "a.db", program(of("n", 2)))
    site.start()
    site.run_sql("INSERT INTO t VALUES (1, 900)")
    run = ("0001", lambda tx, op: op.alter_column("t", "n", type_=Numeric(8, 4), new_column_name="m"))
    site.deploy(program(of("m", 4), run))
    assert site.rows("SELECT * FROM t") == [(1, 90000)]
    assert "CHECK (m <= 95000)" in site.state.schema()["t"]
    site.close()


def test_rule_that_the_declaration_has_not_is_named(tmp_path: Path) -> None:
    """With what to do; dropped before, it is in nobody's way."""
    first = program(_declared(RULES["a check without one"], Numeric(10, 2), Numeric(10, 2)))

    def changing(*before: Callable[[Any], object]) -> Database:
        def run(tx: Any, op: Any) -> None:
            for each in before:
                each(op)
            op.alter_column("t", "paid", type_=Numeric(12, 4))

        return program(_declared(lambda paid, owed: [], Numeric(12, 4), Numeric(10, 2)), ("0001", run))

    site = ChangingSite(tmp_path / "a.db", first)
    site.start()
    with pytest.raises(
        MigrationFailed, match=r"speaks of column 'paid' as it was stored before.*drop it in the migration before"
    ):
        site.rehearse(changing())
    site.deploy(changing(lambda op: op.drop_constraint("ck_t_1", "t", type_="check")))
    site.close()


def test_rows_that_a_new_check_refuses_are_named(tmp_path: Path) -> None:
    """A check that says less than before is one of the declaration; its rows are named by key and value."""
    first = program(_declared(RULES["a check with a name"], Numeric(10, 2), Numeric(10, 2)))
    tighter: Items = lambda paid, owed: [CheckConstraint(paid <= Decimal("50.25"), name="most")]  # noqa: E731
    later = program(
        _declared(tighter, Numeric(12, 4), Numeric(10, 2)),
        ("0001", lambda tx, op: op.alter_column("t", "paid", type_=Numeric(12, 4))),
    )
    site = ChangingSite(tmp_path / "a.db", first)
    site.start()
    site.run_sql("INSERT INTO t VALUES (1, 5025, 1), (2, 5026, 1), (3, 9000, 1)")
    with values_shown(), pytest.raises(MigrationFailed, match=r"most: 2 rows of t are refused; the first is id = 2, paid = 5026"):
        site.rehearse(later)
    site.close()
