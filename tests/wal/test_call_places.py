"""Places of a call on all partitions, as bytes; and what the terms of the groups' entries say of it."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.format.batch import decode_batch, encode_batch, places_of
from cmdlog.wal.format.call_places import (
    PLACES,
    ROWS_MAX,
    CallPlace,
    CallVerdict,
    TermTable,
    decode_places,
    encode_places,
    judge_call,
    places_bytes_max,
)
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


def table(*terms: int) -> TermTable:
    """Of entries with these terms, from index 1 on."""
    made = TermTable()
    for index, term in enumerate(terms, 1):
        made.add(index, term)
    return made


@pytest.mark.parametrize(
    ("place", "verdict"),
    [
        (CallPlace(2, 3), CallVerdict.IN),
        (CallPlace(2, 2), CallVerdict.OUT),
        (CallPlace(2, 5), CallVerdict.OUT),
        (CallPlace(5, 5), CallVerdict.IN),
        (CallPlace(5, 6), CallVerdict.OPEN),
        (CallPlace(6, 9), CallVerdict.OPEN),
        (CallPlace(4, 9), CallVerdict.OUT),
    ],
)
def test_a_place_is_judged_by_the_terms_of_its_group(place: CallPlace, verdict: CallVerdict) -> None:
    """In where the index holds the term; out by a higher term at or before it; else open."""
    assert table(1, 1, 2, 2, 5).judge(place) is verdict


def test_one_group_that_can_never_have_it_takes_a_call_out() -> None:
    """Whatever the others hold, or will."""
    groups = {0: table(1, 2), 1: table(1), 2: table(1, 3)}
    assert judge_call((CallPlace(2, 2), CallPlace(2, 2), CallPlace(3, 2)), groups) is CallVerdict.OPEN
    assert judge_call((CallPlace(2, 2), CallPlace(2, 2), CallPlace(2, 2)), groups) is CallVerdict.OUT
    assert judge_call((CallPlace(2, 2), CallPlace(1, 1), CallPlace(3, 2)), groups) is CallVerdict.IN


def test_a_table_that_begins_later_knows_its_first_term() -> None:
    """The leader of that term wrote what precedes it there; of an earlier term nothing is known."""
    made = TermTable.beginning(40, 6)
    assert made.judge(CallPlace(6, 30)) is CallVerdict.IN
    assert made.judge(CallPlace(5, 30)) is CallVerdict.UNKNOWN


def test_a_table_is_its_entries_after_any_replacement() -> None:
    """An entry that is not beyond the last one replaces the suffix."""
    rng = random.Random(5)
    made, terms, term = TermTable(), list[int](), 1
    for _ in range(400):
        index = rng.randint(max(1, len(terms) - 3), len(terms) + 1) if terms else 1
        term += rng.random() < 0.3
        terms = [*terms[: index - 1], term]
        made.add(index, term)
        assert [made.judge(CallPlace(of, at)) for at, of in enumerate(terms, 1)] == [CallVerdict.IN] * len(terms)
    assert len(made.rows) < ROWS_MAX


def test_a_table_has_a_limit() -> None:
    """The oldest changes of term are forgotten."""
    made = TermTable()
    for term in range(1, ROWS_MAX + 50):
        made.add(term, term)
    assert len(made.rows) == ROWS_MAX
    assert made.judge(CallPlace(20, 20)) is CallVerdict.UNKNOWN
