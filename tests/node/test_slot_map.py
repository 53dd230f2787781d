"""Slots are covered exactly, and what is written down is what is done."""

from __future__ import annotations

import itertools

import pytest

from cmdlog.node.slot_map import SlotMap, make_routes
from procedures.declaration.hash_slots import SLOTS, slot_of
from procedures.samples import bank


@pytest.mark.parametrize("partitions", [1, 2, 3, 4, 7, 16, 100, 333, 999, 1000])
def test_ranges_cover_every_slot_once_and_agree_with_the_routing(partitions: int) -> None:
    """The ranges of the configuration record partition [0, 16384) evenly, and routing goes by them."""
    slots = SlotMap(partitions)
    ranges = slots.ranges()
    assert [p for *_, p in ranges] == list(range(partitions))
    assert ranges[0][0] == 0
    assert ranges[-1][1] == SLOTS
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ranges))
    sizes = [hi - lo for lo, hi, _ in ranges]
    assert max(sizes) - min(sizes) <= 1
    assert list(slots.partition_by_slot) == [p for lo, hi, p in ranges for _ in range(lo, hi)]


def test_a_call_goes_where_its_parameter_hashes() -> None:
    """The partition of a call is that of the slot of its partitioning parameter alone."""
    routes = make_routes(bank.db)
    procedure = routes["deposit_checking"].procedure
    slots = SlotMap(8)
    ranges = slots.ranges()
    for branch in range(200):
        bound = procedure.bind({"branch": branch, "customer": 3, "amount": 5})
        slot = slot_of(procedure.partition_value(bound))
        (expected,) = [p for lo, hi, p in ranges if lo <= slot < hi]
        assert slots.partition_of(procedure, bound) == expected


def test_routes_name_every_procedure_by_its_number() -> None:
    """A route's number is the procedure's place in the list that batches count by."""
    routes = make_routes(bank.db)
    assert [routes[p.name].number for p in bank.db.procedure_list] == list(range(len(bank.db.procedure_list)))
    assert {name for name, route in routes.items() if route.everywhere} == {"set_rate", "total"} & set(routes)
