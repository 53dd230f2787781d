"""Callers of an embedded node whose own stack is deep: it must not become a property of their calls."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Column, Integer, insert

import cmdlog
from procedures import Database, Transaction

db = Database("deep")
done = db.table("done", Column("item", Integer, primary_key=True), partition_by="item")


@db.procedure(partition_by="item")
def note(tx: Transaction, item: int) -> int:
    """One row."""
    tx.execute(insert(done).values(item=item))
    return item


@db.procedure(partition_by="item")
def climb(tx: Transaction, item: int, frames: int) -> int:
    """Needs so many frames of its own."""

    def up(left: int) -> int:
        return left if left == 0 else up(left - 1)

    return up(frames)


def _deep(frames: int, run: Callable[[], Any]) -> Any:
    return run() if frames <= 0 else _deep(frames - 1, run)


def _depth() -> int:
    frame, depth = sys._getframe(), 0
    while (frame := frame.f_back) is not None:  # type: ignore[assignment] # until there is none
        depth += 1
    return depth


@pytest.mark.slow
def test_a_deep_caller_is_served_or_refused_before_anything_is_placed(tmp_path: Path) -> None:
    """At every depth a call runs and is answered, or RecursionError says that nothing was called; the node goes on."""
    limit = sys.getrecursionlimit()
    with cmdlog.open(tmp_path / "node", db) as opened:
        answered = []
        for item, left in enumerate([*range(600, 200, -50), *range(200, 1, -3)]):
            try:
                answered.append(_deep(limit - _depth() - left, lambda item=item: opened.call(note, item=item)))  # type: ignore[misc]
            except RecursionError:
                assert left < 250
        assert len(answered) > 10
        assert opened.call(note, item=1000) == 1000
        found = opened.query("SELECT item FROM done").rows
        assert sorted(item for (item,) in found) == [*answered, 1000]


def test_a_procedure_s_recursion_does_not_depend_on_its_caller(tmp_path: Path) -> None:
    """What runs for a caller at the top of its stack runs for one in the middle of it, too."""
    with cmdlog.open(tmp_path / "node", db) as opened:
        assert opened.call(climb, item=1, frames=600) == 0
        assert _deep(400, lambda: opened.call(climb, item=1, frames=600)) == 0
