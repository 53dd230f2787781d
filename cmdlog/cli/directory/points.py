"""Damaged recovery points, for every command that looks at what keeps a moment restorable."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from cmdlog.cli.cli_errors import CommandFailed

if TYPE_CHECKING:
    from snapshot.recovery_points import BadPoint

DAMAGED_CODE: Final = 10


def rows_of(bad: Sequence[BadPoint]) -> list[dict[str, Any]]:
    """As rows beside those of snapshots."""
    return [{"name": f"points/{point.name}", "kind": "point", "problem": f"{point.problem}; {point.pinned}"} for point in bad]


def damaged_points(bad: Sequence[BadPoint], directory: str) -> CommandFailed:
    """The error: which file, what it kept, and how to find out whether its moment is still there. `bad` is not empty."""
    from replay.log.archive_reach import time_of

    first, path = bad[0], shlex.quote(directory)
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    name = f"snapshots/points/{first.name} ({time_of(first.txn_id)})"
    return CommandFailed(
        f"recovery point {name} is damaged: {first.problem}; {first.pinned}{more}",
        hint=f"`cmdlog recover {path} --until {first.txn_id} --plan` says whether the moment can be restored; "
        f"restore the file from a copy, or `cmdlog snapshot points {path} --drop {first.txn_id}` removes it: "
        "until then nothing leaves the archive",
        exit_code=DAMAGED_CODE,
        details=[f"{point.name}: {point.problem}; {point.pinned}" for point in bad],
    )
