"""Plans for several moments of one history, as the driver hands them out by partition.

One rule: the replay engine decides. A plan comes from `make_plan`, or over several nodes from `make_joint_plan`, and tasks get
that plan cut down to one partition, in legs.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import orjson

from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.files import Files
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import BadUntil, Incomplete, ReplayError, UntilUnreachable, first_of
from replay.log.archive_reach import describe_strays, time_of
from replay.log.collect_evidence import gather
from replay.log.source import fold_end
from replay.plan.cluster_plan import JointPlan, check_complete
from replay.plan.cluster_planner import make_joint_plan, open_or_salvage
from replay.plan.newest_restorable import describe_moment, newest_before_damage
from replay.plan.node_plan import Plan
from replay.plan.planner import PAST, make_plan
from replay.plan.sole_voter import votes_alone
from replay.plan.until import parse_until

Moment = int | str | datetime | None


@dataclass(frozen=True, slots=True)
class MomentReplay:
    """The replay up to one moment."""

    until: int | None
    legs: tuple[Plan, ...]
    notes: tuple[str, ...]
    catalogs: Mapping[int, Mapping[str, Any]]  # version -> value of its record, of all that are known where the log ends

    @property
    def partitions(self) -> list[int]:
        return sorted({part.partition for leg in self.legs for part in leg.partitions})

    @property
    def cluster_id(self) -> str:
        return self.legs[0].cluster_id

    def txn_id(self) -> int:
        """The newest transaction of any partition."""
        return max((part.to_txn for leg in self.legs for part in leg.partitions), default=0)

    def of(self, partition: int) -> list[Plan]:
        """The legs of one partition, in order."""
        found = []
        for leg in self.legs:
            parts = tuple(part for part in leg.partitions if part.partition == partition)
            if parts:
                found.append(replace(leg, partitions=parts))
        return found


def parse_moment(moment: Moment) -> int | None:
    """A transaction id, a time (RFC 3339 or datetime with its zone), or None: the end. Raises: BadUntil."""
    if moment is None or isinstance(moment, int):
        return moment
    if isinstance(moment, datetime):
        if moment.tzinfo is None:
            raise BadUntil(f"{moment} has no time zone")
        moment = moment.isoformat()
    return parse_until(moment)


def find_history(files: Files, paths: Sequence[str], until: int | None, *, accept_data_loss: bool) -> MomentReplay:
    """The plan for one moment. Raises: Incomplete; what `make_plan` and `make_joint_plan` raise.

    With `accept_data_loss` it is still complete where snapshots and the rest of the log suffice. Else every partition stops at
    the last entry before the damage, and a warning reports it.
    """
    if accept_data_loss:
        with contextlib.suppress(WalError, ReplayError):
            return find_history(files, paths, until, accept_data_loss=False)
        found = _find_history(files, paths, until, accept_data_loss=True)
        _warn(found)
        return found
    return _find_history(files, paths, until, accept_data_loss=False)


def _find_history(files: Files, paths: Sequence[str], until: int | None, *, accept_data_loss: bool) -> MomentReplay:
    if len(paths) > 1 or not votes_alone(gather(files, paths[0])):
        joint = make_joint_plan(files, paths, until=until, accept_data_loss=accept_data_loss)
        if not accept_data_loss:
            check_complete(joint)
        return _jointly(files, joint)
    try:
        planned = make_plan(files, paths[0], PAST, until=until, accept_data_loss=accept_data_loss)
    except (Incomplete, UntilUnreachable) as error:
        if strays := describe_strays(files, paths[0]):
            error.args = (f"{error.args[0]}; {strays}",)
        raise
    except Corrupt as damage:
        return _around_damage(files, paths[0], until, damage)
    known = {**planned.scan.catalogs, **planned.scan.groups.state(CLUSTER_GROUP).catalogs}
    return MomentReplay(until, (planned.plan,), planned.plan.notes, {version: of.value for version, of in known.items()})


def _warn(history: MomentReplay) -> None:
    """On the driver's stderr: a table of a state does not show what it lacks."""
    import logging  # noqa: PLC0415 - no task needs it

    ends: dict[int, int] = {}
    for part in (part for leg in history.legs for part in leg.partitions):
        ends[part.partition] = max(ends.get(part.partition, 0), part.to_txn)
    stand = ", ".join(f"partition {p} at transaction {txn} ({time_of(txn)})" for p, txn in sorted(ends.items()))
    what = "; ".join(history.notes)
    logging.getLogger("replay.spark").warning("the state lacks what was lost; where it stops: %s; %s", stand, what)


def _jointly(files: Files, joint: JointPlan) -> MomentReplay:
    catalogs: dict[int, Mapping[str, Any]] = {}
    for node in joint.nodes:
        catalogs |= catalogs_at_end(files, node.directory) if not node.refused else {}
    return MomentReplay(joint.until, joint.legs, (*joint.incomplete, *joint.notes), catalogs)


def _around_damage(files: Files, directory: str, until: int | None, damage: Corrupt) -> MomentReplay:
    """Snapshots and the rest of the log may suffice. Raises: `damage`, with what else is missing."""
    try:
        joint = make_joint_plan(files, [directory], until=until)
    except ReplayError:
        raise damage from None
    if joint.incomplete:
        why = f"the log after the damage is not proved complete: {first_of(joint.incomplete)}"
        damage.args = (f"{damage.args[0]}; {why}; {describe_moment(newest_before_damage(files, directory))}",)
        raise damage
    return _jointly(files, joint)


def plan_json(plan: Plan) -> Any:
    """A plan as part of an order."""
    return orjson.loads(plan.to_json())


def plan_of_json(value: Any) -> Plan:
    """The inverse."""
    return Plan.from_json(orjson.dumps(value))


def catalogs_at_end(files: Files, directory: str) -> dict[int, Mapping[str, Any]]:
    """Version -> value of its record, of all code that the log knows at its end."""
    groups = fold_end(open_or_salvage(files, directory))
    return {version: catalog.value for version, catalog in groups.state(CLUSTER_GROUP).catalogs.items()}
