"""Faults of a read-only call: what is the procedure's own doing is its outcome, what SQLite needs is not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import cmdlog
from cmdlog.errors import ProcedureFailed
from procedures import Database, Transaction


def _recurse() -> None:
    _recurse()


def _interrupt() -> None:
    raise KeyboardInterrupt


def _swallow() -> None:
    try:
        _recurse()
    except RecursionError:
        _interrupt()


WRONG: dict[str, Callable[[], object]] = {
    "RecursionError": _recurse,
    "MemoryError": lambda: bytearray(1 << 62),
    "KeyboardInterrupt": _interrupt,
}

db = Database("faults")


@db.procedure(partition_by="item", read_only=True)
def look(tx: Transaction, item: int, wrong: str) -> int:
    """Goes wrong as it is asked to."""
    if wrong == "swallowed":
        _swallow()
    elif wrong:
        WRONG[wrong]()
    return item


@pytest.mark.parametrize("wrong", [*WRONG, "swallowed"])
def test_a_read_that_goes_wrong_is_answered_and_the_node_goes_on(tmp_path: Path, wrong: str) -> None:
    """In this process: the call fails with its error, at once, and calls of every partition are answered after it."""
    with cmdlog.open(tmp_path / "node", db, partitions=2) as opened:
        for _ in range(3):
            with pytest.raises(ProcedureFailed, match="KeyboardInterrupt" if wrong == "swallowed" else wrong):
                opened.call(look, item=1, wrong=wrong)
        assert [opened.call(look, item=item, wrong="") for item in range(4)] == [0, 1, 2, 3]
