"""What is held of a session: which numbers have an outcome, and what a floor makes useless."""

from __future__ import annotations

import random

from procedures.idempotency.held_sessions import KnownSession, numbers_of
from procedures.idempotency.session_row import SessionRow, Stage

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16


def test_numbers_and_floors_beside_a_plain_set() -> None:
    """Chunks that overlap, in any order of numbers."""
    chance = random.Random(1)
    for _ in range(200):
        session, rows = KnownSession(0, 1), dict[int, set[int]]()
        left = list(range(1, 60))
        chance.shuffle(left)
        for idx in range(1, chance.randint(2, 9)):
            numbers = tuple(left.pop() for _ in range(chance.randint(1, 6)))
            session.add_chunk(idx, numbers)
            rows[idx] = set(numbers)
        floor = chance.randint(0, 60)
        passed = session.passed(floor)
        assert {chunk.idx for chunk in passed} == {idx for idx, numbers in rows.items() if floor and max(numbers) <= floor}
        session.drop(passed)
        kept = {idx: numbers for idx, numbers in rows.items() if idx not in {chunk.idx for chunk in passed}}
        for number in range(1, 62):
            assert session.row_of(number) == next((idx for idx, numbers in kept.items() if number in numbers), 0)
        asked = chance.sample(range(1, 62), 4)
        assert session.knows_any(asked) is any(numbers & set(asked) for numbers in kept.values())


def test_numbers_of_a_row_by_session() -> None:
    """A session that is only mentioned has none."""
    row = SessionRow(1, 0, Stage.NEW, (ONE, TWO), (0, 0), (0, 0), (3, 4))
    assert numbers_of(row) == {ONE: (3, 4)}
    assert numbers_of(SessionRow(1, 0, Stage.NEW, (ONE,), (0,), (), ())) == {}
    assert numbers_of(SessionRow(1, 0, Stage.NEW, (ONE, TWO), (0, 0), (1, 0), (3, 4))) == {TWO: (3,), ONE: (4,)}
