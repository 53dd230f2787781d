"""Lines of entries over several damaged logs: where one may go over to another, and what is never mixed."""

from __future__ import annotations

import random
from array import array

import pytest

from replay.log.spans import BEGINNING, Mark, Span, join

Line = list[tuple[int, int]]  # (term, checksum) of entry 1, 2, …


def line(*terms: int, salt: int = 0) -> Line:
    """A stream with these terms; equal terms and salt give equal entries."""
    return [(term, 1000 * term + 10 * index + salt) for index, term in enumerate(terms, start=1)]


def span(name: str, of: Line, first: int, last: int, *, base: bool = True) -> Span:
    """Entries first to last of that stream in a log; `base` says whether the entry before them is stated there."""
    mark = BEGINNING if first == 1 else Mark(first - 1, *of[first - 2])
    terms, checksums = zip(*of[first - 1 : last], strict=True) if last >= first else ((), ())
    return Span(name, first - 1, mark if base else None, 1, 1, array("Q", terms), array("I", checksums))


def end(of: Line) -> Mark:
    """The last entry of that stream."""
    return Mark(len(of), *of[-1])


def pieces(steps: object) -> list[tuple[str, int, int]]:
    """(directory, from, to) of every step."""
    return [(step.span.directory, step.from_mark.index, step.to_mark.index) for step in steps]  # type: ignore[attr-defined]


def test_whole_log_needs_one_step() -> None:
    """Other logs are not touched when the first one holds everything."""
    a = line(1, 1, 2, 2)
    assert pieces(join([BEGINNING], end(a), [span("A", a, 1, 4), span("B", a, 1, 4)])[1]) == [("A", 0, 4)]


def test_hole_is_bridged_by_a_log_that_holds_the_same_entries() -> None:
    """From A to B at an entry that both hold, and back behind the hole."""
    a = line(1, 1, 1, 2, 2, 2)
    spans = [span("A", a, 1, 2), span("A", a, 5, 6, base=False), span("B", a, 2, 5, base=False)]
    assert pieces(join([BEGINNING], end(a), spans)[1]) == [("A", 0, 2), ("B", 2, 5), ("A", 5, 6)]


def test_base_that_a_head_states_is_a_place_to_go_over() -> None:
    """The entry before a span's first one is known by its term and checksum alone."""
    a = line(1, 1, 1, 1)
    spans = [span("A", a, 1, 2), span("B", a, 3, 4)]
    assert pieces(join([BEGINNING], end(a), spans)[1]) == [("A", 0, 2), ("B", 2, 4)]
    blind = [span("A", a, 1, 2), span("B", a, 3, 4, base=False)]
    assert pieces(join([BEGINNING], end(a), blind)[1]) == [("A", 0, 2)]


def test_superseded_tail_of_another_log_is_left_where_the_two_part() -> None:
    """B holds entries 3 and 4 of a term that lost; only what it shares with the chosen line is taken from it."""
    a, b = line(1, 1, 3, 3, 3), line(1, 1, 2, 2)
    spans = [span("A", a, 2, 5, base=False), span("B", b, 1, 4)]
    assert pieces(join([BEGINNING], end(a), spans)[1]) == [("B", 0, 2), ("A", 2, 5)]


def test_entry_of_a_losing_term_never_fills_a_hole() -> None:
    """B has an entry 3, but not the one that was committed: the line ends before it."""
    a, b = line(1, 1, 3, 3), line(1, 1, 2)
    found = join([BEGINNING], end(a), [span("A", a, 1, 2), span("A", a, 4, 4, base=False), span("B", b, 1, 3)])
    assert not any(step.to_mark == end(a) for step in found[1])


def test_snapshot_that_leads_to_the_end_is_taken_before_one_that_does_not() -> None:
    """The furthest start may stand in a hole; then an earlier one serves."""
    a = line(1, 1, 1, 1, 1)
    spans = [span("A", a, 3, 5, base=False)]
    starts = [Mark(2, *a[1]), Mark(3, *a[2]), BEGINNING]
    assert join(starts, end(a), spans) == (starts[1], join([starts[1]], end(a), spans)[1])
    assert pieces(join(starts, end(a), spans)[1]) == [("A", 3, 5)]


def test_start_at_the_end_needs_nothing() -> None:
    """A snapshot of the very last entry is the whole recovery."""
    a = line(1, 1)
    assert join([end(a)], end(a), []) == (end(a), [])


@pytest.mark.parametrize("seed", range(4))
def test_line_is_found_whenever_one_exists_and_is_never_of_two_histories(seed: int) -> None:
    """Against a search by single entries, over random logs with holes and losing tails."""
    chance = random.Random(seed)
    for _ in range(150):
        a = line(*sorted(chance.randint(1, 3) for _ in range(chance.randint(1, 9))))
        spans = []
        for name in "ABC"[: chance.randint(1, 3)]:
            own = a if chance.random() < 0.6 else (a[: chance.randrange(len(a) + 1)] + line(*[9] * 9, salt=7)[len(a) :])[:9]
            first = 1
            while first <= len(own):
                last = min(len(own), first + chance.randrange(4))
                spans.append(span(name, own, first, last, base=first == 1 or chance.random() < 0.3))
                first = last + chance.randint(1, 3)
        starts = [Mark(i, *a[i - 1]) for i in chance.sample(range(1, len(a) + 1), chance.randrange(min(3, len(a) + 1)))]
        start, steps = join([*starts, BEGINNING], end(a), spans)
        reached = steps[-1].to_mark if steps else start
        assert (reached == end(a)) == _reachable(a, [*starts, BEGINNING], spans)
        if reached == end(a):
            at = start
            for step in steps:
                assert step.from_mark == at
                for index in range(at.index + 1, step.to_mark.index + 1):
                    assert step.span.mark(index) == Mark(index, *a[index - 1])
                at = step.to_mark


def _reachable(a: Line, starts: list[Mark], spans: list[Span]) -> bool:
    """Entry by entry: from (index, span) to the next index of the same span, or to another span that knows this entry."""
    true = [BEGINNING, *(Mark(i, *entry) for i, entry in enumerate(a, start=1))]
    todo = [(mark.index, number) for mark in starts for number, s in enumerate(spans) if s.mark(mark.index) == mark]
    if true[-1] in starts:
        return True
    seen = set(todo)
    while todo:
        index, number = todo.pop()
        if index == len(a):
            return True
        ways = [(index, other) for other, s in enumerate(spans) if s.mark(index) == true[index]]
        if spans[number].mark(index + 1) == true[index + 1]:
            ways.append((index + 1, number))
        for way in ways:
            if way not in seen:
                seen.add(way)
                todo.append(way)
    return False
