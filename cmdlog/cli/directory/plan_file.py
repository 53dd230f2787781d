"""The file of a recovery plan: written by one `cmdlog recover`, carried out by another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.disk_errors import write_output
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX

if TYPE_CHECKING:
    from replay.plan.cluster_plan import JointPlan
    from replay.plan.node_plan import Plan


def keep_plan(path: Path | None, plan: Plan | JointPlan) -> None:
    """Writes it; None: it is not to be kept."""
    if path is not None:
        write_output(path, plan.to_json())


def read_bytes(path: Path) -> bytes:
    """Raises: CommandFailed."""
    try:
        with path.open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1)  # a pipe has no size: what is longer is refused where it is read
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}", exit_code=2) from error


def read_plan(path: Path, directories: tuple[str, ...]) -> Plan:
    """The plan of one directory, which is the one that was given. Raises: CommandFailed."""
    from replay.errors import BadPlan
    from replay.plan.node_plan import Plan

    try:
        plan = Plan.from_json(read_bytes(path))
    except BadPlan as error:
        raise CommandFailed(
            f"{path}: {error}", hint="`cmdlog recover DIR --plan --plan-file F` writes one", exit_code=2
        ) from None
    check_same((plan.directory,), directories)
    return plan


def check_same(planned: tuple[str, ...], given: tuple[str, ...]) -> None:
    """Raises: CommandFailed when the plan is for other directories."""
    if set(planned) != set(given):
        raise CommandFailed(f"the plan is for {', '.join(planned)}, not for {', '.join(given)}", exit_code=2)
