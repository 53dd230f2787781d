"""Rows of calls and answers: what is encoded is decoded, and nothing that ends early or lies is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cmdlog.cluster.forwarding
from cmdlog.cluster.forwarding.call_rows import (
    ANSWER_FIELDS,
    CALL,
    CALL_CHANNEL,
    CALL_FIELDS,
    CALLS_FIELDS,
    KEY_BYTES,
    NAME_BYTES,
    NAME_FIELDS,
    PROMISES,
    SHAPE_BYTES,
    SLOTS,
    WINDOW_FIELDS,
    AnswerRow,
    CallFrameKind,
    CallName,
    CallWindow,
    decode_answers,
    decode_calls,
    decode_window,
    encode_answers,
    encode_calls,
)
from cmdlog.cluster.transport.sealed_frames import TURN_FIELDS
from cmdlog.raft.wire.layout import BadFrame
from cmdlog.raft.wire.secure_frames import HELLO, LENGTH, LENGTH_FIELDS, LINK_FIELDS, MAC_BYTES
from procedures.declaration import hash_slots
from tests.cluster.transport.channelkit import kinds_of, table_of
from tests.raft.test_layout import placed

WIRE = Path(cmdlog.cluster.forwarding.__file__).with_name("WIRE.md").read_text(encoding="utf-8")
UINT64 = st.integers(0, 2**64 - 1)
NAMES = st.lists(st.builds(CallName, st.binary(max_size=40), st.binary(min_size=SHAPE_BYTES, max_size=SHAPE_BYTES)), max_size=4)
KEYS = st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES).filter(any)
SESSION_KEYS = st.binary(min_size=NAME_BYTES, max_size=NAME_BYTES).filter(lambda key: any(key[KEY_BYTES:]))
ROWS = st.lists(
    st.tuples(
        st.integers(0, 2**16 - 1), st.integers(0, SLOTS - 1), st.integers(0, PROMISES - 1), st.just(b"") | KEYS | SESSION_KEYS,
        UINT64, st.binary(max_size=40),
    ),
    max_size=6,
)  # fmt: skip
CallFields = tuple[int, int, int, bytes, int, bytes]
"""Of one call, in the order of `CallColumns`."""
ANSWERS = st.lists(
    st.builds(AnswerRow, UINT64, st.integers(0, 255), UINT64, st.binary(max_size=40), st.binary(max_size=40)), max_size=6
)


def body_of(names: list[CallName], rows: list[CallFields], first: int = 1) -> bytes:
    """As a link makes it."""
    packed = [CALL.pack(*row[:5], len(row[5])) for row in rows]
    return encode_calls(first, names, packed, [row[5] for row in rows])


@given(UINT64, NAMES, ROWS)
def test_calls_come_as_they_were(first: int, names: list[CallName], rows: list[CallFields]) -> None:
    """Names, rows and parameters; every shorter or longer body is refused."""
    body = body_of(names, rows, first)
    batch = decode_calls(body, len(rows))
    assert (batch.first, batch.names, list(zip(*batch.calls, strict=True))) == (first, names, rows)
    picked = batch.calls.pick(range(1, len(rows), 2))
    assert list(zip(*picked, strict=True)) == rows[1::2]
    for damaged in (body[:-1], body + b"x"):
        with pytest.raises(BadFrame):
            decode_calls(damaged, len(rows))


@given(ANSWERS)
def test_answers_come_as_they_were(rows: list[AnswerRow]) -> None:
    """The same."""
    body = encode_answers(rows)
    assert decode_answers(body, len(rows)) == rows
    with pytest.raises(BadFrame):
        decode_answers(body + b"x", len(rows))
    with pytest.raises(BadFrame):
        decode_answers(body, len(rows) + 1)


@pytest.mark.parametrize("row", [(0, SLOTS, 0), (0, 0, PROMISES)])
def test_slot_or_promise_that_does_not_exist_is_refused(row: tuple[int, int, int]) -> None:
    """Before anything of the frame is placed."""
    with pytest.raises(BadFrame, match="slot"):
        decode_calls(body_of([], [(0, 0, 0, b"", 0, b"[]"), (*row, b"", 0, b"[]")]), 2)


def test_window_comes_as_it_was() -> None:
    """And is refused when it ends early."""
    window = CallWindow(calls=3, params_bytes=1 << 40)
    assert decode_window(window.encode()) == window
    with pytest.raises(BadFrame):
        decode_window(window.encode()[:-1])


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("Frame", (*LENGTH_FIELDS, *LINK_FIELDS, *TURN_FIELDS)),
        ("Window", WINDOW_FIELDS),
        ("Head of calls", CALLS_FIELDS),
        ("Name", NAME_FIELDS),
        ("Call", CALL_FIELDS),
        ("Answer", ANSWER_FIELDS),
    ],
)
def test_every_layout_is_in_the_document(title: str, fields: Sequence[tuple[str, str]]) -> None:
    """Offsets, sizes and names; and the kinds of frames by their numbers."""
    assert table_of(WIRE, title) == list(placed(fields))
    assert kinds_of(WIRE) == {kind.name: kind.value for kind in CallFrameKind}


def test_slots_are_those_of_the_data() -> None:
    """A row holds every slot that there is."""
    assert SLOTS == hash_slots.SLOTS


def test_no_hello_begins_with_the_preface() -> None:
    """The first byte of a connection says whose it is: a hello's is the low byte of its length, that of TLS is 22."""
    hello = LENGTH.pack(LENGTH.size + HELLO.size + MAC_BYTES)[:1]
    assert hello not in {CALL_CHANNEL.preface, bytes([22])}
