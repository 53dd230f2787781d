"""The plan of a recovery from several directories, as a value and as a file.

`replay.plan.cluster_planner` makes it, `replay.recover.from_cluster` carries it out.

One rule: values only; how they are found and carried out is elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from cmdlog.wal.format.json_reader import BadJson, read_document
from replay.errors import BadPlan, Incomplete, UntilUnreachable, first_of
from replay.log.evidence import NodeEvidence
from replay.plan.authority import GroupVerdict
from replay.plan.node_plan import PLAN_BYTES_MAX, Plan

FORMAT: Final = 1
KIND: Final = "joint"  # distinguishes a plan over several directories from one over a single directory


@dataclass(frozen=True, slots=True)
class NodeSeen:
    """One directory, for the plan's reader."""

    directory: str
    node_id: int
    incarnation: str
    refused: str = ""
    damage: tuple[str, ...] = ()
    sequence: int = 0  # of the newest failure set in its fault log
    failed: tuple[int, ...] = ()  # that set

    @classmethod
    def of(cls, node: NodeEvidence) -> NodeSeen:
        """What the plan states of a directory."""
        newest = node.faults[-1] if node.faults else None
        return cls(
            node.directory,
            node.node_id,
            node.incarnation,
            refused=str(node.refused) if node.refused else "",
            damage=(*map(str, node.damage), *([node.fault_problem] if node.fault_problem else [])),
            sequence=newest.sequence if newest else 0,
            failed=tuple(sorted(newest.failed)) if newest else (),
        )


@dataclass(frozen=True, slots=True)
class Choice:
    """What was decided for one group."""

    group: int
    chosen: str  # directory
    last_index: int
    last_term: int
    last_checksum: int
    proved: bool
    why: str
    uses: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # directory -> (how it is used, why)

    @classmethod
    def of(cls, verdict: GroupVerdict) -> Choice:
        """What the plan states of a group."""
        uses = {directory: (use.name.lower(), why) for directory, (use, why) in verdict.uses.items()}
        end = verdict.last_index, verdict.last_term, verdict.last_checksum
        return cls(verdict.group, verdict.chosen, *end, verdict.proved, verdict.why, uses)


@dataclass(frozen=True, slots=True, kw_only=True)
class JointPlan:
    """A recovery from several directories."""

    directories: tuple[str, ...]
    cluster_id: str
    until: int | None
    nodes: tuple[NodeSeen, ...]
    choices: tuple[Choice, ...]
    sequence: int  # of the cluster's newest failure set …
    failed: tuple[int, ...]  # … and that set
    legs: tuple[Plan, ...]
    incomplete: tuple[str, ...] = ()  # what is not proved, and what is in no log: carried out only where the loss is accepted
    notes: tuple[str, ...] = ()  # what is repaired or unusual, in words

    @property
    def calls(self) -> int:
        return sum(leg.calls for leg in self.legs)

    @property
    def log_bytes(self) -> int:
        return sum(leg.log_bytes for leg in self.legs)

    def to_json(self) -> bytes:
        """The plan as a file; `from_json` reads it."""
        value = {"format": FORMAT, "kind": KIND, **asdict(self)}
        value["legs"] = [orjson.Fragment(leg.to_json()) for leg in self.legs]
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2)

    @classmethod
    def from_json(cls, data: bytes) -> JointPlan:
        """Raises: BadPlan."""
        try:
            value = read_document(data, bytes_max=PLAN_BYTES_MAX)
            if (value.pop("format"), value.pop("kind")) != (FORMAT, KIND):
                raise BadPlan(f"the plan has another format than {FORMAT}")
            value["legs"] = tuple(map(Plan.from_value, value["legs"]))
            value["nodes"] = tuple(_node_from_json(node) for node in value["nodes"])
            value["choices"] = tuple(_choice_from_json(choice) for choice in value["choices"])
            for name in ("directories", "failed", "incomplete", "notes"):
                value[name] = tuple(value[name])
            return cls(**value)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BadPlan(f"not a recovery plan: {error}") from error


def is_joint(data: bytes) -> bool:
    """Whether a plan file is one over several directories."""
    try:
        value = read_document(data, bytes_max=PLAN_BYTES_MAX)
    except BadJson:
        return False
    return value.get("kind") == KIND


def check_complete(plan: JointPlan) -> None:
    """Raises: Incomplete, naming what cannot be proved or is missing."""
    if plan.incomplete:
        raise Incomplete.of(plan.incomplete)


def check_moment(plan: JointPlan) -> None:
    """Raises: UntilUnreachable, when a partition would be empty since nothing that precedes the moment is at hand.

    With losses accepted, what is left of the moment is asked for. An empty partition is nothing of it.
    """
    for part in (part for leg in plan.legs for part in leg.partitions if plan.until is not None and plan.incomplete):
        if part.source == "empty" and part.to_index == 0:
            reasons = first_of([*plan.incomplete, *plan.notes])
            raise UntilUnreachable(f"nothing of partition {part.partition} from before that moment is at hand ({reasons})")


def _node_from_json(value: dict[str, Any]) -> NodeSeen:
    return NodeSeen(**{**value, "damage": tuple(value["damage"]), "failed": tuple(value["failed"])})


def _choice_from_json(value: dict[str, Any]) -> Choice:
    return Choice(**{**value, "uses": {name: (str(use), str(why)) for name, (use, why) in value["uses"].items()}})
