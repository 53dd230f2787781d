"""What a SCHEMA entry says."""

from __future__ import annotations

import pytest

from procedures.migration.stated_change import RunMigration, StatedChange

LOGGED = {
    "statements": ["CREATE INDEX i ON t (a)"],
    "catalog": 5,
    "at": 1234,
    "migrations": [{"name": "0003_split_name", "steps": [["ALTER TABLE t ADD COLUMN a TEXT"], []]}],
    "marked": ["0001_x"],
    "rows_digest": "00000000000000ff",
}


def test_change_is_written_as_the_format_says() -> None:
    """Word for word, and read again as the same; members that are empty are left out."""
    change = StatedChange.from_json(LOGGED)
    assert change.migrations == (RunMigration("0003_split_name", (("ALTER TABLE t ADD COLUMN a TEXT",), ())),)
    assert change.done == ("0001_x", "0003_split_name")
    assert change.to_json() == LOGGED
    assert StatedChange.from_json({"statements": []}) == StatedChange()
    assert StatedChange().to_json() == {"statements": []}


@pytest.mark.parametrize("wrong", [{}, {"statements": [], "migrations": [{}]}, {"statements": [], "at": "x"}])
def test_what_is_no_change_is_refused(wrong: dict[str, object]) -> None:
    """So the reader of the record can name its place."""
    with pytest.raises((KeyError, TypeError, ValueError)):
        StatedChange.from_json(wrong)
