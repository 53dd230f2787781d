"""`cmdlog recover`: brings a stopped node's states to its log's end, or makes a new node from it elsewhere.

It translates; `replay` decides. In place it takes the directory's lock and does exactly what `serve` does at its start; with
`--plan` and `--to` it reads only, and works beside a running node.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.failure import CommandFailed
from cmdlog.cli.output import JsonFlag, out

if TYPE_CHECKING:
    from procedures import Database
    from replay.plan import Plan, Planned
    from replay.recover import Progress, Report

ARCHIVE_SHOWN_MAX: Final = 20  # files that a plan for people names one by one
Tell = Callable[["Progress"], None]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("recover", help="Rebuild the state of a stopped node from snapshots and log.")(recover)


def recover(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Node directory.")],
    *,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Use this code where it is the code that the log names.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="OUT", help="Make a new node here; DIR stays as it is.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be done.")] = False,
    plan_file: Annotated[Path | None, typer.Option("--plan-file", metavar="F", help="Write the plan to this file.")] = None,
    apply: Annotated[Path | None, typer.Option("--apply", metavar="F", help="Do exactly what this plan says.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TXN|TIME", help="Last transaction, inclusive; needs --to.")
    ] = None,
    accept_data_loss: Annotated[bool, typer.Option("--accept-data-loss", help="With --to: go on with what is readable.")] = False,
    json: JsonFlag = False,
) -> None:
    """Parameters as the user gave them."""
    from cmdlog.wal.files import RealFiles
    from replay.plan import parse_until

    if len(directories) > 1:
        raise CommandFailed("recovery from several directories is not possible with these logs", exit_code=2)
    if (until or accept_data_loss) and to is None and not plan:
        raise CommandFailed("--until and --accept-data-loss need --to: the directory itself is never cut back", exit_code=2)
    files, directory = RealFiles(), os.path.abspath(directories[0])
    if plan or to is not None:
        _look_or_copy(
            files,
            directory,
            to=to,
            plan_only=plan,
            plan_file=plan_file,
            apply=apply,
            until=parse_until(until) if until else None,
            accept_data_loss=accept_data_loss,
        )
    else:
        _in_place(files, directory, app=app, plan_file=plan_file, apply=apply)


def _look_or_copy(
    files: Any,
    directory: str,
    *,
    to: Path | None,
    plan_only: bool,
    plan_file: Path | None,
    apply: Path | None,
    until: int | None,
    accept_data_loss: bool,
) -> None:
    """Read-only as far as DIR is concerned."""
    from replay.plan import make_plan
    from replay.rebuild import rebuild

    planned: Planned | Plan
    if apply is not None:
        planned = _read_plan(apply, directory)
    else:
        planned = make_plan(
            files,
            directory,
            use_state="never" if to is not None else "trusted",
            until=until,
            accept_data_loss=accept_data_loss,
        )
    the_plan = _plan_of(planned)
    if plan_file is not None:
        plan_file.write_bytes(the_plan.to_json())
    if plan_only:
        out.result(_json_of(the_plan), lambda: show_plan(the_plan))
        return
    with Display("replay") as tell:
        report = rebuild(planned, files, os.path.abspath(str(to)), progress=tell)
    _close(the_plan, report, os.path.abspath(str(to)))


def _in_place(files: Any, directory: str, *, app: str | None, plan_file: Path | None, apply: Path | None) -> None:
    """What `serve` does before it serves."""
    from cmdlog.cli.application import load_application
    from cmdlog.wal.log import Log
    from replay.bringup import bring_up

    db = load_application(app) if app else None
    wal = Log.open(files, directory)
    try:
        given = _read_plan(apply, directory) if apply is not None else None
        with Display("replay") as tell:
            plan, report = bring_up(files, wal, live=_live(db), plan=given, progress=tell)
    finally:
        wal.close()
    if plan_file is not None:
        plan_file.write_bytes(plan.to_json())
    _close(plan, report, directory)


def _live(db: Database | None) -> Callable[[Mapping[str, Any]], Database | None] | None:
    """Gives the application for the catalog record that holds the same code."""
    if db is None:
        return None
    from procedures.bundle import capture_bundle

    own = capture_bundle(db, None).hash
    return lambda catalog: db if catalog["hash"] == own else None


def _read_plan(path: Path, directory: str) -> Plan:
    from replay.plan import Plan

    try:
        plan = Plan.from_json(path.read_bytes())
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}", exit_code=2) from error
    if plan.directory != directory:
        raise CommandFailed(f"the plan is for {plan.directory}, not for {directory}", exit_code=2)
    return plan


def _plan_of(planned: Planned | Plan) -> Plan:
    from replay.plan import Planned

    return planned.plan if isinstance(planned, Planned) else planned


def _json_of(plan: Plan) -> Any:
    import orjson

    return orjson.loads(plan.to_json())


def show_plan(plan: Plan) -> None:
    """The plan for people: what was seen, chosen, refused and why, and what will be replayed."""
    out.text(
        f"node {plan.node_id} of cluster {plan.cluster_id}, log {plan.verdict}, blocks {plan.from_block} to {plan.last_block}"
    )
    rows = [
        (
            part.partition,
            part.source if part.source == "empty" else f"{part.source} at {part.from_index}",
            part.entries,
            part.calls,
            part.to_index,
            part.to_txn,
        )
        for part in plan.partitions
    ]
    out.table("Plan", ("partition", "from", "entries", "calls", "to index", "to transaction"), rows)
    for part in plan.partitions:
        out.text(f"partition {part.partition}: {part.name or 'empty state'} is used: {part.why}")
        for passed in part.passed:
            out.text(f"partition {part.partition}: {passed.name or 'empty state'} is not used: {passed.why}")
    _show_archive(plan)
    for note in plan.notes:
        out.text(f"lost: {note}")


def _show_archive(plan: Plan) -> None:
    """Which archived segments are read before, or instead of, the live log."""
    for name in plan.archive[:ARCHIVE_SHOWN_MAX]:
        out.text(f"archive: {name} is read")
    if len(plan.archive) > ARCHIVE_SHOWN_MAX:
        out.text(
            f"archive: {len(plan.archive) - ARCHIVE_SHOWN_MAX} more files are read, up to {plan.archive[-1]}; --json names all"
        )


def _close(plan: Plan, report: Report, directory: str) -> None:
    """The table at the end."""
    by_partition = {part.partition: part for part in plan.partitions}
    rows = [
        {
            "partition": result.partition,
            "source": by_partition[result.partition].source,
            "source_name": by_partition[result.partition].name,
            "replayed": result.calls,
            "index": result.index,
            "txn_id": str(result.txn_id),
            "digests_compared": result.digests,
        }
        for result in report.results
    ]
    value = {
        "directory": directory,
        "seconds": round(report.seconds, 3),
        "replayed": report.calls,
        "notes": list(report.notes),
        "partitions": rows,
    }

    def show() -> None:
        columns = ("partition", "source", "replayed", "index", "txn_id", "digests_compared")
        out.table(
            f"Recovered {directory} in {report.seconds:.2f} s",
            ("partition", "source", "replayed", "index", "transaction", "digests compared"),
            [[row[column] for column in columns] for row in rows],
        )
        for note in report.notes:
            out.text(f"lost: {note}")

    out.result(value, show)


class Display:
    """A progress bar with rate and time left on a terminal; nothing elsewhere."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> Tell:
        if out.json or not sys.stderr.isatty():
            return lambda _progress: None
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn
        from rich.progress import Progress as Bar

        columns = (TextColumn(self._name), BarColumn(), TaskProgressColumn(), TextColumn("{task.fields[pace]}"))
        self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
        self._bar.start()
        self._task = self._bar.add_task(self._name, total=None, pace="")
        return self._tell

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _tell(self, progress: Progress) -> None:
        left = f"{progress.left_s:.0f} s left" if progress.left_s is not None else ""
        pace = f"{progress.calls:,} calls, {progress.rate:,.0f}/s {left}"
        self._bar.update(self._task, completed=progress.calls, total=progress.calls_total, pace=pace)
