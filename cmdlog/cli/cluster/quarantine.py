"""`cmdlog cluster quarantine list | remove`: what a node's directory held before a copy took its place.

One rule: a node never deletes what it puts there; an operator does, with this command.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.cluster.cluster_options import YesFlag, ask_first
from cmdlog.cli.directory.owner import act_as_owner
from cmdlog.cli.output import JsonFlag, out

DirectoryArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Node directory; its node may run.", callback=act_as_owner)
]
NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the entry, from `list`.")]
COLUMNS: Final = ("name", "taken", "reason", "bytes")
HELP: Final = """List and remove what a node set aside when it was rebuilt by a copy.

[bold]Examples[/bold]

  cmdlog cluster quarantine list ./n3
  cmdlog log inspect ./n3/quarantine/20260131T120000Z-damaged
  cmdlog cluster quarantine remove ./n3 20260131T120000Z-damaged

Keep an entry until the node is level again, and is not needed to find a cause.
"""


def register_quarantine(group: typer.Typer) -> None:
    """Adds the commands."""
    commands = typer.Typer(no_args_is_help=True, help=HELP, rich_markup_mode="rich")
    commands.command("list", help="Show the entries, oldest first.")(list_entries)
    commands.command("remove", help="Delete one entry for good. Asks first.")(remove_entry)
    group.add_typer(commands, name="quarantine")


def list_entries(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Reads names and sizes."""
    from cmdlog.member.rejoin.quarantine_folder import list_quarantine
    from cmdlog.wal.files import RealFiles

    rows = [entry.to_json() for entry in list_quarantine(RealFiles(), _existing(directory))]
    shown = [[row[column] for column in COLUMNS] for row in rows]
    out.result(
        {"entries": rows}, lambda: out.table("Quarantine", COLUMNS, shown) if rows else out.text("the quarantine is empty")
    )


def remove_entry(directory: DirectoryArgument, name: NameArgument, *, yes: YesFlag = False, json: JsonFlag = False) -> None:
    """Raises: NotInQuarantine, CommandFailed."""
    from cmdlog.member.rejoin.quarantine_folder import remove_quarantined
    from cmdlog.wal.files import RealFiles

    path = _existing(directory)
    ask_first(f"delete {os.path.join(path, 'quarantine', name)} for good?", yes=yes)
    gone = remove_quarantined(RealFiles(), path, name).to_json()
    out.result({"removed": gone}, lambda: out.text(f"removed {name}: {gone['bytes']:,} bytes"))


def _existing(directory: Path) -> str:
    if not directory.is_dir():
        raise CommandFailed(f"{directory} is not a directory", exit_code=USAGE)
    return os.path.abspath(directory)
