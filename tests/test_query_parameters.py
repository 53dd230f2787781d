"""Parameters of a query."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Any

import pytest

from cmdlog.client.request import query_ask
from cmdlog.errors import InvalidParameters
from cmdlog.procedure_calls import read_parameters


@pytest.mark.parametrize(
    ("given", "read"),
    [(None, []), ((1, 2), [1, 2]), (range(2), [0, 1]), (deque("a"), ["a"]), ({"a": 1}, {"a": 1}), (OrderedDict(b=2), {"b": 2})],
)
def test_parameters_come_by_place_or_by_name(given: Any, read: Any) -> None:
    """As a sequence or a mapping of any class; a client sends them so."""
    assert read_parameters(given) == read
    assert query_ask("SELECT 1", given, None).body is not None


@pytest.mark.parametrize("given", ["a", b"a", bytearray(b"a"), {"a"}, frozenset(), 5, iter([1]), {1: 2}])
def test_other_parameters_are_refused_by_their_type(given: Any) -> None:
    """A text is no list of letters, and a set has no order; also of a client, which sends nothing then."""
    named = "int" if isinstance(given, dict) else type(given).__name__
    for read in (read_parameters, lambda params: query_ask("SELECT 1", params, None)):
        with pytest.raises(InvalidParameters, match=f"params: .*not {named}"):
            read(given)
