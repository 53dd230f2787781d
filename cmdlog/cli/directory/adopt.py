"""`cmdlog adopt DIR`: a copy of a node's directory takes the place of the original."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cmdlog.cli.directory.owner import act_as_owner
from cmdlog.cli.output import JsonFlag, out
from cmdlog.wal.files import RealFiles


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("adopt")(adopt)


def adopt(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Node directory that was copied, restored or moved.", callback=act_as_owner)
    ],
    json: JsonFlag = False,
) -> None:
    """Let a copied or restored node directory take the place of its original.

    A node starts only in the directory in which it last ran; a copy of it is
    refused with exit code 11, since both would answer under one identity.
    After a lost disk, a restored backup or a move to another machine this
    command states that the original will never run again. The node keeps its
    id, log, snapshots and archive and gets a new incarnation.

    A directory of one of several members of a cluster is not adopted: the
    others would refuse it, since it may have forgotten what it voted for.
    `cmdlog cluster replace` brings the node back on another disk, by copy.

    To keep the original as well: `cmdlog recover DIR --to OUT`, or `cmdlog fork`.

    [bold]Examples[/bold]

      cmdlog adopt /restored/bank && cmdlog serve bank:db --data /restored/bank
    """
    from cmdlog.wal.opening import home
    from replay.plan.sole_voter import check_adoptable

    path, files = os.path.abspath(directory), RealFiles()
    check_adoptable(files, path)
    made = home.adopt(files, path)
    if made is None:
        out.result(
            {"directory": path, "adopted": False}, lambda: out.text(f"{path} is where the node last ran; nothing was changed")
        )
        return
    told = {"directory": path, "adopted": True, "incarnation": made.identity.incarnation.hex()}
    out.result(told, lambda: out.text(f"{path} is adopted: {made.identity}; never start the original again"))
