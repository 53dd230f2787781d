"""Scalars on the wire that have more than one spelling: one of them is canonical."""

from __future__ import annotations

from datetime import datetime, time, timedelta
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procedures.wire.scalar_codecs import INT_MAX, INT_MIN, WireError
from procedures.wire.type_codecs import codec_for


@given(st.timedeltas(timedelta(microseconds=INT_MIN), timedelta(microseconds=INT_MAX)))
def test_durations_come_back(value: timedelta) -> None:
    """Every timedelta has one text, which gives it back."""
    codec = codec_for(timedelta)
    assert codec.from_wire(codec.to_wire(value)) == value


def test_spellings_of_a_duration_become_one() -> None:
    """Minutes beyond the hour and hours beyond the day are carried over, and nothing is written twice."""
    codec = codec_for(timedelta)
    assert {codec.to_wire(text) for text in ("PT90M", "PT1H30M", "PT5400S", "PT5400.000S")} == {"PT1H30M"}
    assert codec.to_wire("P0D") == codec.to_wire("-PT0S") == "PT0S"
    assert codec.to_wire("PT24H") == "P1D"


def test_spellings_of_a_time_of_day_become_one() -> None:
    """Seconds are always written, a fraction in six digits where there is one."""
    codec = codec_for(time)
    assert codec.to_wire("12:30") == codec.to_wire("12:30:00") == codec.to_wire(time(12, 30)) == "12:30:00"
    assert codec.to_wire("12:30:00.5") == "12:30:00.500000"


@pytest.mark.parametrize(
    ("hint", "value", "finer"),
    [
        (datetime, pd.Timestamp(2026, 1, 2, 3, 4, 5, 6, tz="UTC"), pd.Timestamp(2026, 1, 2, nanosecond=1, tz="UTC")),
        (timedelta, pd.Timedelta(90, "min"), pd.Timedelta(1, "ns")),
    ],
)
def test_times_of_other_classes_are_taken_whole(hint: Any, value: Any, finer: Any) -> None:
    """What is finer than a microsecond would come back as another time."""
    codec = codec_for(hint)
    assert codec.from_wire(codec.to_wire(value)) == value
    with pytest.raises(WireError, match="in microseconds, got Time"):
        codec.to_wire(finer)
