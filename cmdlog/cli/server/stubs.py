"""`cmdlog stubs URL|APP`: a Python module with typed calls, for programs that have a server's address and not its code."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.disk_errors import write_output
from cmdlog.cli.load_app import load_application
from cmdlog.cli.output import out
from cmdlog.cli.server.server_options import TIMEOUT_S, CaOption, TimeoutOption, TokenOption, patience, server, understood

SourceArgument = Annotated[
    str,
    typer.Argument(metavar="URL|APP", help="A running server's address, or module:attribute of a Database.", envvar="CMDLOG_URL"),
]
OutOption = Annotated[Path | None, typer.Option("--out", metavar="FILE", help="File to write; by default standard output.")]
NameOption = Annotated[
    str, typer.Option("--name", metavar="NAME", help="Prefix of the class names; by default the database's name, or Server.")
]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("stubs")(write_stubs)


def write_stubs(
    source: SourceArgument,
    *,
    output: OutOption = None,
    name: NameOption = "",
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    timeout: TimeoutOption = TIMEOUT_S,
) -> None:
    """Write a typed client module: a class with one method per procedure.

    Programs that use it need cmdlog and not the application. Type checkers
    and editors know parameters and results; write it again after a deploy.
    A name that Python or the module needs itself ends with an underscore: a
    procedure `batch` is the method `batch_`.

    [bold]Examples[/bold]

      cmdlog stubs http://127.0.0.1:8642 --out shop_client.py --name Shop
      cmdlog stubs shop:db --out shop_client.py
    """
    from cmdlog.client.stub_module import is_class_prefix, stub_module

    if "://" in source:
        with server(source, token_file, timeout, ca_file) as client, patience(client, source, timeout):
            procedures: list[dict[str, Any]] = client.procedures()
        default = "Server"
    else:
        from cmdlog.node.slot_map import describe_routes, make_routes

        db = load_application(source)
        procedures, default = describe_routes(make_routes(db)), "".join(part.title() for part in db.name.split("_"))
    name = name or default
    if not is_class_prefix(name):
        hint = "give another --name: a letter first, then letters, digits and _"
        raise CommandFailed(f"no class of the module can be called {name}Client", hint=hint, exit_code=USAGE)
    with understood(source):
        text = stub_module(procedures, name=name, source=source)
    if output is None:
        out.document(text.removesuffix("\n"))
        return
    write_output(output, text.encode())
    out.text(f"{len(procedures)} procedures in {output}")
