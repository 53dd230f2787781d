"""What `cmdlog recover` shows, the plan and the table at the end; and a plan's file, which one writes and another applies."""

from __future__ import annotations

import os
import uuid
from collections import ChainMap, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.disk_errors import write_output
from cmdlog.cli.output import out
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX
from cmdlog.wal.process_limits import worker_count

if TYPE_CHECKING:
    from replay.plan.cluster_plan import JointPlan
    from replay.plan.node_plan import Plan
    from replay.recover.execute import RecoveryReport
    from replay.recover.quarantine import Aside
    from replay.results import PartitionResult

ARCHIVE_SHOWN_MAX: Final = 20  # files that a plan for people names one by one
TOUCHES_SHOWN_MAX: Final = 5  # later calls that a report for people names for one that was set aside
NO_DIGEST: Final = "the log has no digest of them, as of the last ones before a crash"


def estimate_s(plan: Plan | JointPlan) -> float:
    """How long it will take, by the times that the nodes measured: the forecast of their status. A guess where they did not."""
    from cmdlog.node.background.recovery_forecast import read_call_times, replay_seconds, restore_seconds
    from cmdlog.node.background.snapshot_schedule import Forecast
    from replay.plan.node_plan import Plan
    from snapshot.restore_speed import read_speeds

    directories = [plan.directory] if isinstance(plan, Plan) else plan.directories
    folders = [os.path.join(directory, "state") for directory in directories]
    times = ChainMap(*(read_call_times(folder) for folder in folders))
    replay_s, restore_s = defaultdict[int, float](float), defaultdict[int, float](float)
    for part in (part for one in _plans(plan) for part in one.partitions):
        replay_s[part.partition] += replay_seconds(part.procedures, times)
        restore_s[part.partition] += restore_seconds(part.snapshot_bytes, read_speeds(folders[0]))
    return Forecast(replay_s, restore_s, worker_count()).total_s


def _plans(plan: Plan | JointPlan) -> list[Plan]:
    from replay.plan.node_plan import Plan

    return [plan] if isinstance(plan, Plan) else list(plan.legs)


def show_joint_plan(plan: JointPlan) -> None:
    """Logs seen, failure sets, what was chosen and refused and why, where each partition starts, gaps, and what it will take."""
    out.text(f"cluster {uuid.UUID(plan.cluster_id)}: newest failure set {plan.sequence}: {_nodes(plan.failed)}")
    out.table(
        "Directories",
        ("directory", "node", "failure set", "failed nodes", "damage"),
        [
            (n.directory, n.node_id or "?", n.sequence or "none", _nodes(n.failed), n.refused or "; ".join(n.damage) or "none")
            for n in plan.nodes
        ],
    )
    starts = {part.partition: (leg, part) for leg in reversed(plan.legs) for part in leg.partitions}
    rows = []
    for choice in plan.choices:
        leg_part = starts.get(choice.group)
        legs = [leg for leg in plan.legs if any(part.partition == choice.group for part in leg.partitions)]
        calls = sum(part.calls for leg in legs for part in leg.partitions if part.partition == choice.group)
        rows.append(
            (
                "cluster" if leg_part is None else choice.group,
                choice.chosen,
                choice.last_index,
                "yes" if choice.proved else "NO",
                "" if leg_part is None else (leg_part[1].name or leg_part[1].source),
                "" if leg_part is None else " + ".join(dict.fromkeys(leg.directory for leg in legs)),
                "" if leg_part is None else calls,
            )
        )
    out.table("Plan", ("partition", "log", "to index", "complete", "starts from", "entries from", "calls"), rows)
    for choice in plan.choices:
        name = "cluster group" if choice.group not in starts else f"partition {choice.group}"
        out.text(f"{name}: {choice.chosen}: {choice.why}")
        for directory, (use, why) in choice.uses.items():
            if directory != choice.chosen:
                out.text(f"{name}: {directory} is not chosen ({use}): {why}")
    for note in plan.notes:
        out.text(f"note: {note}")
    for loss in plan.incomplete:
        out.text(f"not complete: {loss}")
    if plan.incomplete:
        out.text("this plan needs --accept-data-loss (exit code 17)")
    out.text(f"{plan.calls:,} calls to replay, about {estimate_s(plan):.0f} s")


def _nodes(nodes: Iterable[int]) -> str:
    return ", ".join(str(node) for node in nodes) or "none"


def plan_json(plan: Plan | JointPlan) -> Any:
    """The plan as `--json` prints it."""
    return {**orjson.loads(plan.to_json()), "calls": plan.calls, "estimate_s": round(estimate_s(plan), 1)}


def show_plan(plan: Plan) -> None:
    """The plan for people: what was seen, chosen, refused and why, and what will be replayed."""
    out.text(
        f"node {plan.node_id} of cluster {uuid.UUID(plan.cluster_id)}, log {plan.verdict}, "
        f"blocks {plan.from_block} to {plan.last_block}"
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
    out.text(f"{plan.calls:,} calls to replay, about {estimate_s(plan):.0f} s")


def _show_archive(plan: Plan) -> None:
    """Which archived segments are read before, or instead of, the live log."""
    for name in plan.archive[:ARCHIVE_SHOWN_MAX]:
        out.text(f"archive: {name} is read")
    if len(plan.archive) > ARCHIVE_SHOWN_MAX:
        out.text(
            f"archive: {len(plan.archive) - ARCHIVE_SHOWN_MAX} more files are read, up to {plan.archive[-1]}; --json names all"
        )


def close(plan: Plan | JointPlan, report: RecoveryReport, directory: str) -> None:
    """The table at the end. Of several nodes it has the log that was chosen for each partition."""
    from replay.plan.node_plan import Plan

    starts = {part.partition: part for leg in reversed(_plans(plan)) for part in leg.partitions}
    logs = {} if isinstance(plan, Plan) else {choice.group: choice.chosen for choice in plan.choices}
    rows = [
        {
            "partition": result.partition,
            **({"log": logs[result.partition]} if logs else {}),
            "source": starts[result.partition].source,
            "source_name": starts[result.partition].name,
            "replayed": result.calls,
            "index": result.index,
            "txn_id": str(result.txn_id),
            "digests_compared": result.digests,
            "not_compared": _not_compared(result),
        }
        for result in report.results
    ]
    shown = [name for name in (rows[0] if rows else ()) if name not in ("source_name", "not_compared")]
    _finish(directory, report, rows, shown)


def _not_compared(result: PartitionResult) -> list[dict[str, Any]]:
    """Batches that nothing proves to be as they were live, and why."""
    found = {NO_DIGEST: result.batches - result.digests - result.distrusted, result.distrust: result.distrusted}
    return [{"batches": count, "why": why} for why, count in found.items() if count > 0]


def _not_compared_lines(rows: list[dict[str, Any]]) -> list[str]:
    found = defaultdict[str, dict[int, int]](dict)
    for row in rows:
        for entry in row["not_compared"]:
            found[entry["why"]][row["partition"]] = entry["batches"]
    lines = []
    for why, counts in found.items():
        places = ", ".join(f"{count} of partition {partition}" for partition, count in counts.items())
        lines.append(f"not compared with the live run: {sum(counts.values())} batches ({places}): {why}")
    return lines


def _finish(directory: str, report: RecoveryReport, rows: list[dict[str, Any]], columns: Sequence[str]) -> None:
    not_compared = _not_compared_lines(rows)
    value = {
        "directory": directory,
        "seconds": round(report.seconds, 3),
        "already": report.already,
        "replayed": report.calls,
        "notes": list(report.notes),
        "partitions": rows,
        "set_aside": [aside.to_json() for aside in report.aside],
    }
    if out.json:
        out.line(value)
        return
    titles = [{"txn_id": "transaction"}.get(column, column.replace("_", " ")) for column in columns]
    done = f"{directory} already contains this recovery, finished" if report.already else f"Recovered {directory}"
    out.table(f"{done} in {report.seconds:.2f} s", titles, [[row[column] for column in columns] for row in rows])
    for line in [*(f"note: {note}" for note in report.notes), *not_compared]:
        out.text(line)
    for aside in report.aside:
        _show_aside(aside)


def _show_aside(aside: Aside) -> None:
    """The calls that were set aside in one partition, and what followed."""
    for at, call in enumerate(aside.calls):
        out.text(
            f"quarantined: partition {call.partition}, index {call.index}, transaction {call.txn_id}: "
            f"{call.procedure} {orjson.dumps(call.params, default=str).decode()}: {call.reason}"
        )
        touches = aside.touches.get(at, [])
        for touch in touches[:TOUCHES_SHOWN_MAX]:
            out.text(f"  its rows were changed later by transaction {touch.txn_id} ({touch.procedure})")
        more = len(touches[TOUCHES_SHOWN_MAX:]) + aside.more.get(at, 0)
        if more:
            out.text(f"  and by {more} later ones; --json lists them")
    for touch in aside.otherwise[:TOUCHES_SHOWN_MAX]:
        out.text(f"answered differently since then: transaction {touch.txn_id} ({touch.procedure})")


# -- the file of a plan ---------------------------------------------------------------------------------------------------


def keep_plan(path: Path | None, plan: Plan | JointPlan) -> None:
    """Writes it; None: it is not to be kept."""
    if path is not None:
        write_output(path, plan.to_json())


def read_bytes(path: Path) -> bytes:
    """Raises: CommandFailed."""
    try:
        with path.open("rb") as file:
            return file.read(DOCUMENT_BYTES_MAX + 1)  # a pipe has no size: what is longer is refused where it is read
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}", exit_code=2) from error


def read_plan(path: Path, directories: tuple[str, ...]) -> Plan:
    """The plan of one directory, which is the one that was given. Raises: CommandFailed."""
    from replay.errors import BadPlan
    from replay.plan.node_plan import Plan

    try:
        plan = Plan.from_json(read_bytes(path))
    except BadPlan as error:
        raise CommandFailed(
            f"{path}: {error}", hint="`cmdlog recover DIR --plan --plan-file F` writes one", exit_code=2
        ) from None
    check_same((plan.directory,), directories)
    return plan


def check_same(planned: tuple[str, ...], given: tuple[str, ...]) -> None:
    """Raises: CommandFailed when the plan is for other directories."""
    if set(planned) != set(given):
        raise CommandFailed(f"the plan is for {', '.join(planned)}, not for {', '.join(given)}", exit_code=2)
