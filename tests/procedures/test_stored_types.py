"""Single values: what is read as bytes is bytes; `test_column_types.py` has every type with its values."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta, timezone
from typing import Any

import pytest
from sqlalchemy import LargeBinary

from procedures.declaration.dialect import result_processor_of
from procedures.declaration.stored_types import IsoDate, IsoTime, MicrosecondInterval, UtcDateTime


@pytest.mark.parametrize("value", [3, 0.0, "ab"])
def test_what_sqlite_computed_of_bytes_is_not_read_as_bytes(value: Any) -> None:
    """Python would make 3 NUL bytes of the number 3."""
    read = result_processor_of(LargeBinary())
    assert read is not None
    assert (read(b"\0"), read(None)) == (b"\0", None)
    with pytest.raises(TypeError, match="where bytes were expected"):
        read(value)


def test_times_are_stored_in_one_width() -> None:
    """So their texts sort as they do, from the first year on, whatever zone they were given in."""
    east = timezone(timedelta(hours=5))
    assert UtcDateTime().to_sqlite(datetime(1, 1, 2, 3, tzinfo=east)) == "0001-01-01T22:00:00.000000Z"
    assert UtcDateTime().to_sqlite(datetime(9999, 12, 31, tzinfo=UTC)) == "9999-12-31T00:00:00.000000Z"
    assert (IsoDate().to_sqlite(date(1, 1, 1)), IsoTime().to_sqlite(time(1))) == ("0001-01-01", "01:00:00.000000")
    assert MicrosecondInterval().to_sqlite(timedelta(seconds=-1)) == -1_000_000
