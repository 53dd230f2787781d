"""The scrub of members: their logs are compared by sums, and one that is damaged is made whole by its peers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.copying.log_sums import SumsRequest
from cmdlog.member.rejoin.life_end import CopyNeeded
from cmdlog.node.node import Node
from cmdlog.node.outcome import NotReady
from cmdlog.node.scrub.entry_sums import RANGE_ENTRIES
from cmdlog.node.scrub.file_scan import Scanned, SliceOrder
from cmdlog.node.scrub.log_comparison import TURN_S
from cmdlog.node.scrub.scrub_reader import ScrubReader
from tests.member.members import Members, members, number_of
from tests.node.rig import send
from tests.node.scrubbed import FAR, run_pass, scrub_of
from tests.waiting import wait_for

pytestmark = pytest.mark.slow

KEEP: dict[str, Any] = {"snapshot_age_max_s": 0.0, "recovery_budget_s": 0.0}  # else a slow machine lets go what is compared
CALLS = 150


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes that run and have the same entries; their scrubs are stepped by hand."""
    with members(tmp_path, monkeypatch, count=3, partitions=1, scrub_every_s=0.0, batch_calls_max=1, segments=32, **KEEP) as made:
        made.join_all()
        write_entries(made, CALLS)
        yield made


def write_entries(made: Members, upto: int) -> None:
    """Calls until every node has run so many entries; the calls of a leader that lost its place do not count."""
    while applied(made.leader()) < upto:
        left = upto - applied(made.leader())
        with contextlib.suppress(NotReady):
            for pending in [send(made.leader(), "bump", id=n % 20, amount=n) for n in range(left)]:
                pending.wait()
    end = applied(made.leader())
    for node in made.nodes.values():
        wait_for(partial(_has_applied, node, end))


def _has_applied(node: Node, end: int) -> bool:
    return applied(node) >= end


def applied(node: Node) -> int:
    """Entries of the partition that it has run."""
    return int(node.status()["partitions"]["0"]["applied"])


def step_until(node: Node, condition: Callable[[], bool]) -> None:
    """Steps, while time passes quickly."""
    times = count(FAR, TURN_S)
    wait_for(lambda: scrub_of(node).step(next(times)) is not None and condition(), why=lambda: scrub_of(node).status())


def summed(node: Node) -> dict[int, int]:
    """The sums that passes have found; what is committed may be so in the log a moment later than in memory."""
    passes = count(FAR, 2 * TURN_S)

    def look() -> dict[int, int]:
        run_pass(scrub_of(node), next(passes))
        return dict(scrub_of(node).known_sums(SumsRequest(0, 0, 9, RANGE_ENTRIES)))

    return wait_for(look, why=lambda: scrub_of(node).status())


def compare(node: Node, now: float = FAR) -> dict[str, object]:
    """A pass and its comparison; what it says then."""
    before = scrub_of(node).status()["compared"]
    run_pass(scrub_of(node), now)
    wait_for(lambda: scrub_of(node).step(now) is not None and scrub_of(node).status()["compared"] is not before)
    compared: dict[str, object] = scrub_of(node).status()["compared"]
    return compared


@pytest.mark.torture
def test_logs_are_compared_and_the_one_that_differs_is_copied_anew(three: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over the real channel. Blocks that read well and hold something else are found the second time; the node wants a copy."""
    write_entries(three, RANGE_ENTRIES + 10)
    known = [summed(node) for node in three.nodes.values()]
    assert set(known[0]) == {0}
    assert known[0] == known[1] == known[2]
    follower = three.followers()[0]
    compared = compare(follower)
    assert (compared["nodes"], compared["ranges"], compared["differing"]) == ([1, 2, 3], 1, [])
    read = ScrubReader.read

    def read_other(reader: ScrubReader, order: SliceOrder) -> Scanned:
        found = read(reader, order)
        return replace(found, sums=[(g, n, None if value is None else value ^ 1) for g, n, value in found.sums])

    monkeypatch.setattr(ScrubReader, "read", read_other)
    mine = number_of(follower)
    run_pass(scrub_of(follower))  # it may have been under way
    assert compare(follower)["differing"] == [{"group": 0, "indexes": [1, RANGE_ENTRIES - 1], "nodes": [mine]}]
    step_until(follower, lambda: follower.error is not None)
    assert isinstance(follower.error, CopyNeeded)
    assert "differ from those of the majority" in str(follower.error)
