"""Sums as they pass between nodes: what is out of bounds is refused at the gate."""

from __future__ import annotations

import pytest

from cmdlog.cluster.copying.copy_values import decode_value, encode_value
from cmdlog.cluster.copying.log_sums import RANGES_MAX, KnownSums, SumsRequest
from cmdlog.raft.wire.layout import BadFrame


def test_questions_and_answers_come_out_as_they_went_in() -> None:
    """Over JSON."""
    request = SumsRequest(1022, 5, 5 + RANGES_MAX - 1, 1024)
    assert decode_value(encode_value(request.to_json()), SumsRequest.from_json) == request
    known = KnownSums({5: 0, 6: 0xFFFF_FFFF})
    assert decode_value(encode_value(known.to_json()), KnownSums.from_json) == known


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"group":0,"first":0,"last":4096,"stride":1024}',
        b'{"group":0,"first":2,"last":1,"stride":1024}',
        b'{"group":0,"first":-1,"last":1,"stride":1024}',
        b'{"group":0,"first":0,"last":1}',
    ],
)
def test_questions_out_of_bounds_are_refused(body: bytes) -> None:
    """A question is for a bounded number of ranges."""
    with pytest.raises(BadFrame):
        decode_value(body, SumsRequest.from_json)


def test_answers_out_of_bounds_are_refused() -> None:
    """Nobody asked for so many."""
    with pytest.raises(BadFrame):
        decode_value(encode_value(KnownSums(dict.fromkeys(range(RANGES_MAX + 1), 1)).to_json()), KnownSums.from_json)
