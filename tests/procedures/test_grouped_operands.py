"""Operands that are comparisons."""

from __future__ import annotations

from procedures import Database
from procedures.declaration.grouped_operands import operands_are_ungrouped, operands_ungrouped


def test_code_of_before_leaves_brackets_to_sqlalchemy() -> None:
    """What is declared meanwhile keeps it."""
    with operands_ungrouped():
        assert operands_are_ungrouped()
        before = Database("before")
    assert not before.dialect.groups_operands
    assert Database("now").dialect.groups_operands
