"""`cmdlog deploy`: sends the local code to a running server, which continues to answer calls.

One rule: the application is imported here to be packed; whether it can be served is the server's to find out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.load_app import load_application
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

DEPLOY_S: Final = 600.0  # the server imports the code and runs its workload twice while it answers calls

AppOption = Annotated[
    str | None,
    typer.Argument(metavar="[APP]", help="module:attribute of a Database; omit it with --rollback.", envvar="CMDLOG_APP"),
]
PlanFlag = Annotated[bool, typer.Option("--plan", help="Check everything, show what would change, and change nothing.")]
MigrateFlag = Annotated[
    bool,
    typer.Option(
        "--migrate", help="Also apply changes that pause calls: migrations, and changes that existing rows may not fit."
    ),
]
RollbackFlag = Annotated[bool, typer.Option("--rollback", help="Deploy the code of a former version as a new version.")]
ToOption = Annotated[int | None, typer.Option("--to", metavar="VERSION", min=1, help="With --rollback: the version to restore.")]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("deploy")(deploy)


def deploy(
    app: AppOption = None,
    url: UrlOption = DEFAULT_URL,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    timeout: TimeoutOption = DEPLOY_S,
    *,
    migrate: MigrateFlag = False,
    plan: PlanFlag = False,
    rollback: RollbackFlag = False,
    to: ToOption = None,
    json: JsonFlag = False,
) -> None:
    """Deploy new code to a running server; no call fails.

    None waits for it either, unless tables change by more than additions: that needs --migrate.

    The server checks the code in a process of its own first. What it refuses changes nothing.

    [bold]Examples[/bold]

      cmdlog deploy shop:db --plan
      cmdlog deploy shop:db --url http://10.0.0.7:8642
      cmdlog deploy --rollback
    """
    order = _order_of(app, rollback=rollback, to=to)
    with server(url, token_file, timeout, ca_file) as client, patience(client, url, timeout, doing="waiting for its check"):
        answer = client.deploy(**order, migrate=migrate, plan=plan, timeout_s=timeout)
    with understood(url):
        out.result(answer, lambda: _show(answer, plan=plan))


def _order_of(app: str | None, *, rollback: bool, to: int | None) -> dict[str, Any]:
    """Raises: CommandFailed."""
    if to is not None and not rollback:
        raise CommandFailed("--to is for --rollback", hint="add --rollback, or omit --to", exit_code=2)
    if rollback:
        return {"rollback": True, **({} if to is None else {"to": to})}
    if app is None:
        raise CommandFailed("no application is named", hint="name one, such as shop:db, or use --rollback", exit_code=2)
    from procedures.code.bundle import capture_bundle

    return {"bundle": capture_bundle(load_application(app), app)}


def _show(answer: Mapping[str, Any], *, plan: bool) -> None:
    if not answer["changed"]:
        out.text(f"version {answer['version']} runs this code already")
        return
    for name in answer["migrations"]:
        out.text(f"migration {name}")
    for partition, statements in () if answer["steps"] else answer["partitions"].items():
        for sql in statements:
            out.text(f"partition {partition}: {sql}")
    done = "would become" if plan else "is"
    for partition, steps in answer["steps"].items():
        for migration, sql, rows, seconds in steps:
            out.text(f"partition {partition}, {migration or 'tables'}: {rows} rows in {seconds:.3f} s: {sql or 'by tx'}")
    if answer["pauses"]:
        out.text(f"calls pause for it, with --migrate, for about {answer['pause_ms']:g} ms: {answer['pauses']}")
    if answer["former_cannot_run"]:
        out.text(f"the former code cannot run after this: {answer['former_cannot_run']}")
    pause = "" if plan else f"; no call could be placed for {answer['pause_ms']:g} ms"
    out.text(f"the code {done} version {answer['version']}{pause}")
