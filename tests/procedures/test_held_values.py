"""Whether a stored value is one of a type: by the conversions that statements use."""

from __future__ import annotations

from datetime import UTC, date, datetime, time
from typing import Any, Final
from uuid import UUID

import pytest
from sqlalchemy import JSON, Boolean, Date, DateTime, Enum, Integer, LargeBinary, SmallInteger, String, Text, Time, Uuid, types

from procedures.declaration.columns.held_values import row_check, value_check, values_shown
from procedures.declaration.dialect import bind_processor_of


class Halved(types.TypeDecorator[int]):
    """Reads even numbers alone, and writes what no reader expects."""

    impl = types.SmallInteger
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> Any:
        return 1

    def process_result_value(self, value: Any, dialect: Any) -> Any:
        if value % 2:
            raise ValueError(f"{value} is odd")
        return value // 2


VALUES: Final = {
    Date(): date(1, 1, 1), DateTime(): datetime(9999, 12, 31, tzinfo=UTC), Time(): time(1), Uuid(): UUID(int=255),
    JSON(): {"a": [1]}, Boolean(): True,
}  # fmt: skip


@pytest.mark.parametrize("type_", VALUES, ids=repr)
def test_values_of_another_type_are_found(type_: Any) -> None:
    """Of all that the types store, each reads its own alone; NULL is one of each."""
    check = row_check(type_)
    assert check is not None
    for kind, value in VALUES.items():
        processor = bind_processor_of(kind)
        stored = value if processor is None else processor(value)
        if isinstance(type_, JSON) and isinstance(kind, Boolean):
            continue  # a table would not hold it
        assert bool(check(stored)) == (kind is not type_), kind
    assert not check(None) or isinstance(type_, JSON)


@pytest.mark.parametrize(
    ("type_", "stored", "why"),
    [
        (Date(), "2026-02-30", "where a Date was expected"),
        (Date(), "0000-01-01", "where a Date was expected"),
        (Date(), "20260131", "would be written as '2026-01-31'"),
        (DateTime(), "2026-02-29T00:00:00.000000Z", "where a DateTime was expected"),
        (DateTime(), "2026-01-01", "aware datetimes"),
        (Time(), "24:00:00.000000", "where a Time was expected"),
        (Time(), "23:59", "would be written as '23:59:00.000000'"),
        (Uuid(), "00000000-0000-0000-0000-0000000000FF", "would be written as"),
        (Boolean(), 2, ""),
        (Enum("a", "b"), "c", "none of those of Enum"),
        (String(3), "four", "String(3) holds 3 characters"),
        (LargeBinary(2), b"123", "LargeBinary(2) holds 2 bytes"),
        (SmallInteger(), 1 << 15, "holds 16 bits"),
        (JSON(), "{", "JSONDecodeError"),
        (Halved(), 3, "3 is odd"),
        (Halved(), 1 << 16, "holds 16 bits"),
    ],
    ids=str,
)
def test_value_that_is_none_is_named(type_: Any, stored: Any, why: str) -> None:
    """With what the conversion says, or the limit; where values are not shown, the text does not hold it."""
    check = row_check(type_)
    assert check is not None
    if isinstance(stored, str) and stored != "{":
        assert stored not in check(stored).partition("Enum")[0]
    with values_shown():
        assert check(stored)
        assert why in check(stored)


def test_json_and_decorated_values_only_have_to_be_read() -> None:
    """Elsewhere a value that would be written otherwise would be found by no comparison."""
    for type_, stored in ((JSON(), '{ "b": 1, "a": 2 }'), (Halved(), 4)):
        check = row_check(type_)
        assert check is not None
        assert not check(stored)
    strict = value_check(JSON())
    assert strict is not None
    assert strict('{ "b": 1, "a": 2 }')


def test_types_that_take_whatever_sqlite_lets_in_need_no_look() -> None:
    """Nothing is read for them."""
    assert [row_check(type_) for type_ in (Integer(), Text(), String())] == [None] * 3
