"""How `cmdlog spark feed` ends, for the scheduler that started it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from replay.spark.feeding.feed import Fed
from tests.commands import Command


@pytest.mark.parametrize(
    ("statuses", "code"),
    [({"ok": 3}, 0), ({"ok": 1, "aborted": 2}, 0), ({"failed": 3}, 0), ({}, 0), ({"aborted": 1, "ok": 9, "refused": 1}, 1)],
)
def test_feed_ends_well_when_each_call_has_an_outcome(
    command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, statuses: dict[str, int], code: int
) -> None:
    """An abort is an outcome; a call that was refused was not executed. Given again, the finished job ends as it did at first."""
    calls = tmp_path / "calls.json"
    calls.write_text('{"procedure": "a", "params": {}}\n')

    for already in (False, True):

        def fed(given: Any, send: Any, *, to: str, already: bool = already, **_: Any) -> Fed:
            return Fed(to, {"job": "feed", "statuses": statuses}, 0.1, given, already=already)

        monkeypatch.setattr(importlib.import_module("replay.spark.feeding.feed"), "feed", fed)
        ended, told = command("spark", "feed", calls, "--job", "x", "--to", tmp_path / "out", "--json")
        assert (ended, told["statuses"], told["already"]) == (code, statuses, already)
