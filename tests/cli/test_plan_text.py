"""A plan for people."""

from __future__ import annotations

import pytest

from cmdlog.cli.cluster.plan_text import show_plan, stage_row
from tests.api.fake_desk import STAGE


def test_stage_is_a_row() -> None:
    """Without a quorum that is said; nobody is a dash."""
    assert stage_row(STAGE) == ["now", "1, 2, 3", "-", "2", "1, 2, 3", "1 of 3"]
    assert stage_row({**STAGE, "live": [1], "survives": -1, "learners": [4]})[2:] == ["4", "2", "1", "no quorum"]


def test_request_that_is_done_is_said_first(capsys: pytest.CaptureFixture[str]) -> None:
    """A repetition would change nothing."""
    plan = {"stages": [STAGE], "warnings": [], "refusal": None}
    show_plan({"kind": "add", "node": 4, "state": "joining", "version": 3, "already": True, "plan": plan})
    assert capsys.readouterr().out.startswith("add of node 4: done already, or under way (node is joining)\n")
