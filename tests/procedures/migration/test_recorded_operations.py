"""`op` in a replay."""

from __future__ import annotations

import pytest

from procedures.migration.recorded_operations import RecordedOperations, StepsDiffer


def test_calls_run_their_steps_whatever_they_say() -> None:
    """A batch is one step, at its end; nothing comes back but a name."""
    ran: list[tuple[str, ...]] = []
    op = RecordedOperations([("one",), (), ("two", "three")], ran.append)
    assert op.add_column("t", None) is None
    with op.batch_alter_table("t") as batch:
        assert batch.add_column(None) is None
        assert batch.f("n") == op.f("n") == "n"
        assert ran == [("one",)]
    op.drop_table("t")
    op.end_steps()
    assert ran == [("one",), (), ("two", "three")]


def test_other_numbers_of_calls_are_a_difference() -> None:
    """More, and fewer."""
    op = RecordedOperations([("one",)], lambda _step: None)
    with pytest.raises(StepsDiffer, match="it made 0 calls of op"):
        op.end_steps()
    op.drop_table("t")
    with pytest.raises(StepsDiffer, match="more than 1 times"):
        op.drop_table("t")
    with pytest.raises(AttributeError):
        _ = op._none
