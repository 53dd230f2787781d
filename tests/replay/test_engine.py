"""The engine's replay of a batch: whatever passed live passes again."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from procedures import Database, Transaction
from procedures.errors import EnvironmentFault
from procedures.execution.executor import Applied, Status
from replay.engine import FRAMES_MORE, replay_calls
from tests.procedures.sites import Site


def recursive() -> tuple[Database, Callable[[int], None]]:
    """An application that recurses as deep as its caller says; and how it is told to set its own limit."""
    db = Database("recursive")
    wanted: list[int] = []

    def below(depth: int) -> int:
        return 0 if depth == 0 else 1 + below(depth - 1)

    @db.procedure(partition_by="depth")
    def descend(tx: Transaction, depth: int) -> int:
        if wanted:
            sys.setrecursionlimit(wanted.pop())
        return below(depth)

    return db, wanted.append


def at_depth(frames: int, run: Callable[[], Applied]) -> Applied:
    """Runs it that much deeper on the stack."""
    return run() if frames == 0 else at_depth(frames - 1, run)


def on_a_new_stack(run: Callable[[], Applied]) -> Applied:
    """Runs it on a thread of its own, as a site does."""
    found: list[Applied] = []
    thread = threading.Thread(target=lambda: found.append(run()))
    thread.start()
    thread.join()
    return found[0]


def test_call_that_came_near_the_limit_of_the_stack_is_replayed_from_a_deeper_one(tmp_path: Path) -> None:
    """It was acknowledged, so it must pass where the replay itself takes more of the stack; the limit is as before behind it."""
    db, _ = recursive()
    limit = sys.getrecursionlimit()
    call = ("descend", {"depth": limit - 30})
    live, replayed = Site(tmp_path / "live.db", db), Site(tmp_path / "replayed.db", db)
    first = on_a_new_stack(lambda: live.apply(call))
    assert first.statuses[0] == Status.OK
    with pytest.raises(EnvironmentFault, match="recursion"):
        at_depth(100, lambda: replayed.apply(call))
    replayed.milliseconds = live.milliseconds - 1
    again = at_depth(100, lambda: replay_calls(replayed.executor, replayed.batch([call])))
    assert again.result_hashes == first.result_hashes
    assert sys.getrecursionlimit() == limit
    live.close()
    replayed.close()


def test_limit_that_an_application_sets_stays(tmp_path: Path) -> None:
    """Modules that set it when they are loaded find it so in the calls that follow."""
    db, set_limit = recursive()
    limit = sys.getrecursionlimit()
    site = Site(tmp_path / "own.db", db)
    try:
        set_limit(limit + 10 * FRAMES_MORE)
        replay_calls(site.executor, site.batch([("descend", {"depth": 1})]))
        assert sys.getrecursionlimit() == limit + 10 * FRAMES_MORE
    finally:
        sys.setrecursionlimit(limit)
        site.close()
