"""`cmdlog recover`: brings a stopped node's states to its log's end, or makes a new node from one or several nodes' directories.

It translates; `replay` decides. In place it takes the directory's lock and does exactly what `serve` does at its start; with
`--plan` and `--to` it only reads, and may be used while the node runs.
"""

from __future__ import annotations

import contextlib
import enum
import os
import shlex
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cmdlog.cli.cli_errors import USAGE, CommandFailed, check_distinct
from cmdlog.cli.directory.fork import HANG_AFTER_S, not_begun, show_fork
from cmdlog.cli.directory.owner import RUNS_CODE, act_as_owner, made_for_owner, warn_of_code
from cmdlog.cli.directory.recover_output import (
    check_same,
    close,
    keep_plan,
    plan_json,
    read_bytes,
    read_plan,
    show_joint_plan,
    show_plan,
)
from cmdlog.cli.disk_errors import writing
from cmdlog.cli.output import JsonFlag, out
from cmdlog.cli.progress import ProgressDisplay
from cmdlog.cli.signals import report_on_interrupt
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import RealFiles

if TYPE_CHECKING:
    from procedures import Database
    from replay.plan.cluster_plan import JointPlan
    from replay.recover.execute import RecoveryReport


def register(program: typer.Typer) -> None:
    """Adds the command."""
    short = "Rebuild states from snapshots and logs of one or several nodes of a cluster."
    program.command("recover", help=HELP, short_help=short)(recover)


HELP: Final = f"""Rebuild states from snapshots and logs of one or several nodes of a cluster.

Without --to, DIR's own states are brought to its log's end, as `cmdlog serve` does at its start. With --to OUT, a new node is \
made in OUT and DIR is only read, even while its node runs. If the command is interrupted, run it again to resume; if OUT is \
finished, that is reported.

{RUNS_CODE} With --plan nothing is executed.

[bold]Examples[/bold]

  cmdlog recover ./bank --plan                                   what would be done, from what, and how long it takes
  cmdlog recover ./bank                                          in place
  cmdlog recover ./bank --to ./then --until 2026-01-31T12:00:00Z as of a moment; a transaction id works as well
  cmdlog recover ./n1 ./n2 ./n3 --to ./out                       from several nodes: the newest state they jointly prove
  cmdlog recover ./n1 --to ./out --accept-data-loss              from what is left, if that is not proved (exit code 17)
  cmdlog recover ./bank --to ./out --quarantine                  quarantine calls that cannot be replayed
  cmdlog recover ./bank --to ./wide --partitions 8               into another number of partitions
  cmdlog recover ./bank --to ./now --code current --app shop:db  every call with today's code; see also `cmdlog fork`

  cmdlog recover ./bank --plan --to ./out --plan-file plan.json  look first, then do exactly that:
  cmdlog recover ./bank --apply plan.json --to ./out
"""


FILES: Final = RealFiles()


class CodeChoice(enum.StrEnum):
    """Which code a replay runs."""

    LOGGED = "logged"
    CURRENT = "current"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the user asked for, when nothing in DIR is to be changed."""

    directories: tuple[str, ...]  # absolute
    to: Path | None
    plan_only: bool
    plan_file: Path | None
    apply: Path | None
    until: int | None
    accept_data_loss: bool
    partitions: int | None
    quarantine: bool
    hang_after_s: float

    def command(self, *more: str) -> str:
        """The same, to be pasted into a shell, with more options."""
        words = ["cmdlog", "recover", *self.directories, "--to", str(self.to)]
        words += ["--until", str(self.until)] if self.until is not None else []
        words += ["--partitions", str(self.partitions)] if self.partitions is not None else []
        words += ["--call-timeout-s", f"{self.hang_after_s:g}"] if self.hang_after_s != HANG_AFTER_S else []
        words += ["--accept-data-loss"] if self.accept_data_loss else []
        return shlex.join([*words, *more])


def recover(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Node directory; several of one cluster's nodes need --to.")
    ],
    *,
    app: Annotated[
        str | None, typer.Option("--app", metavar="APP", help="Use this code where the log names the same version.")
    ] = None,
    to: Annotated[Path | None, typer.Option("--to", metavar="OUT", help="Make a new node here; DIR stays as it is.")] = None,
    plan: Annotated[bool, typer.Option("--plan", help="Print the plan and exit.")] = False,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan-file", metavar="F", help="Write the plan here, then execute it; with --plan only write it."),
    ] = None,
    apply: Annotated[Path | None, typer.Option("--apply", metavar="F", help="Execute exactly this plan.")] = None,
    until: Annotated[
        str | None, typer.Option("--until", metavar="TXN|TIME", help="Last transaction, inclusive; needs --to.")
    ] = None,
    accept_data_loss: Annotated[
        bool,
        typer.Option("--accept-data-loss", help="With --to: recover what is readable, even if acknowledged calls are missing."),
    ] = False,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", metavar="N", min=1, help="With --to: redistribute rows and keys over this many partitions."),
    ] = None,
    quarantine: Annotated[
        bool,
        typer.Option("--quarantine", help="With --to: quarantine calls that cannot be replayed (OUT/quarantine.jsonl)."),
    ] = False,
    call_timeout_s: Annotated[
        float,
        typer.Option("--call-timeout-s", min=1.0, help="Longest execution of a call; --quarantine sets a longer one aside."),
    ] = HANG_AFTER_S,
    code: Annotated[
        CodeChoice,
        typer.Option("--code", help="With --to and --app: `current` runs every call with APP instead of the logged code."),
    ] = CodeChoice.LOGGED,
    json: JsonFlag = False,
) -> None:
    """Parameters as the user gave them."""
    from replay.plan.until import parse_until

    given = tuple(os.path.abspath(directory) for directory in directories)
    moment = parse_until(until) if until else None
    wanted = Wanted(given, to, plan, plan_file, apply, moment, accept_data_loss, partitions, quarantine, call_timeout_s)
    _check_options(wanted, code)
    if to is None:
        act_as_owner(Path(given[0]))
    if not plan:
        warn_of_code(*map(Path, given))
    with made_for_owner(Path(given[0]), to):
        _carry_out(wanted, app, code)


def _check_options(wanted: Wanted, code: CodeChoice) -> None:
    """Options that would be ignored are rejected."""
    check_distinct(wanted.directories)
    if wanted.to is None and not wanted.plan_only:
        alone = (wanted.until, wanted.accept_data_loss, wanted.partitions, wanted.quarantine, code is CodeChoice.CURRENT)
        if any(alone):
            needing = "--until, --accept-data-loss, --partitions, --quarantine and --code current"
            raise CommandFailed(f"{needing} need --to: they never change the directory itself", exit_code=2)
        if len(wanted.directories) > 1:
            raise CommandFailed("several directories need --to (none of them is changed), or --plan", exit_code=2)
    elif wanted.apply is not None and (wanted.until or wanted.plan_file is not None):
        raise CommandFailed("--until and --plan-file make a plan and cannot be combined with --apply", exit_code=2)
    elif wanted.plan_only and wanted.partitions:
        raise CommandFailed("--partitions is not part of a plan: give it with --to when the plan is executed", exit_code=2)


def _carry_out(wanted: Wanted, app: str | None, code: CodeChoice) -> None:
    if wanted.to is None and not wanted.plan_only:
        _in_place(wanted, app)
    elif code is CodeChoice.CURRENT:
        _with_current_code(wanted, app)
    elif _is_joint(wanted):
        _look_or_copy_jointly(wanted)
    else:
        _look_or_copy(wanted)


def _is_joint(wanted: Wanted) -> bool:
    """Whether the logs of several nodes matter: several are given, or one of a cluster that has more."""
    from replay.log.collect_evidence import gather
    from replay.plan.cluster_plan import is_joint
    from replay.plan.sole_voter import votes_alone

    if wanted.apply is not None:
        return is_joint(read_bytes(wanted.apply))
    return len(wanted.directories) > 1 or not votes_alone(gather(FILES, wanted.directories[0]))


def _look_or_copy(wanted: Wanted) -> None:
    """Read-only as far as DIR is concerned."""
    from replay.log.source import settled
    from replay.plan.node_plan import Planned
    from replay.plan.planner import PAST, QUARANTINE, RECOVER, make_plan
    from replay.recover.to_directory import rebuild

    purpose = RECOVER if wanted.to is None else QUARANTINE if wanted.quarantine else PAST
    if wanted.apply is not None:
        planned = Planned.of(FILES, read_plan(wanted.apply, wanted.directories))
    else:
        try:
            source, may_lose = wanted.directories[0], wanted.accept_data_loss
            planned = settled(partial(make_plan, FILES, source, purpose, until=wanted.until, accept_data_loss=may_lose))
        except Corrupt as damage:
            _around_damage(wanted, damage)
            return
    the_plan = planned.plan
    keep_plan(wanted.plan_file, the_plan)
    if wanted.plan_only:
        out.result(plan_json(the_plan), lambda: show_plan(the_plan))
        return
    report, target = _to_out(wanted, partial(rebuild, planned))
    close(the_plan, report, target)


def _to_out(wanted: Wanted, run: Callable[..., RecoveryReport]) -> tuple[RecoveryReport, str]:
    """Makes OUT, with its progress shown; the report, and where OUT is."""
    target, display = os.path.abspath(str(wanted.to)), ProgressDisplay("replay")
    begin_again = report_on_interrupt(f"nothing was left in {target}; run the same command again")
    with advising(wanted), begin_again, writing(target), display as tell:
        report = run(
            FILES,
            target,
            progress=tell,
            partitions=wanted.partitions,
            moved=display.moved,
            quarantine=wanted.quarantine,
            hang_after_s=wanted.hang_after_s,
        )
    return report, target


@contextlib.contextmanager
def advising(wanted: Wanted) -> Iterator[None]:
    """A call that stops the replay is an error that names this very command with --quarantine."""
    from replay.errors import Divergence, Poison

    try:
        yield
    except (Divergence, Poison) as stop:
        if not wanted.quarantine:
            stop.advise(wanted.command("--quarantine"))
        raise


def _around_damage(wanted: Wanted, damage: Corrupt) -> None:
    """What a recovery from several nodes does with a damaged copy, with one: snapshots and the rest of the log may suffice."""
    from replay.errors import ReplayError
    from replay.plan.newest_restorable import describe_moment, newest_before_damage

    try:
        plan = _joint_plan(wanted)
    except ReplayError:
        raise damage from None
    if plan.incomplete and not wanted.accept_data_loss:
        before = describe_moment(newest_before_damage(FILES, wanted.directories[0]))
        hint = f"{before}; restore the file from a backup, or recover what is left with `--accept-data-loss --to OUT`"
        message = f"{damage.args[0]}; the log after the damage is not proved complete"
        raise CommandFailed(message, hint=hint, exit_code=damage.exit_code, details=plan.incomplete)
    _carry_out_jointly(wanted, plan)


def _look_or_copy_jointly(wanted: Wanted) -> None:
    """The same over several directories."""
    from replay.plan.cluster_plan import JointPlan

    if wanted.apply is not None:
        plan = JointPlan.from_json(read_bytes(wanted.apply))
        check_same(plan.directories, wanted.directories)
    else:
        plan = _joint_plan(wanted)
    _carry_out_jointly(wanted, plan)


def _joint_plan(wanted: Wanted) -> JointPlan:
    from replay.plan.cluster_planner import make_joint_plan
    from replay.plan.planner import MEMBER_PAST, MEMBER_QUARANTINE

    return make_joint_plan(
        FILES,
        wanted.directories,
        until=wanted.until,
        accept_data_loss=wanted.accept_data_loss,
        purpose=MEMBER_QUARANTINE if wanted.quarantine else MEMBER_PAST,
    )


def _carry_out_jointly(wanted: Wanted, plan: JointPlan) -> None:
    from replay.errors import Incomplete
    from replay.recover.from_cluster import rebuild_jointly

    keep_plan(wanted.plan_file, plan)
    if wanted.plan_only:
        out.result(plan_json(plan), lambda: show_joint_plan(plan))
        if plan.incomplete and not wanted.accept_data_loss:
            raise typer.Exit(Incomplete.exit_code)
        return
    report, target = _to_out(wanted, partial(rebuild_jointly, plan, accept_data_loss=wanted.accept_data_loss))
    close(plan, report, target)


def _with_current_code(wanted: Wanted, app: str | None) -> None:
    """A fork that begins before the first transaction."""
    from cmdlog.cli.load_app import load_application
    from replay.fork.fork import START, fork
    from replay.fork.rerun import CallUnfit

    if app is None or wanted.to is None or len(wanted.directories) > 1:
        raise CommandFailed("--code current takes one DIR, --app APP and --to OUT; then `cmdlog diff` compares", exit_code=USAGE)
    strange = [
        ("--apply", wanted.apply), ("--partitions", wanted.partitions), ("--quarantine", wanted.quarantine),
        ("--plan", wanted.plan_only), ("--plan-file", wanted.plan_file), ("--accept-data-loss", wanted.accept_data_loss),
    ]  # fmt: skip
    if without := [name for name, given in strange if given]:
        hint = f"calls that do not fit are skipped by `{_as_fork(wanted, app)} --skip-missing`" if wanted.quarantine else ""
        raise CommandFailed(f"--code current takes no {' and no '.join(without)}", hint=hint, exit_code=USAGE)
    target = os.path.abspath(wanted.to)
    try:
        with not_begun(target), writing(target), ProgressDisplay("replay") as tell:
            source, db, hang = wanted.directories[0], load_application(app), wanted.hang_after_s
            report = fork(
                FILES, source, at=START, db=db, out=target, until=wanted.until, target=app, progress=tell, hang_after_s=hang
            )
    except CallUnfit as unfit:
        unfit.hint = f"add such a procedure to the code, or skip these calls: `{_as_fork(wanted, app)} --skip-missing`"
        raise
    out.result(report.to_json(), lambda: show_fork(report, target))


def _as_fork(wanted: Wanted, app: str) -> str:
    return f"cmdlog fork {wanted.directories[0]} --at start --app {app} --to {wanted.to}"


def _in_place(wanted: Wanted, app: str | None) -> None:
    """What `serve` does before it serves."""
    from cmdlog.cli.load_app import load_application
    from cmdlog.wal.log import Log
    from replay.plan.in_place_plan import distrust_damaged, plan_in_place
    from replay.plan.sole_voter import check_served_alone
    from replay.recover.in_place import replay_in_place
    from replay.recover.target import Target

    (directory,) = wanted.directories
    live = _live(load_application(app)) if app else None
    wal = Log.open(FILES, directory)
    try:
        check_served_alone(FILES, directory, wal.instance.identity, wal.recovered.groups)
        target = Target(FILES, directory)
        distrust_damaged(wal, target.trust)
        given = read_plan(wanted.apply, (directory,)) if wanted.apply is not None else None
        hint = "the same command resumes there, and so does `cmdlog serve`"
        with (
            report_on_interrupt("every state is complete up to the end of an entry", hint=hint),
            writing(directory),
            ProgressDisplay("replay") as tell,
        ):
            found = plan_in_place(FILES, wal, target.trust, given=given)
            keep_plan(wanted.plan_file, found.plan)
            report = replay_in_place(target, found, live=live, progress=tell)
            target.trust.seal(part.partition for part in found.plan.partitions)
    finally:
        wal.close()
    close(found.plan, report, directory)


def _live(db: Database) -> Callable[[Mapping[str, Any]], Database | None]:
    """Gives the application for the catalog record that holds the same code."""
    from procedures.code.bundle import capture_bundle

    own = capture_bundle(db, None).hash
    return lambda catalog: db if catalog["hash"] == own else None
