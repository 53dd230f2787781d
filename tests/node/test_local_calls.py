"""Tests of calls that a node places itself."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cmdlog.node.outcome import NotReady
from cmdlog.node.placing.local_calls import LocalCalls
from cmdlog.node.placing.router import BoundCode
from cmdlog.node.readiness import Readiness
from cmdlog.node.telemetry.stage_timings import StageTimings
from tests.node.apps import faulty, newer


class Placed:
    """Everything that is done with calls, in order."""

    def __init__(self) -> None:
        self.done = list[str]()
        place = SimpleNamespace(
            place=lambda *_: self.done.append("placed"),
            place_many=lambda calls: self.done.append(f"placed {len(calls)}"),
            place_encoded=lambda calls: self.done.append(f"placed {len(calls)}"),
        )
        waker = SimpleNamespace(wake=lambda: self.done.append("woken"))
        self.readiness = Readiness()
        self.calls = LocalCalls(
            readiness=self.readiness, bound=cast(Any, None), router=cast(Any, place), waker=cast(Any, waker),
            clock=cast(Any, SimpleNamespace(observe=lambda txn: self.done.append(f"seen {txn}"))),
        )  # fmt: skip


def test_nothing_is_placed_before_the_node_is_ready() -> None:
    """The clock is not moved either."""
    placed = Placed()
    for place in (
        lambda: placed.calls.call(cast(Any, None), [], done=print, txn=7),
        lambda: placed.calls.call_many([]),
        lambda: placed.calls.call_encoded([]),
    ):
        with pytest.raises(NotReady):
            place()
    assert placed.done == []


def test_the_log_is_woken_after_the_call_is_placed() -> None:
    """A read changes nothing, so the log need not know of it; what the caller has seen comes before."""
    placed = Placed()
    placed.readiness.accept_calls()
    placed.calls.call(cast(Any, SimpleNamespace(read_only=False)), [], done=print, txn=7)
    placed.calls.call(cast(Any, SimpleNamespace(read_only=True)), [], done=print)
    placed.calls.call_many([cast(Any, None)])
    placed.calls.call_encoded([cast(Any, None)] * 2)
    assert placed.done == [
        "seen 7", "placed", "woken", "placed", "placed 1", "woken", "placed 2", "woken",
    ]  # fmt: skip


def test_calls_are_bound_to_the_newest_code() -> None:
    """Its routes name the version, so that a call of another one is found out."""
    names = [procedure.name for procedure in faulty.db.procedure_list]
    meter = StageTimings(names, partitions=1)
    bound = BoundCode(faulty.db, meter, catalog=1)
    before = bound.routes
    bound.bind(newer.db, 2)
    assert bound.routes is not before
    assert {route.catalog for route in bound.routes.values()} == {2}
