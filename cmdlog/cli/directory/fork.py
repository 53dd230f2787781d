"""`cmdlog fork`: a new node in which other code ran from one transaction on. It translates; `replay.fork.fork` decides."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cmdlog.cli.directory.owner import RUNS_CODE, made_for_owner, warn_of_code
from cmdlog.cli.disk_errors import writing
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.signals import report_on_interrupt
from cmdlog.wal.files import RealFiles

if TYPE_CHECKING:
    from replay.fork.tally import ForkReport

HANG_AFTER_S: Final = 3600.0  # the most that a node's own limit allows
HELP = f"""Make a new node OUT: the history as if this version of the code had run after TXN.

Up to and including --at, everything is replayed with the code that ran then; after it with today's code of APP: \
the same calls in the same order, with the same ids. DIR is only read, and may be in use. OUT is a cluster of its own and can be \
served with APP; `cmdlog diff` shows what differs. If the command is interrupted, run it again to resume.

{RUNS_CODE}

[bold]Examples[/bold]

  cmdlog fork ./bank --at 2026-01-31T12:00:00Z --app shop:db --to ./what-if   and then: cmdlog diff ./bank ./what-if
  cmdlog fork ./bank --at start --app shop:db --to ./new --skip-missing       without calls that do not fit
  cmdlog fork ./bank --at start --app shop:db --to ./new --call-timeout-s 5   name a call that hangs
"""


AtOption = Annotated[
    str, typer.Option("--at", metavar="TXN|TIME", help="Last transaction with the code that ran then; `start`: none.")
]
UntilOption = Annotated[
    str | None, typer.Option("--until", metavar="TXN|TIME", help="Last transaction, inclusive; by default the end of the log.")
]
SkipMissingFlag = Annotated[
    bool, typer.Option("--skip-missing", help="Skip (and count) calls that APP has no matching procedure for.")
]


def register(program: typer.Typer) -> None:
    """Adds the command."""
    program.command("fork", help=HELP, short_help="Replay the same calls with other code, starting at a transaction.")(fork_it)


def fork_it(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Node directory.")],
    *,
    at: AtOption,
    app: Annotated[str, typer.Option("--app", metavar="APP", help="module:attribute of the Database that runs after it.")],
    to: Annotated[Path, typer.Option("--to", metavar="OUT", help="Make the new node here.")],
    until: UntilOption = None,
    skip_missing: SkipMissingFlag = False,
    call_timeout_s: Annotated[
        float,
        typer.Option(
            "--call-timeout-s", min=1.0, help="Longest execution of one call; beyond it the fork stops and names the call."
        ),
    ] = HANG_AFTER_S,
    json: JsonFlag = False,
) -> None:
    """Parameters as the user gave them."""
    target = os.path.abspath(to)
    with not_begun(target):
        from cmdlog.cli.load_app import load_application
        from cmdlog.cli.progress import ProgressDisplay
        from replay.fork.fork import START, fork
        from replay.plan.until import parse_until

        moment = START if at == "start" else parse_until(at)
        end = parse_until(until) if until else None
        db = load_application(app)
        warn_of_code(directory)
        with made_for_owner(directory, to), writing(target), ProgressDisplay("fork") as tell:
            report = fork(
                RealFiles(),
                os.path.abspath(directory),
                at=moment,
                db=db,
                out=target,
                until=end,
                target=app,
                missing="skip" if skip_missing else "refuse",
                progress=tell,
                hang_after_s=call_timeout_s,
            )
    out.result({"directory": target, **report.to_json()}, lambda: show_fork(report, target))


def not_begun(out: str) -> AbstractContextManager[None]:
    """Around a fork, for a signal that comes before it has words of its own."""
    return report_on_interrupt(f"the fork to {out} has not run its first call yet", hint="run the same command again to resume")


def show_fork(report: ForkReport, directory: str) -> None:
    """What came out, for people."""
    value = report.to_json()
    out.table(
        f"{directory} is this fork already" if report.already else f"Forked to {directory} in {report.seconds:.2f} s",
        ("partition", "calls with this code", "index", "transaction"),
        [(of["partition"], of["calls"], of["index"], of["txn_id"]) for of in value["partitions"]],
    )
    ended = ", ".join(f"{status} {calls}" for status, calls in value["statuses"].items())
    out.text(
        f"{report.calls} calls ran with code {report.code[:12]}, {report.kept} before them with their own: {ended or 'none'}"
    )
    changed = f"{report.tally.changed} of {report.tally.compared} compared calls ended differently from the live run"
    out.text(f"{changed}; rows may still differ: see `cmdlog diff`")
    if (first := report.tally.first) is not None:
        live = f"{first.live_status} {first.live_outcome}" if first.live_status else f"an outcome with hash {first.live_hash:08x}"
        call = f"transaction {first.txn_id}, {first.procedure}{first.params}"
        out.text(f"the first of them: {call}: live {live}, now {first.status} {first.outcome}")
    for of in value["left_out"]:
        out.text(f"skipped: {of['calls']} calls of {of['procedure']}, the first is {of['first_txn_id']}: {of['why']}")
