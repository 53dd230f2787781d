"""Lists and dicts of parameters, and of results."""

from __future__ import annotations

from typing import Any

import pytest

from procedures.wire.frozen import FrozenDict, FrozenList, thawed


def test_a_parameter_cannot_be_changed() -> None:
    """The error says why, and what to do."""
    frozen: list[Any] = [FrozenList([1]), FrozenDict(a=1)]
    for value in frozen:
        with pytest.raises(TypeError, match="work on a copy"):
            value.clear()


def test_a_result_can_be_changed() -> None:
    """At every level; it is the caller's own."""
    result = thawed(FrozenList([FrozenDict(a=FrozenList([1])), 2]))
    assert result == [{"a": [1]}, 2]
    assert [type(result), type(result[0]), type(result[0]["a"])] == [list, dict, list]
