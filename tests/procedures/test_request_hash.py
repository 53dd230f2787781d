"""Hashes of requests are stored with outcomes: they are these numbers, for ever."""

from __future__ import annotations

import pytest

from procedures.wire.request_hash import request_hash, request_seed


@pytest.mark.parametrize(
    ("procedure", "params", "wanted"),
    [
        ("put", [], 0x9A58C1FC0D4CBB29),
        ("put", [1, "a"], 0x42C3569786EFD9F5),
        ("take", [1, "a"], 0xBD40C63C86EFD9F5),
        ("put", ["a", 1], 0x5398CC30BA636A39),
    ],
)
def test_hash_is_this_one(procedure: str, params: list[object], wanted: int) -> None:
    """Of the name, and of the parameters in their order."""
    assert request_hash(request_seed(procedure), params) == wanted
