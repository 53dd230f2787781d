"""Which calls there are and where each goes: procedures by name, partitions by hash slot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from procedures import Database
from procedures.declaration.hash_slots import partition_by_slot, slot_of, slot_ranges
from procedures.declaration.procedure import Procedure


@dataclass(frozen=True, slots=True)
class Route:
    """One procedure as callers see it."""

    name: str
    number: int  # position in the live catalog version, as batches hold it
    procedure: Procedure
    read_only: bool
    everywhere: bool  # multi-partition
    catalog: int = 0  # version of the code that has it; 0: whichever runs


class SlotMap:
    """Hash slot -> partition, in even contiguous ranges."""

    def __init__(self, partitions: int) -> None:
        self.partitions = partitions
        self.partition_by_slot = partition_by_slot(partitions)

    def ranges(self) -> list[list[int]]:
        """[lo, hi, partition] with slots [lo, hi), ascending."""
        return slot_ranges(self.partitions)

    def slot_of(self, procedure: Procedure, params: list[Any]) -> int:
        """The hash slot of a single-partition call with these bound parameters."""
        return slot_of(procedure.partition_value(params))

    def partition_of(self, procedure: Procedure, params: list[Any]) -> int:
        """The partition of a single-partition call with these bound parameters."""
        return self.partition_by_slot[self.slot_of(procedure, params)]


def make_routes(db: Database, catalog: int = 0) -> dict[str, Route]:
    """All routes of an application by name; `catalog` is its version."""
    procedures: Sequence[Procedure] = db.procedure_list
    return {
        procedure.name: Route(procedure.name, number, procedure, procedure.read_only, procedure.partition_by is None, catalog)
        for number, procedure in enumerate(procedures)
    }


def follow_route(route: Route, routes: Mapping[str, Route]) -> Route | None:
    """The route of other code that a call with bound parameters may take instead; None where a caller would see a difference."""
    other = routes.get(route.name)
    if other is None or (other.read_only, other.everywhere) != (route.read_only, route.everywhere):
        return None
    here, there = route.procedure, other.procedure
    same = (here.partition_by, here.each, here.json_schema(), here.result_schema()) == (
        there.partition_by, there.each, there.json_schema(), there.result_schema(),
    )  # fmt: skip
    return other if same else None


def describe_routes(routes: Mapping[str, Route]) -> list[dict[str, Any]]:
    """Every procedure with the schemas of its parameters and result; `partition_by` is "each" for `EACH`."""
    return [
        {
            "name": route.name,
            "partition_by": "each" if route.procedure.each else route.procedure.partition_by,
            "read_only": route.read_only,
            "parameters": route.procedure.json_schema(),
            "result": route.procedure.result_schema(),
            "description": (route.procedure.function.__doc__ or "").strip(),
        }
        for route in routes.values()
    ]
