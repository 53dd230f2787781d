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
    assert kept.end_rows(1 << 20)
    body = b"".join(encode_result(["a"], kept, {0: 1 << 60}))
    assert orjson.loads(body) == {
        "columns": ["a"],
        "rows": [[wire(v) for v in row] for row in rows],
        "as_of": {"0": str(1 << 60)},
    }


@given(st.lists(st.lists(VALUES, min_size=1, max_size=4), min_size=1, max_size=3), st.booleans())
def test_rows_are_kept_exactly_when_their_json_fits(rows: list[list[Any]], pieces: bool) -> None:
    """Encoded many at once, or each in small pieces."""
    json = orjson.dumps([[wire(value) for value in row] for row in rows])
    before = worker.ENCODED_AT_ONCE_BYTES, worker.PIECE_CHARS
    if pieces:
        worker.ENCODED_AT_ONCE_BYTES, worker.PIECE_CHARS = -1, 3  # type: ignore[misc]
    try:
        for bytes_max in (len(json) - 1, len(json) - 2):  # a comma after each row, and no brackets
            kept = EncodedRows()
            fits = all(kept.add_row(row, bytes_max) for row in rows) and kept.end_rows(bytes_max)
            assert fits == (bytes_max == len(json) - 1)
            assert not fits or kept.encoded == json[1:-1] + b","
    finally:
        worker.ENCODED_AT_ONCE_BYTES, worker.PIECE_CHARS = before  # type: ignore[misc]


@pytest.mark.parametrize("text", ["\1", '"', "\n", "a", "ä", "\U0001f600", "\x7f"])
def test_long_text_is_counted_as_it_is_escaped(text: str) -> None:
    """And no more of it is made than there is room for."""
    row = (text * 1_000_000,)
    size = len(orjson.dumps(row)) + 1
    kept = EncodedRows()
    assert not kept.add_row(row, 1_000_000)
    assert len(kept.encoded) < 2_000_000
    assert not EncodedRows().add_row(row, size - 1)
    kept = EncodedRows()
    assert kept.add_row(row, size)
    assert kept.encoded[:-1] == orjson.dumps(row)


def test_infinity_is_refused() -> None:
    """JSON has none."""
    with pytest.raises(QueryRefused, match="infinity"):
        EncodedRows().add_row((1.0, float("inf")), 100)
