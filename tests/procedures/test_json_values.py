"""Any JSON as a parameter: canonical, bounded, and nothing else."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from procedures.wire.json_values import DEPTH_MAX
from procedures.wire.scalar_codecs import WireError
from procedures.wire.type_codecs import codec_for

TEXTS = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=5)
LEAVES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 63) - 1) | st.floats(allow_nan=False, allow_infinity=False)
VALUES = st.recursive(LEAVES | TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=4))


def _turned(value: Any) -> Any:
    """An equal value whose objects were filled in the opposite order."""
    if isinstance(value, dict):
        return {name: _turned(value[name]) for name in reversed(value)}
    return [_turned(part) for part in value] if isinstance(value, list) else value


@given(VALUES)
def test_equal_values_are_equal_bytes_and_come_back(value: Any) -> None:
    """The order in which a caller filled an object never reaches the log, and the value that comes back is equal."""
    codec = codec_for(Any)
    wire = orjson.dumps(codec.to_wire(value))
    assert orjson.dumps(codec.to_wire(_turned(value))) == wire
    assert codec.from_wire(orjson.loads(wire)) == value


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (float("nan"), "NaN"),
        ({"a": [1, {"b": {1, 2}}]}, r"\.a\[1\]\.b: .*set"),
        ({1: "x"}, "string"),
        (Decimal(1), "Decimal"),
        (1 << 63, "64 bits"),
        ("\ud800", "surrogate"),
    ],
)
def test_what_is_not_json_is_refused_by_place(value: Any, named: str) -> None:
    """NaN, sets, names that are no strings, long integers and values of other types are refused where they are."""
    with pytest.raises(WireError, match=named):
        codec_for(Any).to_wire(value)


def test_nesting_is_bounded() -> None:
    """A value inside itself is refused, and so is one of more levels than readers of JSON accept."""
    deep: Any = 1
    for _ in range(DEPTH_MAX + 2):
        deep = [deep]
    endless: list[Any] = []
    endless.append(endless)
    for value in (deep, endless):
        with pytest.raises(WireError, match="levels"):
            codec_for(list[Any]).to_wire(value)


def test_arrays_and_objects_are_told_apart_and_frozen() -> None:
    """`dict[str, Any]` takes objects alone, `list[Any]` arrays alone, and what a procedure gets cannot be changed."""
    with pytest.raises(WireError):
        codec_for(dict[str, Any]).to_wire([])
    with pytest.raises(WireError):
        codec_for(list[Any]).to_wire({})
    held = codec_for(dict[str, Any]).from_wire({"tags": ["a"]})
    with pytest.raises(TypeError, match="copy"):
        held["tags"].append("b")
