"""`cmdlog files`: what a server needs around it, as files to start from: systemd, Docker, Prometheus, Grafana, settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from importlib.resources import files as resources
from typing import Annotated, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.output import JsonFlag, out

FOLDER: Final = "deploy"  # of the package `cmdlog`
CONFIG: Final = "cmdlog.toml"
FILES: Final[Mapping[str, str]] = {
    CONFIG: "every setting with its default and meaning, commented out",
    "cmdlog.service": "a unit of systemd, Type=notify with a watchdog",
    "Dockerfile": "an image of an application and its server",
    "cmdlog-requirements.txt": "what that image installs, by hash",
    "alerts.yml": "alert rules for Prometheus",
    "grafana.json": "a dashboard for Grafana",
}

NameArgument = Annotated[str | None, typer.Argument(metavar="[NAME]", help="Print this file.")]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("files")(files)


def files(name: NameArgument = None, json: JsonFlag = False) -> None:
    """List or print files to run a server with: settings, systemd, Docker, Prometheus, Grafana.

    [bold]Examples[/bold]

      cmdlog files
      cmdlog files cmdlog.toml > cmdlog.toml
      cmdlog files cmdlog.service > /etc/systemd/system/cmdlog.service
    """
    if name is None:
        listed = "\n".join(f"{known:23} {meaning}" for known, meaning in FILES.items())
        out.result({"files": dict(FILES)}, lambda: out.document(listed))
        return
    if name not in FILES:
        raise CommandFailed(f"there is no file {name}", hint=f"there are {', '.join(FILES)}", exit_code=2)
    text = read_deploy_file(name)
    out.result({"name": name, "text": text}, lambda: out.document(text.rstrip("\n")))


def read_deploy_file(name: str) -> str:
    """One of FILES."""
    made: Mapping[str, Callable[[], str]] = {CONFIG: _make_config}
    return made.get(name, partial(_read_resource, name))()


def _read_resource(name: str) -> str:
    return resources("cmdlog").joinpath(FOLDER, name).read_text(encoding="utf-8")


def _make_config() -> str:
    from cmdlog.cli.server.settings_table import settings_toml

    return settings_toml()
