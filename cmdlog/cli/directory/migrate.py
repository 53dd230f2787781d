"""`cmdlog migrate`: the migrations of an application, planned or run, on a directory or on a running server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed
from cmdlog.cli.directory.owner import act_as_owner, warn_of_code
from cmdlog.cli.disk_errors import writing
from cmdlog.cli.load_app import AppArgument, load_application
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.progress import ProgressDisplay
from cmdlog.cli.server.server_options import CaOption, TokenOption
from cmdlog.cli.signals import report_on_interrupt
from cmdlog.wal.files import RealFiles

if TYPE_CHECKING:
    from cmdlog.node.migrating.offline_plan import OfflinePlan
    from procedures import Database

SQL_SHOWN = 160  # characters of a statement that people see; --json has all

DataOption = Annotated[
    Path | None, typer.Option("--data", metavar="DIR", help="A node directory that is not served; default: cmdlog-data.")
]
ServerOption = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Migrate a running server instead, as `deploy --migrate` does.")
]
PlanFlag = Annotated[bool, typer.Option("--plan", help="Try the migrations on copies of the states, and change nothing.")]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("migrate")(migrate)


def migrate(
    app: AppArgument,
    data: DataOption = None,
    url: ServerOption = None,
    token_file: TokenOption = None,
    ca_file: CaOption = None,
    *,
    plan: PlanFlag = False,
    json: JsonFlag = False,
) -> None:
    """Migrate the tables to those of APP.

    Every partition goes through them at one place of the log, or none does.
    With --plan each is tried out on a copy: the SQL of every step, the rows
    that it writes and the time that it takes. `cmdlog serve --migrate` does
    the same before it serves. With --url a running server does it: calls
    wait for it, and are retried under their keys.

    With --data it runs the application's code from the log of DIR, as the
    user of the command: use it on a DIR that you trust.

    [bold]Examples[/bold]

      cmdlog migrate shop:db --data ./shop --plan
      cmdlog migrate shop:db --data ./shop
      cmdlog migrate shop:db --url http://10.0.0.7:8642
    """
    if url is not None and data is not None:
        raise CommandFailed("--data and --url are two places", hint="give one of them", exit_code=USAGE)
    if url is not None:
        from cmdlog.cli.server.deploy import deploy

        deploy(app, url, token_file, ca_file, migrate=True, plan=plan)
        return
    _migrate_directory(app, data or Path("cmdlog-data"), plan=plan)


def _migrate_directory(app: str, data: Path, *, plan: bool) -> None:
    from cmdlog.cli.server.serve import refuse_locked

    directory = os.path.abspath(data)
    act_as_owner(data)
    warn_of_code(data)
    db = load_application(app)
    if not (data / "instance.json").exists():
        raise CommandFailed(f"{directory} is no node directory", hint="--data DIR names one; a new one needs no migration")
    refuse_locked(data)
    begin_again = report_on_interrupt("no partition has changed, or all have", hint="run the same command again")
    with begin_again, writing(directory):
        _show_plan(_plan(directory, db, app)) if plan else _run(directory, db, app)


def _plan(directory: str, db: Database, app: str) -> OfflinePlan:
    from cmdlog.node.migrating.offline_plan import plan_offline
    from procedures.code.bundle import capture_bundle

    bundle = capture_bundle(db, app)
    with ProgressDisplay("replay") as tell:
        return plan_offline(RealFiles(), directory, db, bundle, recovering=tell, rehearsing=_note_partition)


def _note_partition(done: int, partitions: int) -> None:
    if done < partitions:
        out.print_note(f"trying it out on partition {done} of {partitions}")


def _run(directory: str, db: Database, app: str) -> None:
    """A start and an orderly stop."""
    import structlog

    from cmdlog.cli.logging_setup import configure_logs
    from cmdlog.cli.server.settings_sources import load_settings
    from cmdlog.node.node import Node

    settings = load_settings({"migrate": "true"}, environ=os.environ, config=None, data_dir=Path(directory))
    if not structlog.is_configured():  # else the node's lines are printed among the command's
        configure_logs(settings.log_format)
    node = Node.open(directory, db, settings, target=app, inline=True)
    try:
        changed = {part["partition"]: part["tables"] for part in node.recovery if "tables" in part}
        node.attach(None)
    finally:
        node.close()
    answer = {"event": "migrated", "data": directory, "changed": changed}
    out.result(answer, lambda: _show_changes(changed))


def _show_changes(changed: Mapping[int, Mapping[str, Any]]) -> None:
    names = sorted({run["name"] for change in changed.values() for run in change.get("migrations", ())})
    statements = sum(len(change["statements"]) for change in changed.values())
    if not changed:
        out.text("the tables are those of the application already")
    else:
        out.text(f"migrations: {', '.join(names) or 'none'}; other statements: {statements}; partitions: {len(changed)}")


def _show_plan(plan: OfflinePlan) -> None:
    value = {
        "version": plan.version,
        "former_version": plan.former,
        "former_cannot_run": plan.former_cannot_run,
        "partitions": [
            {
                "partition": partition,
                "seconds": round(rehearsal.seconds, 6),
                "steps": [
                    {"migration": step.what, "sql": step.sql, "rows": step.rows, "seconds": round(step.seconds, 6)}
                    for step in rehearsal.steps
                ],
            }
            for partition, rehearsal in sorted(plan.by_partition.items())
        ],
    }
    out.result(value, lambda: _show_steps(plan))


def _show_steps(plan: OfflinePlan) -> None:
    if not plan.by_partition:
        out.text("the tables are those of the application already")
        return
    first = next(iter(plan.by_partition.values()))  # the others do the same to their rows
    for at, step in enumerate(first.steps):
        alike = [rehearsal.steps[at] for rehearsal in plan.by_partition.values() if at < len(rehearsal.steps)]
        rows, longest = sum(other.rows for other in alike), max(other.seconds for other in alike)
        sql = step.sql if len(step.sql) <= SQL_SHOWN else step.sql[:SQL_SHOWN] + "…"
        out.text(f"{step.what or 'addition'}: {sql}  [{rows:,} rows, {longest:.3f} s at most]")
    pause = max(rehearsal.seconds for rehearsal in plan.by_partition.values())
    out.text(f"{len(plan.by_partition)} of {plan.partitions} partitions change; the slowest takes {pause:.3f} s here")
    if plan.former_cannot_run:
        out.text(f"the code of version {plan.former} cannot run after this: {plan.former_cannot_run}")
