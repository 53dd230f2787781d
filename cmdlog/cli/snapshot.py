"""`cmdlog snapshot list | verify | take`: recovery points of a node.

`list` and `verify` read a directory, beside a running node too; `take` asks the running server.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from cmdlog.cli import export
from cmdlog.cli.failure import CommandFailed
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.remote import DEFAULT_URL, CaOption, TimeoutOption, TokenOption, UrlOption, server

DirectoryArgument = Annotated[Path, typer.Argument(metavar="DIR", help="Node directory.")]
TAKE_S = 600.0  # a large state takes its time
COLUMNS = ("name", "txn_id", "rows", "bytes", "created")


def register(program: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(no_args_is_help=True, help="List, verify and take snapshots.")
    group.command("list", help="Show the snapshots of a node directory.")(list_them)
    group.command("verify", help="Read every snapshot and compare all checksums.")(verify)
    group.command("take", help="Let the running server take snapshots now.")(take)
    export.register_in(group)
    program.add_typer(group, name="snapshot")


def list_them(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Manifests are checked, images are not read."""
    _show(_snapshots(directory), "Snapshots")


def verify(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Exit code 10 or 11 when a snapshot is damaged or foreign; all are looked at first."""
    from cmdlog.wal.files import RealFiles
    from snapshot.catalog import check

    files, rows, code = RealFiles(), [], 0
    for snapshot, row in zip(_found(directory), _snapshots(directory), strict=True):
        problem = check(files, snapshot)
        rows.append({**row, "problem": problem} if problem else row)
        code = code or (_exit_code(snapshot.path) if problem else 0)
    _show(rows, "Verified")
    if code:
        damaged = sum("problem" in row for row in rows)
        raise CommandFailed(
            f"{damaged} of {len(rows)} snapshots cannot be relied on",
            hint="recovery falls back to an older one and a longer log; take a new one with `cmdlog snapshot take`",
            exit_code=code,
        )


def take(
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    timeout: TimeoutOption = TAKE_S,
    json: JsonFlag = False,
) -> None:
    """One of every partition; waits until they are verified."""
    with server(url, token_file, timeout, ca_file) as client:
        _show(client.take_snapshot(), "Taken")


def _found(directory: Path) -> list[Any]:
    from cmdlog.wal.files import RealFiles
    from cmdlog.wal.instance import load_instance
    from snapshot.catalog import list_snapshots

    files, path = RealFiles(), os.path.abspath(directory)
    return list_snapshots(files, path, load_instance(files, path).identity)


def _snapshots(directory: Path) -> list[dict[str, Any]]:
    from cmdlog.node.snapshots import describe

    return [describe(snapshot) for snapshot in _found(directory)]


def _exit_code(path: str) -> int:
    from cmdlog.wal.files import RealFiles
    from snapshot.errors import SnapshotError
    from snapshot.seal import verify as verify_one

    try:
        verify_one(RealFiles(), path)
    except SnapshotError as error:
        return error.exit_code
    return 11  # whole, but of another node


def _show(rows: list[dict[str, Any]], title: str) -> None:
    def show() -> None:
        shown = [[row.get(column, "") for column in COLUMNS] + ["bad" if "problem" in row else "whole"] for row in rows]
        out.table(title, (*COLUMNS, "state"), shown)
        for row in rows:
            if "problem" in row:
                out.text(f"{row['name']}: {row['problem']}")

    out.result(rows, show)
