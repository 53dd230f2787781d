"""`cmdlog drill`: proves that snapshots and log of a node would restore it, beside the running node too.

It translates; `replay.drill` decides. It takes the time that nobody else wants.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.recover_show import Display

if TYPE_CHECKING:
    from replay.drillreport import Report

COLUMNS = ("partition", "proof", "from", "to index", "to transaction", "calls", "digests", "tables", "rows")


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("drill", help="Prove that snapshots and log would restore the node, in a throw-away folder.")(drill)


def drill(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Node directory.")],
    *,
    seed: Annotated[
        int | None, typer.Option(help="Draws the moments that are replayed to; by default another one each time.")
    ] = None,
    work: Annotated[Path | None, typer.Option(metavar="FOLDER", help="For the throw-away folder; by default DIR/drills.")] = None,
    json: JsonFlag = False,
) -> None:
    """Exit code 16 when a restored state differs from what it should be, 10 when something is damaged."""
    from cmdlog.wal.files import RealFiles
    from cmdlog.wal.instance import load_instance
    from replay import drill as drills

    files, path = RealFiles(), os.path.abspath(directory)
    load_instance(files, path)  # else it is no node's, and gets no folder
    drills.end_orderly()
    drills.lower_priority()
    chosen = seed if seed is not None else int(datetime.now(UTC).timestamp() * 1e6) % (1 << 32)
    with Display("drill") as tell:
        report = drills.drill(files, path, seed=chosen, work=os.path.abspath(work) if work is not None else None, progress=tell)
    value = {**report.to_json(), "file": report.path}
    out.result(value, lambda: _show(report, value))
    if report.error is not None:
        raise report.error


def _show(report: Report, value: dict[str, Any]) -> None:
    rows = []
    for partition in sorted(report.newest):
        for name, proof in (("newest", report.newest[partition]), ("second", report.second.get(partition))):
            if proof is None:
                rows.append([partition, name, "there is one snapshot alone", *[""] * (len(COLUMNS) - 3)])
                continue
            numbers = (proof.to_index, proof.to_txn, proof.calls, proof.digests, proof.tables, proof.rows)
            rows.append([partition, name, proof.snapshot or "nothing", *numbers])
        for name, past in (("oldest", report.oldest.get(partition)), ("moment", report.moment.get(partition))):
            if past is not None:
                numbers = (past.to_index, past.to_txn, past.calls, past.digests, past.tables, past.rows)
                rows.append([partition, name, past.snapshot or "nothing", *numbers])
    out.table(f"{report.verdict} in {value['seconds']:.1f} s, seed {report.seed}", COLUMNS, rows)
    if report.moment_txn is not None:
        out.text(
            f"moment: transaction {report.moment_txn} of the promised window, with {len(report.archive)} files of the archive"
        )
    out.text(f"report: {report.path}")
