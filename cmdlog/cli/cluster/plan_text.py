"""What a change of the members would mean, for people: the voters in each stage, warnings, and what would refuse it.

One rule: it shows what the leader has computed, and computes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from cmdlog.cli.output import out

PLAN_COLUMNS: Final = ("stage", "voters", "learners", "quorum", "live", "may be lost")
NONE: Final = "-"


def show_plan(answer: Mapping[str, Any]) -> None:
    """The stages as a table, then what to know before."""
    plan = answer["plan"]
    if answer["already"]:
        out.text(
            f"{answer['kind']} of node {answer['node']}: done already, or under way (node is {answer['state'] or 'unknown'})"
        )
    title = f"{answer['kind']} node {answer['node']}, at version {answer['version']}"
    out.table(title, PLAN_COLUMNS, [stage_row(stage) for stage in plan["stages"]])
    for warning in plan["warnings"]:
        out.text(f"warning: {warning}")
    if plan.get("refusal") is not None:
        out.text(f"refused as {plan['refusal']['code']}: {plan['refusal']['why']}")


def stage_row(stage: Mapping[str, Any]) -> list[str]:
    """For each of PLAN_COLUMNS."""
    spare = stage["survives"]
    lost = f"{spare} of {len(stage['live'])}" if spare >= 0 else "no quorum"
    return [
        stage["what"],
        _listed(stage["voters"]),
        _listed(stage["learners"]),
        str(stage["quorum"]),
        _listed(stage["live"]),
        lost,
    ]


def _listed(nodes: Sequence[int]) -> str:
    return ", ".join(map(str, nodes)) or NONE
