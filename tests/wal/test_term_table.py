"""The terms of a group's entries, and what they say of a call on all partitions."""

from __future__ import annotations

import random

import pytest

from cmdlog.wal.format.call_places import CallPlace
from cmdlog.wal.term_table import ROWS_MAX, CallVerdict, TermTable, judge_call


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
