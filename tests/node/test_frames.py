"""Frames between node and site: what goes in comes out, however the stream is cut."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.node.sites.frames import (
    FRAME_BYTES_MAX,
    HEADER,
    Frame,
    FrameKind,
    FrameReader,
    decode_applied,
    decode_read_answer,
    encode_applied,
    encode_frame,
    encode_read_answer,
)
from procedures.execution.failure_trace import FailureTrace

FRAMES = st.builds(
    Frame,
    st.sampled_from(FrameKind),
    st.integers(0, 0xFFFF),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=200),
)


def encode(frame: Frame) -> bytes:
    """As it goes over the wire."""
    return encode_frame(frame.kind, frame.payload, partition=frame.partition, ident=frame.ident)


@given(st.lists(FRAMES, max_size=10), st.data())
def test_any_cut_gives_the_same_frames(frames: list[Frame], data: st.DataObject) -> None:
    """Frames come out as they went in, in order, at whatever places the stream was cut."""
    stream = b"".join(map(encode, frames))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=20)))
    reader, found = FrameReader(), []
    for lo, hi in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += list(reader.feed(stream[lo:hi]))
    assert found == frames


def test_byte_by_byte() -> None:
    """A frame is delivered with its last byte, not earlier and not later."""
    frames = [Frame(FrameKind.ENTRY, 3, 2**63, b"abc"), Frame(FrameKind.STOP, 0, 0, b"")]
    reader, found = FrameReader(), []
    stream = b"".join(map(encode, frames))
    for n in range(len(stream)):
        found += list(reader.feed(stream[n : n + 1]))
        assert len(found) == (n + 1 >= HEADER.size + 3) + (n + 1 == len(stream))
    assert found == frames


@pytest.mark.parametrize("size", [0, HEADER.size - 1, FRAME_BYTES_MAX + 1, 0xFFFFFFFF])
def test_a_length_out_of_bounds_is_refused(size: int) -> None:
    """A length that no frame has raises before anything is allocated for it."""
    head = struct.pack("<I", size) + encode_frame(FrameKind.STOP)[4:]
    with pytest.raises(ValueError, match="frame of"):
        list(FrameReader().feed(head))


def test_an_unknown_kind_is_refused() -> None:
    """A kind that this program does not know raises."""
    with pytest.raises(KeyError, match="99"):
        list(FrameReader().feed(HEADER.pack(HEADER.size, 99, 0, 0)))


def test_traces_travel_beside_the_outcomes() -> None:
    """Where calls raised comes along with a batch's answer and with a read's, and takes nothing when there is none."""
    trace = FailureTrace(2**63, "reserve", "shop.py", 7, "reserve", "KeyError: 'x'", "Traceback …", "use tx.now")
    columns: dict[str, Any] = {"statuses": b"\2", "earlier": None, "result_hashes": [1], "bodies": [b"{}"], "rows_digest": 5}
    assert decode_applied(encode_applied(**columns, traces=[trace])).traces == [trace]
    assert decode_applied(encode_applied(**columns)).traces == ()
    assert decode_read_answer(encode_read_answer(9, 2, b"{}", [trace])) == (9, 2, b"{}", [trace])
    assert decode_read_answer(encode_read_answer(9, 0, b"7", ())) == (9, 0, b"7", ())


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 2**63 - 1), st.integers(0, 2**32 - 1), st.binary(max_size=50)), min_size=1
    ),
    st.booleans(),
    st.integers(0, 2**64 - 1),
)
def test_answers_keep_every_column(rows: list[tuple[int, int, int, bytes]], earlier: bool, digest: int) -> None:
    """Statuses, transaction ids of repeated keys, hashes and bodies come out as they went in."""
    payload = encode_applied(
        statuses=bytearray(row[0] for row in rows),
        earlier=[row[1] for row in rows] if earlier else None,
        result_hashes=[row[2] for row in rows],
        bodies=[row[3] for row in rows],
        rows_digest=digest,
    )
    answer = decode_applied(payload)
    assert answer.rows_digest == digest
    assert answer.outcomes == [(row[0], row[1] if earlier else 0, row[3]) for row in rows]
    assert list(memoryview(answer.result_hashes).cast("I")) == [row[2] for row in rows]
