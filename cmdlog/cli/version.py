"""`cmdlog version`: this program and what the state and the log depend on."""

from __future__ import annotations

import importlib.metadata
import platform
import sys
from typing import Annotated

import typer

from cmdlog.cli.output import JsonFlag, out
from cmdlog.wal import native as log


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("version")(version)


def version(json: JsonFlag = False) -> None:
    """Show the versions of cmdlog, Python, SQLite and the packages that replay depends on.

    `native` shows which of the modules in C are built: "engine", "gate", "log". Results are the same without them, and slower.
    """
    import apsw

    from cmdlog.api import native as gate
    from procedures.native import accelerator

    modules = {"engine": accelerator, "gate": gate.steps, "log": log.steps}
    built = [name for name, module in modules.items() if module is not None]
    versions = {
        "cmdlog": version_of("cmdlog"),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        **{name: version_of(name) for name in ("apsw", "sqlalchemy", "fastapi", "uvicorn", "orjson")},
        "native": ", ".join(built) or "none",
    }
    out.result(versions, lambda: out.text("\n".join(f"{name:12} {version}" for name, version in versions.items())))


def _print_version(wanted: bool) -> None:
    if not wanted:
        return
    number = version_of("cmdlog")
    if out.json or "--json" in sys.argv[1:]:  # which is perhaps still to be read
        out.line({"cmdlog": number})
    else:
        out.text(f"cmdlog {number}")
    raise typer.Exit


VersionFlag = Annotated[
    bool, typer.Option("--version", help="Print the version of cmdlog.", callback=_print_version, is_eager=True)
]


def version_of(package: str) -> str:
    """The installed version, "unknown" when the package runs from somewhere else."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
