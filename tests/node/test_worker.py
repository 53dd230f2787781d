"""Rows as JSON in a query process: counted before the encoder would find no memory."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.node.queries import worker
from cmdlog.node.queries.query import QueryRefused
from cmdlog.node.queries.worker import EncodedRows, encode_result

VALUES = st.one_of(
    st.none(), st.integers(-(1 << 63), (1 << 63) - 1), st.floats(allow_nan=False, allow_infinity=False), st.text(), st.binary()
)


def wire(value: Any) -> Any:
    """As JSON has it."""
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), max_size=4))
def test_rows_are_one_array(rows: list[list[Any]]) -> None:
    """Whatever their values."""
    kept = EncodedRows()
    assert all(kept.add_row(row, 1 << 20) for row in rows)
    body = b"".join(encode_result(["a"], kept, {0: 1 << 60}))
    assert orjson.loads(body) == {
        "columns": ["a"],
        "rows": [[wire(v) for v in row] for row in rows],
        "as_of": {"0": str(1 << 60)},
    }


@given(st.lists(VALUES, min_size=1, max_size=4), st.booleans())
def test_row_is_kept_exactly_when_its_json_fits(row: list[Any], counted: bool) -> None:
    """Both ways of finding that out agree to a few bytes: encoding it, and counting first."""
    size = len(orjson.dumps([wire(value) for value in row])) + 1
    before, worker.ENCODED_UNCOUNTED_BYTES = worker.ENCODED_UNCOUNTED_BYTES, 0 if counted else 1 << 30  # type: ignore[misc]
    try:
        kept = EncodedRows()
        assert kept.add_row(row, size)
        assert (kept.rows, kept.bytes) == (1, size)
        assert not kept.add_row(row, size - 1)
    finally:
        worker.ENCODED_UNCOUNTED_BYTES = before  # type: ignore[misc]


@pytest.mark.parametrize("text", ["\1", '"', "\n", "a", "ä", "\U0001f600", "\x7f"])
def test_long_text_is_counted_as_it_is_escaped(text: str) -> None:
    """The encoder never sees what is too long."""
    row = (text * 1_000_000,)
    size = len(orjson.dumps(row))
    assert worker._json_bytes(row[0]) == size - 2
    kept = EncodedRows()
    assert not kept.add_row(row, size - 3)
    assert kept.add_row(row, size + 1)


def test_infinity_is_refused() -> None:
    """JSON has none."""
    with pytest.raises(QueryRefused, match="infinity"):
        EncodedRows().add_row((1.0, float("inf")), 100)
