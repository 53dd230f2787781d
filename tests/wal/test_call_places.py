"""Places of a call on all partitions, as bytes."""

from __future__ import annotations

import pytest

from cmdlog.wal.format.batch import decode_batch, encode_batch, places_of
from cmdlog.wal.format.call_places import PLACES, CallPlace, decode_places, encode_places, places_bytes_max
from cmdlog.wal.format.record import BadRecord, decode_record

SPREADS = [(0, 0), (0, 9), (3, 300), (255, 256), (256, 1 << 20), (70_000, 1 << 40)]


@pytest.mark.parametrize(("terms", "indexes"), SPREADS)
def test_places_come_back_from_their_bytes(terms: int, indexes: int) -> None:
    """Whatever lies between the groups, in as few bytes as the distances need."""
    places = [CallPlace(7 + (terms if p == 2 else 0), 12 + (indexes if p == 1 else 0)) for p in range(3)]
    section = encode_places(places)
    assert decode_places(section) == tuple(places)
    assert len(section) <= places_bytes_max(3)


def test_no_places_take_no_bytes() -> None:
    """A node that votes alone names none."""
    assert encode_places([]) == b""
    assert decode_places(b"") == ()


def test_places_lie_after_the_text_of_a_batch() -> None:
    """Columns and parameters are where they are without them, compressed or not."""
    places = [CallPlace(3, 8), CallPlace(4, 9000)]
    for compress in (False, True):
        record = decode_record(
            encode_batch(
                partition=1, term=4, index=9000, catalog=1, txn_ids=[(5 << 10) + 1023], procedures=[2], params=[b'["text"]'],
                keys=[bytes(range(16))], places=places, compress=compress,
            )
        )  # fmt: skip
        assert places_of(record) == tuple(places)
        batch = decode_batch(record)
        assert (batch.params(), list(batch.procedures), batch.key_list()) == ([["text"]], [2], [bytes(range(16))])


@pytest.mark.parametrize("change", ["short", "long", "count", "width", "reserved"])
def test_a_section_that_is_not_what_its_header_says_is_refused(change: str) -> None:
    """By name, before anything is judged by it."""
    section = bytearray(encode_places([CallPlace(3, 8), CallPlace(4, 90)]))
    if change in ("short", "long"):
        section = section[:-1] if change == "short" else section + b"\0"
    else:
        at = {field.name: field.offset for field in PLACES.fields}
        section[at[{"count": "count", "width": "term_bytes", "reserved": "reserved"}[change]]] = 3
    with pytest.raises(BadRecord, match="places of a call"):
        decode_places(bytes(section))
