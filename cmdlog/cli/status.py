"""`cmdlog status`: what a running server says about itself."""

from __future__ import annotations

from typing import Any

import typer

from cmdlog.cli.output import JsonFlag, flatten, out
from cmdlog.cli.remote import DEFAULT_URL, TokenOption, UrlOption, ask


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("status")(status)


def status(url: UrlOption = DEFAULT_URL, token_file: TokenOption = None, json: JsonFlag = False) -> None:
    """Show the node, its partitions with their watermarks, and how full the log is.

    [bold]Examples[/bold]

      cmdlog status
      cmdlog status --url http://10.0.0.7:8642 --json
    """
    told = ask(url, token_file, "GET", "/v1/status")
    out.result(told, lambda: _show(told))


def _show(told: dict[str, Any]) -> None:
    partitions = told.pop("partitions", {})
    out.table("Node", ("what", "value"), flatten(told))
    if partitions:
        columns = list(next(iter(partitions.values())))
        rows = [(number, *(marks.get(column, "") for column in columns)) for number, marks in partitions.items()]
        out.table("Partitions", ("partition", *columns), rows)
