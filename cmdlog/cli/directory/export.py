"""`cmdlog snapshot export`: the tables of a node's newest snapshots, or of one, as Parquet files.

It reads a directory, also while the node runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.directory.owner import RUNS_CODE, made_for_owner, warn_of_code
from cmdlog.cli.disk_errors import writing
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.progress import make_bar
from cmdlog.cli.signals import report_on_interrupt
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles

if TYPE_CHECKING:
    from collections.abc import Callable

    from snapshot.catalog import Snapshot
    from snapshot.export import ExportProgress


HELP: Final = f"""Write the tables of the newest snapshots as Parquet, one file per table.

{RUNS_CODE} With --app and without --point nothing of it is executed.
"""


def register_in(group: typer.Typer) -> None:
    """Adds the command to `cmdlog snapshot`."""
    group.command("export", help=HELP)(export_them)


def export_them(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Node directory.")],
    *,
    to: Annotated[Path, typer.Option("--to", metavar="OUT", help="New folder for the files.")],
    snapshot: Annotated[
        str | None,
        typer.Option("--snapshot", metavar="NAME", help="Only this snapshot; by default the newest of each partition."),
    ] = None,
    point: Annotated[
        str | None,
        typer.Option("--point", metavar="TXN|TIME", help="All partitions as of this transaction, rebuilt next to OUT."),
    ] = None,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Take the types from this code, not from the snapshot's own.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Each partition as of its own snapshot, or all as of --point; their positions are in the files' metadata, and printed."""
    from cmdlog.cli.load_app import load_application
    from replay.errors import Interrupted
    from snapshot.catalog import list_snapshots
    from snapshot.export import describe_exported, export

    if point is not None and snapshot is not None:
        raise CommandFailed("--point and --snapshot exclude each other", exit_code=2)
    files, path, target = RealFiles(), os.path.abspath(directory), os.path.abspath(to)
    db = load_application(app) if app else None
    if db is None or point is not None:
        warn_of_code(directory)
    ended = report_on_interrupt(f"nothing was written to {target}; run the same command again", instead_of=(Interrupted,))
    with ended, made_for_owner(directory, to), writing(target), _at(path, target, point) as stands:
        chosen = _chosen(list_snapshots(files, stands, load_instance(files, stands).identity), snapshot)
        with _display() as tell:
            exported = export(files, chosen, target, db=db, progress=tell)
    sources = {str(s.partition): {"snapshot": s.name, "txn_id": str(s.manifest.txn_id)} for s in chosen if s.manifest}
    tables = describe_exported(exported)

    def show() -> None:
        rows = [[row["table"], row["rows"], row["bytes"], row["file"]] for row in tables]
        out.table(f"Exported to {target}", ("table", "rows", "bytes", "file"), rows)
        for partition, source in sources.items():
            out.text(f"partition {partition}: {source['snapshot']}, up to transaction {source['txn_id']}")

    out.result({"to": target, "point": point, "snapshots": sources, "tables": tables}, show)


@contextmanager
def _at(directory: str, target: str, point: str | None) -> Iterator[str]:
    """The directory whose snapshots are exported: the node's, or one rebuilt up to `point`, which is gone afterwards."""
    if point is None:
        yield directory
        return
    from cmdlog.cli.progress import ProgressDisplay
    from replay.errors import UntilBeyond
    from replay.plan.planner import PAST, make_plan
    from replay.plan.until import parse_until
    from replay.recover.to_directory import rebuild
    from snapshot.background_io import remove_tree

    files, work = RealFiles(), f"{target}.tmp-{os.urandom(8).hex()}"
    try:
        planned = make_plan(files, directory, PAST, until=parse_until(point))
    except UntilBeyond as error:
        error.hint = "choose a moment in between, or omit --point to export the newest snapshots"
        raise
    try:
        with ProgressDisplay("replay") as tell:
            rebuild(planned, files, work, progress=tell)
        yield work
    finally:
        if os.path.exists(work):
            remove_tree(work)


def _chosen(snapshots: list[Snapshot], name: str | None) -> list[Snapshot]:
    """The snapshot of that name, or the newest usable one of each partition."""
    if name is not None:
        named = [snapshot for snapshot in snapshots if snapshot.name == name]
        if not named:
            raise CommandFailed(f"there is no snapshot {name}", hint="`cmdlog snapshot list` shows the existing ones")
        return named
    usable = {snapshot.partition: snapshot for snapshot in snapshots if snapshot.manifest is not None}
    if not usable:
        raise CommandFailed("there is no usable snapshot", hint="take one with `cmdlog snapshot take`")
    if lacking := {snapshot.partition for snapshot in snapshots} - set(usable):
        raise CommandFailed(f"partition {min(lacking)} has no usable snapshot", hint="see `cmdlog snapshot list`", exit_code=10)
    return list(usable.values())


@contextmanager
def _display() -> Iterator[Callable[[ExportProgress], None]]:
    """A progress bar on a terminal; nothing elsewhere."""
    bar = make_bar("")
    if bar is None:
        yield lambda _progress: None
        return
    with bar:
        task = bar.add_task("export", total=None)
        yield lambda progress: bar.update(task, description=progress.table, completed=progress.rows, total=progress.rows_total)
