"""`cmdlog drill`: proves that snapshots and log of a node would restore it, also while the node runs.

It translates; `replay.drill.drill` decides. It runs at the lowest priority.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.directory.owner import RUNS_CODE, DirectoryArgument, warn_of_code
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.progress import ProgressDisplay
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles

if TYPE_CHECKING:
    from replay.drill.report import DrillReport

COLUMNS = ("partition", "proof", "from", "to index", "to transaction", "calls", "digests", "tables", "rows")


HELP: Final = f"""Prove in a temporary folder that snapshots and log would restore the node.

{RUNS_CODE}
"""


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("drill", help=HELP)(drill)


def drill(
    directory: DirectoryArgument,
    *,
    seed: Annotated[
        int | None, typer.Option(help="Seed for choosing the moments to replay to; by default a new one each time.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to put the temporary folder; by default DIR/drills.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Exit code 16 when a restored state differs from what it should be, 10 when something is damaged; 1 when it was not run."""
    from replay.drill import drill as drills

    files, path = RealFiles(), os.path.abspath(directory)
    load_instance(files, path)  # else it is no node's, and gets no folder
    warn_of_code(directory)
    chosen = seed if seed is not None else int(datetime.now(UTC).timestamp() * 1e6) % (1 << 32)
    with ProgressDisplay("drill") as tell:
        report = drills.drill(
            files, path, seed=chosen, work=os.path.abspath(work) if work is not None else None, progress=tell,
            make_way=drills.lower_priority,
        )  # fmt: skip
    value = {**report.to_json(), "file": report.path}
    out.result(value, lambda: _show(report, value))
    if report.error is not None:
        raise report.error


def _show(report: DrillReport, value: dict[str, Any]) -> None:
    rows = []
    for partition in sorted(report.newest):
        proofs = {"newest": report.newest, "second": report.second, "oldest": report.oldest, "moment": report.moment}
        for name, proof in ((name, of.get(partition)) for name, of in proofs.items()):
            if proof is not None:
                numbers = (proof.to_index, proof.to_txn, proof.calls, proof.digests, proof.tables, proof.rows)
                rows.append([partition, name, proof.snapshot or "nothing", *numbers])
            elif why := _why_none(report, partition, name):
                rows.append([partition, name, why, *[""] * (len(COLUMNS) - 3)])
    out.table(f"{report.verdict.replace('_', ' ')} in {value['seconds']:.1f} s, seed {report.seed}", COLUMNS, rows)
    if which := ", ".join(map(str, report.uncompared)):
        out.text(
            f"nothing to compare in partition {which}: no calls were replayed, because there are none after the newest state "
            "and none between two states; only checksums and rows of the snapshots were checked, where there are any"
        )
    if report.moment_txn is not None:
        out.text(
            f"moment: transaction {report.moment_txn} of the promised window, with {len(report.archive)} files of the archive"
        )
    if report.members:
        others, left = ", ".join(map(str, report.members)), sum(report.undecided.values())
        out.text(f"a member of a cluster: of its own log, {left} entries at the end are left to the other nodes ({others})")
    out.text(f"report: {report.path}")


def _why_none(report: DrillReport, partition: int, name: str) -> str:
    """Why there is no such proof of the partition; "" where that needs no word."""
    if report.error is not None:
        return ""
    if name == "second":
        why = "there is only one snapshot" if report.newest[partition].snapshot else "there is no snapshot"
        return f"nothing to compare: {why}" if partition in report.uncompared else why
    begin = report.log_begins.get(partition, 0)
    return f"nothing older: the log begins after index {begin}" if name == "oldest" and begin else ""
