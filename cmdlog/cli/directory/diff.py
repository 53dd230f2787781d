"""`cmdlog diff`: the differences between two nodes. It translates; `replay.diff.diff` compares."""

from __future__ import annotations

import base64
import math
import os
import tempfile
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from cmdlog.cli.cli_errors import CommandFailed, explain
from cmdlog.cli.directory.owner import RUNS_CODE, warn_of_code
from cmdlog.cli.disk_errors import writing
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.signals import report_on_interrupt
from cmdlog.wal.files import RealFiles
from procedures.numeric.marks import numeric_digits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from replay.diff.diff import DiffReport, RowChange, Shape, TableDiff
    from replay.diff.state_reader import States

DIFFERENT: Final = 1
TROUBLE: Final = 2
EXAMPLES: Final = 10
HELP: Final = f"""Compare the tables of two node directories, or of two snapshots, row by row.

Rows are matched by primary key over all partitions, whose numbers may differ. Both sides are only read, and may be in use; \
the states at the end of their logs are compared. Rows of OUT2 alone are `added`, of OUT1 alone `removed`.

A member of a cluster is read as its states are; of two members, each partition as of the place that both have reached.

{RUNS_CODE} With --no-code, or of two snapshots, nothing is executed.

[bold]Examples[/bold]

  cmdlog diff ./bank ./what-if --parquet ./differences      all differences as files
  cmdlog diff ./bank ./restored --keys                      exactly the same, keys included?
  cmdlog diff ./bank/snapshots/p0000-0000000000000042 ./bank --table accounts --limit 50

[bold]Exit codes[/bold] as of diff(1): 0 equal, 1 different, 2 trouble; 10 and above as for every command.
"""
SIDE: Final = "Node directory, or a snapshot in its folder snapshots/."


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("diff", help=HELP, short_help="Compare the tables of two nodes row by row.")(diff_them)


def diff_them(
    out1: Annotated[Path, typer.Argument(metavar="OUT1", help=SIDE)],
    out2: Annotated[Path, typer.Argument(metavar="OUT2", help=SIDE)],
    *,
    parquet: Annotated[
        Path | None, typer.Option("--parquet", metavar="FOLDER", help="Write all differences there, one file per table.")
    ] = None,
    table: Annotated[list[str] | None, typer.Option("--table", metavar="T", help="Only this table; may be repeated.")] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=0, help="Rows shown per table.")] = EXAMPLES,
    keys: Annotated[
        bool, typer.Option("--keys", help="Also compare idempotency keys and calls of sessions, as one set over all partitions.")
    ] = False,
    no_code: Annotated[
        bool, typer.Option("--no-code", help="Execute nothing; refused if rows are known only after a replay of calls.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Parameters as the user gave them."""
    try:
        with report_on_interrupt("neither side was changed, and no files of differences were kept; run the same command again"):
            report, value = _compare(out1, out2, parquet, table or [], limit, with_keys=keys, code="refuse" if no_code else "run")
    except Exception as error:
        failure = explain(error)
        if failure is None or failure.exit_code != DIFFERENT:
            raise
        raise CommandFailed(failure.message, hint=failure.hint, exit_code=TROUBLE) from error  # 1 means that they differ
    out.result(value, lambda: show_diff(report, value))
    if not report.equal:
        raise typer.Exit(DIFFERENT)


def _compare(
    out1: Path,
    out2: Path,
    parquet: Path | None,
    tables: list[str],
    limit: int,
    *,
    with_keys: bool,
    code: Literal["run", "refuse"],
) -> tuple[DiffReport, dict[str, Any]]:
    from replay.diff.diff import diff, no_sink
    from replay.diff.parquet import parquet_files
    from replay.diff.state_reader import open_sides
    from snapshot.manifest import MANIFEST_NAME

    if code == "run":
        warn_of_code(*(each for each in (out1, out2) if not (each / MANIFEST_NAME).exists()))
    files = RealFiles()
    target = os.path.abspath(parquet) if parquet is not None else tempfile.gettempdir()
    with writing(target), open_sides(files, os.path.abspath(out1), os.path.abspath(out2), code=code) as (left, right):
        with nullcontext(no_sink) if parquet is None else parquet_files(os.path.abspath(parquet)) as sink:
            report = diff(left, right, tables=tables, limit=limit, sink=sink, with_keys=with_keys)
        value = {
            "equal": report.equal,
            "left": _side(left),
            "right": _side(right),
            "tables": [_table(table) for table in report.tables],
            "parquet": os.path.abspath(parquet) if parquet else None,
        }
    for name, names in (("idempotency_keys", report.keys), ("session_calls", report.sessions)):
        if names is not None:
            value[name] = {"left": names.left, "right": names.right}
            value[f"{name}_apart"] = {"left": names.left_alone, "right": names.right_alone}
    return report, value


def _side(side: States) -> dict[str, Any]:
    places = {str(p): {"index": position.index, "txn_id": str(position.txn_id)} for p, position in side.positions.items()}
    return {"path": side.path, "read_from": side.how, "partitions": places}


def _table(table: TableDiff) -> dict[str, Any]:
    return {
        "table": table.name,
        "equal": table.equal,
        "in": {"left": table.left is not None, "right": table.right is not None},
        "columns": {side: _columns(shape) for side, shape in (("left", table.left), ("right", table.right))},
        "columns_of_one_side": table.only,
        "key": list(table.key),
        "rows": {"left": table.rows[0], "right": table.rows[1]},
        "added": table.counts["added"],
        "removed": table.counts["removed"],
        "changed": table.counts["changed"],
        "examples": [_example(table, change) for change in table.examples],
    }


def _columns(shape: Shape | None) -> dict[str, str] | None:
    """Name -> type in lower case, "any" where values of any type may be; None: the side does not have the table."""
    return None if shape is None else {name: kind.lower() or "any" for name, kind in shape.columns.items()}


def _example(table: TableDiff, change: RowChange) -> dict[str, Any]:
    old, new = (_shown(table, row, side) for side, row in enumerate((change.old, change.new)))
    return {
        "change": change.kind,
        "old": {name: _json(value) for name, value in old.items()} if old else None,
        "new": {name: _json(value) for name, value in new.items()} if new else None,
    }


def _shown(table: TableDiff, row: Sequence[Any] | None, side: int) -> dict[str, Any]:
    """Column -> value of a row of one side, exact decimals as their digits; {} when there is no row."""
    shape = (table.left, table.right)[side]
    if row is None or shape is None:
        return {}
    scales = {name: int(kind[:-1].rpartition(",")[2]) for name, kind in shape.columns.items() if kind.startswith("numeric(")}
    return {
        name: numeric_digits(value, scales[name]) if name in scales else value
        for name, value in zip(table.columns, row, strict=True)
    }


def _json(value: Any) -> Any:
    """A value of SQLite as JSON can hold it."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def show_diff(report: DiffReport, value: dict[str, Any]) -> None:
    """The differences for people."""
    names = ("rows left", "rows right", "added", "removed", "changed")
    rows = [[t.name, *t.rows, t.counts["added"], t.counts["removed"], t.counts["changed"]] for t in report.tables]
    out.table("equal" if report.equal else "different", ("table", *names), rows)
    for table in report.tables:
        if table.left is None or table.right is None:
            out.text(f"{table.name} is in the {'right' if table.left is None else 'left'} one alone")
        elif not table.same_columns:
            for side, shape in (("left", table.left), ("right", table.right)):
                named = ", ".join(f"{name} {kind}" for name, kind in (_columns(shape) or {}).items())
                out.text(f"{table.name} has the columns {named} on the {side} side")
        for side, columns in table.only.items():
            if columns:
                out.text(f"{table.name} has {', '.join(columns)} in the {side} one alone, which is not compared")
        for change in table.examples:
            out.text(_line(table, change))
        if (hidden := table.counts.total() - len(table.examples)) > 0 and table.examples:
            out.text(f"{table.name}: {hidden} more; --limit shows them, --parquet writes all of them")
    for what, known in (("idempotency keys", report.keys), ("calls of sessions", report.sessions)):
        if known is not None:
            apart = "" if known.equal else f"; {known.left_alone} are on the left side alone, {known.right_alone} on the right"
            out.text(f"{what}: {known.left} and {known.right}{apart}")
    for side in ("left", "right"):
        out.text(f"{side}: {value[side]['path']}, read from {value[side]['read_from']}")
    _show_places(value["left"], value["right"])


def _show_places(left: Mapping[str, Any], right: Mapping[str, Any]) -> None:
    """Where a member was not brought back to where another one is: rows then differ by what ran in between."""
    from replay.diff.state_reader import MEMBER

    for partition, place in left["partitions"].items():
        other = right["partitions"].get(partition, place)
        if place["txn_id"] != other["txn_id"] and left["read_from"].startswith(MEMBER):
            out.text(f"partition {partition}: left as of transaction {place['txn_id']}, right as of {other['txn_id']}")


def _line(table: TableDiff, change: RowChange) -> str:
    sign = {"added": "+", "removed": "-", "changed": "~"}[change.kind]
    old, new = _shown(table, change.old, 0), _shown(table, change.new, 1)
    if change.old is None or change.new is None:
        row = old or new
        return f"{sign} {table.name} " + ", ".join(f"{n}={v!r}" for n, v in row.items())
    key = ", ".join(f"{n}={new[n]!r}" for n in table.key)
    pairs = [(n, old[n], new[n]) for n in table.columns]
    changes = ", ".join(f"{n}: {a!r} -> {b!r}" for n, a, b in pairs if (type(a), a) != (type(b), b))
    return f"{sign} {table.name} {key}: {changes}"
