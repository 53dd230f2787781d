"""`cmdlog snapshot list | verify | points | take`: recovery points of a node.

`list`, `verify` and `points` read a directory, also while the node runs; `take` asks the running server.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.directory import export
from cmdlog.cli.directory.owner import DirectoryArgument
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.server.server_options import (
    DEFAULT_URL,
    CaOption,
    TimeoutOption,
    TokenOption,
    UrlOption,
    patience,
    server,
    understood,
)
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles

if TYPE_CHECKING:
    from snapshot.catalog import Snapshot
    from snapshot.recovery_points import BadPoint

DAMAGED_CODE: Final = 10
ConsistentFlag = Annotated[
    bool, typer.Option("--consistent", help="Make a recovery point: one transaction id for all partitions, kept restorable.")
]
LOOKS_MAX = 5  # at a snapshot, while a node removes others
TAKE_S = 600.0  # a large state takes its time
COLUMNS = ("name", "kind", "txn_id", "rows", "bytes", "created")


def register(program: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(no_args_is_help=True, help="List, verify and take snapshots.")
    group.command("list", help="Show the snapshots of a node directory.")(list_them)
    group.command("verify", help="Read every snapshot and compare all checksums.")(verify)
    group.command("points", help="Show the recovery points of a node directory.")(points)
    group.command("take", help="Make the running server take snapshots now.")(take)
    export.register_in(group)
    program.add_typer(group, name="snapshot")


def list_them(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Manifests are checked, images are not read."""
    _show(_snapshots(directory), "Snapshots")


def points(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Transactions up to which all partitions can be restored together; see `take --consistent`. Exit code 10: one is damaged."""
    from snapshot.recovery_points import describe_points, list_points

    files, path = RealFiles(), os.path.abspath(directory)
    load_instance(files, path)  # reports what is wrong with a folder that is not a node's
    good, bad = list_points(files, path)
    rows = describe_points(good, bad)
    columns = ("txn_id", "created", "from_block", "to_block")
    out.result(
        rows, lambda: out.table("Recovery points", columns, [[str(row.get(name, "")) for name in columns] for row in rows])
    )
    if bad:
        raise damaged_points(bad, path)


def verify(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Exit code 10 or 11 when a snapshot, or a recovery point, is damaged or foreign; all are looked at first.

    While the node runs, a snapshot that retention removes meanwhile is shown as removed.
    """
    from snapshot.catalog import describe_snapshot
    from snapshot.recovery_points import list_points

    files, rows, code = RealFiles(), [], 0
    for snapshot in _found(directory):
        problem = _problem(directory, snapshot)
        if problem is None:
            rows.append({**_without_problem(describe_snapshot(snapshot)), "removed": True})
            continue
        rows.append({**_without_problem(describe_snapshot(snapshot)), **({"problem": problem} if problem else {})})
        code = code or (_exit_code(snapshot.path) if problem else 0)
    _, bad = list_points(files, os.path.abspath(directory))
    _show([*rows, *rows_of(bad)], "Verified")
    if code:
        damaged = sum("problem" in row for row in rows)
        points = f", and recovery point {bad[0].name} is damaged" if bad else ""
        raise CommandFailed(
            f"{damaged} of {len(rows)} snapshots are damaged{points}",
            hint="recovery falls back to an older one and a longer log; take a new one with `cmdlog snapshot take`",
            exit_code=code,
        )
    if bad:
        raise damaged_points(bad, os.path.abspath(directory))


def take(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    timeout: TimeoutOption = TAKE_S,
    *,
    consistent: ConsistentFlag = False,
    json: JsonFlag = False,
) -> None:
    """One of every partition; waits until they are verified. With --consistent, prints the transaction id to recover to."""
    with (
        understood(url),
        server(url, token_file, timeout, ca_file) as client,
        patience(client, url, timeout, doing="waiting for its snapshots"),
    ):
        if not consistent:
            _show(client.take_snapshot(), "Taken")
            return
        taken = client.take_point()
        txn_id = taken["point"]["txn_id"]
    out.result(taken, lambda: out.text(f"recovery point {txn_id}: `cmdlog recover DIR --until {txn_id} --to OUT` restores it"))


def _found(directory: Path) -> list[Any]:
    from snapshot.catalog import list_snapshots

    files, path = RealFiles(), os.path.abspath(directory)
    return list_snapshots(files, path, load_instance(files, path).identity)


def _problem(directory: Path, snapshot: Snapshot) -> str | None:
    """Why the snapshot cannot be relied on, "" when it can; None: the running node has removed it since it was listed.

    What a delta is based on may move to the archive meanwhile, so a problem counts only if a new look finds it again.
    """
    from snapshot.catalog import check

    problem = check(RealFiles(), snapshot)
    for _ in range(LOOKS_MAX if problem else 0):
        again = next((found for found in _found(directory) if found.path == snapshot.path), None)
        if again is None or not os.path.isdir(snapshot.path):
            return None
        if (found := check(RealFiles(), again)) in ("", problem):
            return found
        problem = found
    return problem


def _without_problem(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "problem"}


def _snapshots(directory: Path) -> list[dict[str, Any]]:
    from snapshot.catalog import describe_snapshot

    return [describe_snapshot(found) for found in _found(directory) if found.manifest is not None or os.path.isdir(found.path)]


def _exit_code(path: str) -> int:
    from snapshot.errors import SnapshotError
    from snapshot.manifest import verify as verify_one

    try:
        manifest = verify_one(RealFiles(), path)
    except SnapshotError as error:
        return error.exit_code
    return 10 if manifest.base is not None else 11  # intact, but what it builds on is not; or of another node


def _state_of(row: dict[str, Any]) -> str:
    if row.get("removed"):
        return "removed meanwhile"
    return "bad" if "problem" in row else "whole"


def _show(rows: list[dict[str, Any]], title: str) -> None:
    def show() -> None:
        shown = [[row.get(column, "") for column in COLUMNS] + [_state_of(row)] for row in rows]
        out.table(title, (*COLUMNS, "state"), shown)
        for row in rows:
            if "problem" in row:
                out.text(f"{row['name']}: {row['problem']}")

    out.result(rows, show)


def rows_of(bad: Sequence[BadPoint]) -> list[dict[str, Any]]:
    """As rows of the same table as snapshots."""
    return [{"name": f"points/{point.name}", "kind": "point", "problem": f"{point.problem}; {point.pinned}"} for point in bad]


def damaged_points(bad: Sequence[BadPoint], directory: str) -> CommandFailed:
    """Which file, what it kept, and how to find out whether its moment is still there. `bad` is not empty."""
    from replay.log.archive_reach import time_of

    first, path = bad[0], shlex.quote(directory)
    more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
    name = f"snapshots/points/{first.name} ({time_of(first.txn_id)})"
    return CommandFailed(
        f"recovery point {name} is damaged: {first.problem}; {first.pinned}{more}",
        hint=f"`cmdlog recover {path} --until {first.txn_id} --plan` shows whether the moment can be restored; "
        "restore the file from a copy, or delete it: until then nothing leaves the archive",
        exit_code=DAMAGED_CODE,
        details=[f"{point.name}: {point.problem}; {point.pinned}" for point in bad],
    )
