"""What a column becomes, and its values."""

from __future__ import annotations

import pytest

from procedures.declaration.create_text import ColumnText
from procedures.errors import DefinitionError
from procedures.migration.column_change import renamed_column, with_rules, with_type


def _number(name: str, precision: int, scale: int, rules: str = "") -> ColumnText:
    limit = 10**precision - 1
    check = f'CONSTRAINT "numeric({precision},{scale}) {name}" CHECK ({name} BETWEEN -{limit} AND {limit})'
    return ColumnText(name, " ".join(f"{name} INTEGER {rules} {check}".split()))


@pytest.mark.parametrize(
    ("before", "after", "value", "unfit"),
    [
        (_number("n", 8, 2), _number("n", 8, 2), '"n" * 1', ""),
        (_number("n", 8, 2, "DEFAULT 150 NOT NULL"), _number("n", 12, 4), '"n" * 100', "NOT BETWEEN"),
        (_number("n", 8, 2), _number("n", 8, 0), '"n" / 100', '"n" % 100 <> 0'),
        (ColumnText("n", "n INTEGER"), _number("n", 8, 1), '"n" * 10', "NOT BETWEEN"),
        (_number("n", 8, 1), ColumnText("n", "n REAL"), 'CAST("n" AS REAL) / 10.0', "CAST(round("),
        (ColumnText("n", "n INTEGER"), ColumnText("n", "n TEXT"), "", ""),
        (ColumnText("n", "n INTEGER"), ColumnText("n", "n REAL"), "", 'CAST("n" AS NUMERIC) <> CAST("n" AS REAL)'),
        (ColumnText("n", "n TEXT"), ColumnText("n", "n REAL"), "", 'CAST("n" AS NUMERIC) <> CAST("n" AS REAL)'),
        (ColumnText("n", "n REAL"), ColumnText("n", "n TEXT"), "", 'CAST(CAST("n" AS TEXT) AS REAL) <> "n"'),
    ],
)
def test_numbers_keep_their_value(before: ColumnText, after: ColumnText, value: str, unfit: str) -> None:
    """Stored integers are multiplied or divided; where digits could be lost there is a condition that finds such rows."""
    change = with_type(before, after)
    assert (change.value or '"n" * 1') == (value or '"n" * 1')
    assert unfit in change.unfit
    assert bool(change.unfit) == bool(unfit)


def test_default_and_rules_stay_where_they_are_not_changed() -> None:
    """A default is in the units of the new type."""
    before = _number("n", 8, 2, "DEFAULT 150 NOT NULL")
    assert with_type(before, _number("n", 12, 4)).column == _number("n", 12, 4, "DEFAULT 15000 NOT NULL")
    assert with_rules(before, nullable=True, default=None) == _number("n", 8, 2, "DEFAULT 150")
    assert with_rules(before, nullable=None, default="") == _number("n", 8, 2, "NOT NULL")
    with pytest.raises(DefinitionError, match="default 150 loses digits"):
        with_type(before, _number("n", 8, 0))


def test_mark_of_a_number_has_the_new_name() -> None:
    """SQLite's RENAME COLUMN leaves it."""
    renamed = ColumnText("m", _number("n", 8, 2).text.replace("n INTEGER", "m INTEGER").replace("(n ", "(m "))
    assert renamed_column(renamed) == _number("m", 8, 2)
    assert renamed_column(ColumnText("m", "m TEXT")) == ColumnText("m", "m TEXT")


def test_text_is_no_number() -> None:
    """What to do instead is said."""
    with pytest.raises(DefinitionError, match="add a second column, fill it with tx"):
        with_type(ColumnText("n", "n TEXT"), _number("n", 8, 2))
