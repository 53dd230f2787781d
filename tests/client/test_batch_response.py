"""Answers of a batch, chunk by chunk."""

from __future__ import annotations

from itertools import pairwise

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.client import batch_window as lines_module
from cmdlog.client.batch_window import AnswerLines, is_stream, no_stream
from cmdlog.client.response import Attempt, Lost, Response

LOST = Lost(reached=True, reason="reset")


def result(number: int) -> bytes:
    """A line with a result."""
    return orjson.dumps({"txn_id": str(number), "partition": 0, "result": number}) + b"\n"


def numbers(attempts: list[Attempt]) -> list[int | None]:
    """The results in attempts; None stands for a lost one."""
    return [attempt.value["result"] if isinstance(attempt, Response) else None for attempt in attempts]


def read(body: bytes, cuts: list[int], *, count: int) -> list[Attempt]:
    """The attempts that a body gives, cut at these places."""
    lines = AnswerLines(count)
    bounds = [0, *sorted(min(cut, len(body)) for cut in cuts), len(body)]
    found = [attempt for lo, hi in pairwise(bounds) for attempt in lines.feed(body[lo:hi], date="")]
    return found + list(lines.end(LOST))


@given(st.integers(0, 8), st.integers(0, 8), st.lists(st.integers(0, 600), max_size=6))
def test_each_line_has_one_attempt_wherever_the_body_is_cut(count: int, answered: int, cuts: list[int]) -> None:
    """As many attempts as lines were sent: answers in order, then what is left is lost; surplus answers are nobody's."""
    found = read(b"".join(map(result, range(answered))), cuts, count=count)
    assert numbers(found) == [n if n < answered else None for n in range(count)]


@given(st.lists(st.integers(0, 400), max_size=4))
def test_nothing_is_believed_after_a_line_that_cannot_be_read(cuts: list[int]) -> None:
    """Its position is lost, so the answers behind it could be anybody's."""
    body = result(0) + b'{"txn_id": "1", "part\n' + result(2)
    assert numbers(read(body, cuts, count=3)) == [0, None, None]


def test_half_a_line_is_no_answer() -> None:
    """A connection that ends in the middle of a line leaves that line without an answer."""
    assert numbers(read(result(0) + result(1)[:-5], [], count=2)) == [0, None]


def test_line_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: a line over the limit breaks the stream off."""
    monkeypatch.setattr(lines_module, "LINE_BYTES_MAX", 1000)
    lines = AnswerLines(2)
    for _ in range(20):
        assert list(lines.feed(b"x" * 100, date="")) == []
    assert lines.broken
    assert numbers(list(lines.feed(b"\n" + result(1), date="")) + list(lines.end(LOST))) == [None, None]


def test_one_object_is_nobodys_result() -> None:
    """An answer of 200 that is no stream stands for no line's result."""
    assert is_stream(200, {"content-type": "application/x-ndjson; charset=utf-8"})
    assert not is_stream(200, {"content-type": "application/json"})
    assert not is_stream(503, {"content-type": "application/x-ndjson"})
    answer = no_stream(Response(200, {"txn_id": "1", "partition": 0, "result": 1}))
    assert isinstance(answer, Response)
    assert answer.value is None
    refused = Response(503, {"code": "not_ready"})
    assert no_stream(refused) is refused
