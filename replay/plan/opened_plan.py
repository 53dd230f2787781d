"""The log of a plan, opened for carrying it out."""

from __future__ import annotations

from cmdlog.wal.files import Files
from replay.log.archive_reach import source_from
from replay.log.source import LogSource
from replay.log.spans import salvage
from replay.plan.planner import Plan


def source_of_plan(files: Files, plan: Plan) -> LogSource:
    """The log as the plan reads it. Raises: WalError, PlanOutdated when it no longer exists."""
    if plan.salvaged:
        return salvage(files, plan.directory)
    return source_from(files, plan.directory, plan.from_block, plan.gaps)
