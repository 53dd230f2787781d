"""`cmdlog log inspect | dump | verify`: what is on disk, read-only, also while the node runs."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed, check_distinct
from cmdlog.cli.directory.owner import DirectoryArgument, act_as_owner
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.signals import report_on_interrupt
from cmdlog.wal.files import RealFiles

if TYPE_CHECKING:
    from replay.history.history import CallHistory

SEGMENT_COLUMNS = ("sequence", "generation", "open_count", "first_block", "last_block")
FAULT_COLUMNS = ("sequence", "failed", "author", "term", "reason")
MEMBER_COLUMNS = ("node", "state", "incarnation", "peer", "client", "former", "forced")
GROUP_COLUMNS = ("term", "commit", "last_index", "last_txn", "catalog_versions")


HISTORY_HELP = """List every call in the order of transaction ids, one JSON object per line, in bounded memory.

From several nodes' directories the authoritative logs are read. Entries that a later leader replaced and calls that were skipped
are not listed. The history begins with the archive, or without one with the oldest segment of the log.

Nothing is listed when the log is damaged, or when a file of the archive is missing or does not join the log (exit code 10;
--from after the gap avoids it), or when the given logs do not prove that nothing is missing (exit code 17). With
--accept-data-loss, everything readable is listed; of an archive, what follows the gap. Standard error lists what is missing,
which lost entries may have skipped calls, and why nothing matches.

[bold]Examples[/bold]

  cmdlog log history ./bank --from 2026-01-31T12:00:00Z --until 2026-01-31T13:00:00Z
  cmdlog log history ./node1 ./node2 ./node3 --procedure transfer --partition 0
"""


def register(program: typer.Typer) -> None:
    """Adds the command group."""
    group = typer.Typer(no_args_is_help=True, help="Inspect, list and verify a command log.")
    group.command("inspect", help="Show segments, groups and what a restart would do. Quick for any size of log.")(inspect_it)
    group.command("dump", help="Print every record in order, one JSON object per line.")(dump)
    group.command("history", help=HISTORY_HELP, short_help="List every call in order, from the logs of one or several nodes.")(
        history_it
    )
    group.command("verify", help="Check every byte of every block; exit code 10 if any changed after it was durable.")(verify)
    program.add_typer(group, name="log")


def inspect_it(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Reads headers, checkpoints and the newest segment."""
    from cmdlog.wal.dump import inspect_log

    found = inspect_log(RealFiles(), os.path.abspath(directory))
    out.result(found, lambda: _show(found))


def dump(
    directory: DirectoryArgument,
    partition: Annotated[int | None, typer.Option(help="Only this partition's records.")] = None,
    kind: Annotated[str | None, typer.Option(help="Only records of this kind: batch, skip, commit_mark, digest, ...")] = None,
    json: JsonFlag = False,
) -> None:
    """Bounded memory; stops with exit code 10 where it meets damage."""
    from cmdlog.wal.dump import dump_log
    from cmdlog.wal.format.record import RecordKind
    from replay.log.source import read_log_on

    kind = kind and kind.lower()
    kinds = [of.name.lower() for of in RecordKind]
    if kind is not None and kind not in kinds:
        raise CommandFailed(f"there are no records of kind {kind}", hint=_near(kind, kinds), exit_code=USAGE)
    read = printed = 0
    for record in dump_log(RealFiles(), os.path.abspath(directory), read=read_log_on):
        read += 1
        if partition in (None, record["partition"]) and kind in (None, record["kind"].lower()):
            out.line(record)
            printed += 1
    if read and not printed:
        asked = " and ".join(([f"kind {kind}"] if kind else []) + ([f"partition {partition}"] if partition is not None else []))
        out.print_note(f"none of the {read} records is of {asked}")


def history_it(
    directories: Annotated[list[Path], typer.Argument(metavar="DIR...", help="Directories of one cluster's nodes.")],
    *,
    first: Annotated[str | None, typer.Option("--from", metavar="TXN|TIME", help="First transaction, inclusive.")] = None,
    until: Annotated[str | None, typer.Option("--until", metavar="TXN|TIME", help="Last transaction, inclusive.")] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition's calls.")] = None,
    procedure: Annotated[str | None, typer.Option(help="Only calls of this procedure.")] = None,
    accept_data_loss: Annotated[
        bool, typer.Option("--accept-data-loss", help="Continue even if the given logs do not prove that nothing is missing.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """One JSON object a line."""
    from replay.history.history import history
    from replay.plan.until import parse_first, parse_until

    given = [os.path.abspath(directory) for directory in directories]
    act_as_owner(Path(given[0]))
    check_distinct(given)
    printed, last = 0, ""
    hint = "no call was printed yet; run the same command again"
    try:
        found = history(
            RealFiles(),
            given,
            first=parse_first(first) if first else 0,
            until=parse_until(until) if until else None,
            accept_data_loss=accept_data_loss,
        )
        _check_asked(found, partition, procedure)
        for note in found.notes:
            out.print_note(note)
        between = 0
        for call in found.calls:
            between += 1
            if partition in (None, call["partition"]) and procedure in (None, call["procedure"]):
                last = call["txn_id"]
                out.line(call)
                printed += 1
    except KeyboardInterrupt:
        hint = f"resume with `--from {last}`; that call may already have been printed" if last else hint
        with report_on_interrupt(f"{printed} calls were printed", hint=hint):
            raise
    if not between:
        out.print_note(found.empty())
    elif not printed:
        out.print_note(f"none of the {between} calls in that range is of {_asked(partition, procedure)}")


def _check_asked(found: CallHistory, partition: int | None, procedure: str | None) -> None:
    """A partition or procedure that does not exist is a mistake, not an empty history."""
    if partition is not None and partition not in found.partitions:
        there = ", ".join(map(str, found.partitions))
        raise CommandFailed(f"there is no partition {partition}", hint=f"there are: {there}", exit_code=USAGE)
    if procedure is not None and found.procedures and procedure not in found.procedures:
        hint = _near(procedure, found.procedures)
        raise CommandFailed(f"no version of the code has a procedure {procedure}", hint=hint, exit_code=USAGE)


def _near(word: str, words: Sequence[str]) -> str:
    near = get_close_matches(word, words, n=3)
    return f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(words)}"


def _asked(partition: int | None, procedure: str | None) -> str:
    names = [f"procedure {procedure}"] if procedure is not None else []
    return " and ".join(names + ([f"partition {partition}"] if partition is not None else []))


def verify(directory: DirectoryArgument, json: JsonFlag = False) -> None:
    """Reads the whole log."""
    from cmdlog.wal.dump import verify_log

    report = verify_log(RealFiles(), os.path.abspath(directory))
    found = report.as_dict()

    def show() -> None:
        columns = ("sequence", "first_block", "blocks", "records", "seals", "bytes")
        rows = [[row[column] for column in columns] + [_state(row)] for row in found["segments"]]
        out.table("Segments", (*columns, "state"), rows)
        out.text(f"{report.blocks} blocks with {report.records} records; the end is {report.verdict}")
        if any(row["released"] for row in found["segments"]):
            out.text(
                "released: the running node let go of it before it was read whole; `cmdlog archive verify` reads the archive"
            )

    out.result(found, show)
    if report.error is not None:
        raise report.error


def _state(row: dict[str, Any]) -> str:
    if row["error"]:
        return "bad"
    return "released" if row["released"] else "whole"


def _show(found: dict[str, Any]) -> None:
    instance = found["instance"]
    out.text(f"cluster {uuid.UUID(instance['cluster_id'])}, node {instance['node_id']}, incarnation {instance['incarnation']}")
    out.text(f"restart: {found['verdict']} - {found['story']}")
    segments = [[row[column] for column in SEGMENT_COLUMNS] for row in found["segments"]]
    out.table(f"Segments in use: {len(segments)} of {instance['segments']}", SEGMENT_COLUMNS, segments)
    if (reserve := found["reserve"]) is not None:
        out.text(f"reserve for control records: {reserve['left_bytes']} of {reserve['bytes']} bytes left")
    groups = [[name, *(row[column] for column in GROUP_COLUMNS)] for name, row in found["groups"].items()]
    out.table("Groups", ("partition", *GROUP_COLUMNS), groups)
    if found["members"]:
        members = [[row[column] for column in MEMBER_COLUMNS] for row in found["members"]]
        out.table("Members, as this log states them", MEMBER_COLUMNS, members)
    faults = found["fault_log"]
    if faults["records"]:
        rows = [[row[column] for column in FAULT_COLUMNS] for row in faults["records"]]
        out.table(f"Fault log: failed are {faults['failed'] or 'none'}", FAULT_COLUMNS, rows)
    if faults["error"]:
        out.text(faults["error"]["message"])
    for problem in found["problems"]:
        out.text(f"{problem['path']} at {problem['offset']}: {problem['what']}")
    if found["error"]:
        out.text(found["error"]["message"])
