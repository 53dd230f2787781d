"""`cmdlog spark rebuild | backfill | package | demo`: jobs on Spark. It translates; `replay.spark` decides.

Spark runs inside this process on all cores, or on the cluster that `--master` (or SPARK_MASTER) names.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.demo.spark import demo_it
from cmdlog.cli.directory.fork import AtOption, SkipMissingFlag, UntilOption
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.progress import ProgressDisplay
from cmdlog.cli.spark_options import ConfOption, MasterOption, spark_session

if TYPE_CHECKING:
    from replay.recover.execute import RecoveryProgress
    from replay.spark.jobs.backfill import Backfilled
    from replay.spark.jobs.rebuild import Rebuilt

GROUP: Final = (
    "Rebuild tables and replay with other code on Apache Spark: on this machine, or with --master on a cluster whose machines "
    "see the directories under the same paths."
)
TELL_EVERY_S: Final = 1.0  # a line of progress for a scheduler
DirectoriesArgument = Annotated[list[Path], typer.Argument(metavar="DIR...", help="Node directories of one cluster.")]
ToOption = Annotated[Path, typer.Option("--to", metavar="OUT", help="New folder; an interrupted job resumes there.")]
TableOption = Annotated[list[str] | None, typer.Option("--table", metavar="T", help="Only this table; may be repeated.")]


def register(program: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(no_args_is_help=True, help=GROUP)
    group.command("rebuild", help="Write the tables as of one or several moments as Parquet.")(rebuild_them)
    group.command("backfill", help="Replay the same calls with other code; write its tables and what differs.")(backfill_them)
    group.command("package", help="Write the zip of this package for `spark-submit --py-files` and print its path.")(package_it)
    group.command("demo", help="Make calls, then query, rebuild and back-fill their log, and check the results.")(demo_it)
    program.add_typer(group, name="spark")


def rebuild_them(
    directories: DirectoriesArgument,
    *,
    to: ToOption,
    until: Annotated[
        list[str] | None,
        typer.Option(
            "--until", metavar="TXN|TIME", help="Last transaction, inclusive; repeat it for several moments in one run."
        ),
    ] = None,
    app: Annotated[
        str | None,
        typer.Option("--app", metavar="APP", help="Take column types from this code; by default from the code in the log."),
    ] = None,
    table: TableOption = None,
    accept_data_loss: Annotated[bool, typer.Option("--accept-data-loss", help="Rebuild from what is readable.")] = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    json: JsonFlag = False,
) -> None:
    """Parameters as the user gave them."""
    from cmdlog.cli.load_app import load_application

    db = load_application(app) if app else None
    moments: Any = None if not until else until[0] if len(until) == 1 else until
    with _Bar("rebuild") as tell:
        from replay.spark.jobs.rebuild import rebuild

        done = rebuild(
            partial(spark_session, master, conf=conf),
            [str(directory) for directory in directories],
            db,
            to=str(to),
            until=moments,
            tables=table or None,
            accept_data_loss=accept_data_loss,
            progress=tell,
        )
    out.result(_result_json(done), lambda: _show_rebuilt(done))


def backfill_them(
    directories: DirectoriesArgument,
    *,
    app: Annotated[str, typer.Option("--app", metavar="APP", help="module:attribute of the Database to run.")],
    to: ToOption,
    at: AtOption = "start",
    until: UntilOption = None,
    table: TableOption = None,
    skip_missing: SkipMissingFlag = False,
    master: MasterOption = None,
    conf: ConfOption = None,
    json: JsonFlag = False,
) -> None:
    """Parameters as the user gave them."""
    from cmdlog.cli.load_app import load_application

    db = load_application(app)
    with _Bar("backfill") as tell:
        from replay.fork.fork import START
        from replay.spark.jobs.backfill import backfill

        done = backfill(
            partial(spark_session, master, conf=conf),
            [str(directory) for directory in directories],
            db,
            to=str(to),
            at=START if at == "start" else at,
            until=until,
            target=app,
            tables=table or None,
            missing="skip" if skip_missing else "refuse",
            progress=tell,
        )
    out.result(_result_json(done), lambda: _show_backfilled(done))


def package_it(
    to: Annotated[
        Path, typer.Argument(metavar="OUT", help="New file, or a folder; in a folder the file is named by version and hash.")
    ] = Path(),
    json: JsonFlag = False,
) -> None:
    """Parameters as the user gave them."""
    from replay.spark.base.executor_zip import code_version, write_zip

    path = write_zip(str(to))
    out.result({"path": path, "version": code_version()}, lambda: out.text(path))


def _result_json(done: Rebuilt | Backfilled) -> dict[str, Any]:
    return {"path": done.path, "seconds": round(done.seconds, 3), "already": done.already, **done.manifest}


def _title(done: Rebuilt | Backfilled, what: str) -> str:
    if done.already:
        return f"{done.path} already contains this {done.manifest['job']}, finished; nothing was done"
    return f"{what} in {done.seconds:.2f} s"


class _Bar:
    """A bar on a terminal; with --json, lines for the parent process."""

    def __init__(self, name: str) -> None:
        self._name, self._display, self._told_at = name, ProgressDisplay(name), 0.0
        self._waiting = ""

    def __enter__(self) -> Callable[[RecoveryProgress], None]:
        if out.json:
            return self._show_progress
        show = self._display.__enter__()

        def show_all(progress: RecoveryProgress) -> None:
            show(progress)
            self._print_wait(progress.waiting)

        return show_all

    def __exit__(self, *error: object) -> None:
        self._display.__exit__(*error)

    def _print_wait(self, waiting: str) -> None:
        """On a terminal and in a log: when a wait begins, when its reason changes, and when it is over."""
        if waiting != self._waiting:
            out.print_note(f"{self._name}: {waiting or 'resumed'}")
            self._waiting = waiting

    def _show_progress(self, progress: RecoveryProgress) -> None:
        now = time.monotonic()
        if now - self._told_at < TELL_EVERY_S and progress.done < progress.total:
            return
        self._told_at = now
        done = sum(pace.done >= pace.total for pace in progress.partitions.values())
        value = {
            "progress": {
                "job": self._name,
                "calls": progress.done,
                "calls_total": progress.total,
                "partitions_done": done,
                "partitions": len(progress.partitions),
                "elapsed_s": round(progress.elapsed_s, 1),
                "left_s": round(progress.left_s, 1) if progress.left_s is not None else None,
            }
        }
        if progress.waiting:
            value["progress"]["waiting"] = progress.waiting
        out.line(value)


def _show_rebuilt(done: Rebuilt) -> None:
    rows = [
        (point["as_of_txn"], name, table["rows"], len(table["files"]))
        for point in done.manifest["points"]
        for name, table in point["tables"].items()
    ]
    out.table(_title(done, f"Rebuilt in {done.path}"), ("as of transaction", "table", "rows", "files"), rows)
    out.text(f"{done.calls:,} calls replayed")
    for note in dict.fromkeys(note for point in done.manifest["points"] for note in point["notes"]):
        out.text(f"note: {note}")


def _show_backfilled(done: Backfilled) -> None:
    rows = [(table, *counts.values()) for table, counts in done.changes.items()]
    out.table(_title(done, f"Back-filled in {done.path}"), ("table", "added", "removed", "changed"), rows)
    outcomes = done.manifest["outcomes"].values()
    compared, changed = (sum(of[name] for of in outcomes) for name in ("calls", "changed"))
    out.text(f"{done.manifest['calls']:,} calls ran with code {done.manifest['code'][:12]}")
    out.text(f"{changed} of {compared} ended differently from the history")
    firsts = sorted((of["first"] for of in outcomes if of["first"]), key=lambda first: int(first["txn_id"]))
    for first in firsts[:1]:
        call = f"transaction {first['txn_id']}, {first['procedure']}{first['params']}"
        was, now = (f"{first[f'{side}status']} {first[f'{side}outcome']}" for side in ("live_", ""))
        out.text(f"the first of them: {call}: was {was}, now {now}")
    for of in (left for outcome in outcomes for left in outcome["left_out"]):
        out.text(f"skipped: {of['calls']} calls of {of['procedure']}, the first is {of['first_txn_id']}: {of['why']}")
