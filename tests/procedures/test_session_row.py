"""Rows of sessions: packed and read again, and refused when they are damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from procedures.errors import StateRefused
from procedures.idempotency.session_row import (
    SINGLE_FIGURES,
    Forgotten,
    SessionRow,
    Stage,
    delete_row,
    forgotten_of,
    outcomes_of,
    put_forgotten,
    put_row,
    stored_outcome,
    stored_rows,
    unpack_row,
)
from procedures.storage.state import PartitionState

ONE, TWO = bytes([1]) * 16, bytes([2]) * 16


@pytest.mark.parametrize("seed", range(30))
def test_a_row_comes_back(seed: int) -> None:
    """With one session or several, with calls or without."""
    chance = random.Random(seed)
    sessions = tuple(chance.randbytes(16) for _ in range(chance.randint(1, 4)))
    count = chance.choice([0, 1, 20])
    row = SessionRow(
        9, -5, Stage.SHRUNK, sessions, tuple(chance.randrange(1 << 64) for _ in sessions),
        tuple(chance.randrange(len(sessions)) for _ in range(count)), tuple(chance.randrange(1 << 64) for _ in range(count)),
    )  # fmt: skip
    packed = row.pack()
    assert unpack_row(9, -5, Stage.SHRUNK, packed) == row
    assert row.shared
    for broken in (packed[:-1], packed + b"\0", packed[:3], b""):
        with pytest.raises(StateRefused):
            unpack_row(9, -5, Stage.SHRUNK, broken)


def test_rows_of_a_state_file(tmp_path: Path) -> None:
    """Written, read in order, replaced, deleted; figures are no rows."""
    state = PartitionState.open(tmp_path / "s.db", partition=0)
    db = state.connection
    row = SessionRow(3, 1, Stage.NEW, (ONE, TWO), (0, 4), (0, 1, 0), (1, 5, 2))
    put_row(db, row, b"")
    put_row(db, SessionRow(2, 1, Stage.NEW, (ONE,), (0,), (), ()), b"x")
    put_forgotten(db, SINGLE_FIGURES, Forgotten(77))
    assert [each.idx for each in stored_rows(db)] == [2, 3]
    assert [each.idx for each in stored_rows(db, after=2)] == [3]
    assert outcomes_of(db, 2)[1] == b"x"
    assert forgotten_of(db, SINGLE_FIGURES) == Forgotten(77)
    assert [row.position(ONE, 2), row.position(TWO, 5)] == [2, 1]
    with pytest.raises(StateRefused, match="lacks number 5"):
        stored_outcome(db, 3, ONE, 5)
    delete_row(db, 3)
    with pytest.raises(StateRefused, match="batch 3 are missing"):
        outcomes_of(db, 3)
    state.close()
