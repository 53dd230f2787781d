"""The plan of a recovery in place: what it finds, what it refuses, and that it changes no state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.wal.log import Log
from replay.errors import PlanOutdated
from replay.plan.in_place_plan import distrust_damaged, plan_in_place
from replay.recover.in_place import replay_in_place
from replay.recover.target import Target
from replay.state.trust import Trust
from tests.replay.rig import Rig


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A stopped node with some deposits."""
    rig = Rig(tmp_path)
    rig.deposits(4)
    rig.close()
    return rig


@pytest.fixture
def wal(rig: Rig) -> Iterator[Log]:
    """Its log, opened and not started."""
    wal = Log.open(rig.files, rig.directory)
    yield wal
    wal.close()


def test_states_at_the_end_leave_nothing_to_do(rig: Rig, wal: Log) -> None:
    """The plan names every state at the log's end, and carrying it out replays nothing."""
    target = Target(rig.files, rig.directory)
    found = plan_in_place(rig.files, wal, target.trust)
    assert found.planned is None
    assert [(part.source, part.to_index) for part in found.plan.partitions] == [("state", n - 1) for n in rig.next_index.values()]
    assert replay_in_place(target, found).calls == 0


def test_planning_restores_no_state(rig: Rig, wal: Log) -> None:
    """A lost state is planned from the log's begin; until the plan is carried out there is no file."""
    rig.forget_state(0)
    target = Target(rig.files, rig.directory)
    found = plan_in_place(rig.files, wal, target.trust)
    assert [part.source for part in found.plan.partitions] == ["empty", "state"]
    assert not Path(rig.state_file(0)).exists()
    replay_in_place(target, found)
    assert Path(rig.state_file(0)).exists()


def test_given_plan_must_reach_the_end_of_the_log(rig: Rig, wal: Log) -> None:
    """One that ends earlier would truncate the log, and is refused."""
    trust = Trust(rig.files, rig.directory)
    plan = plan_in_place(rig.files, wal, trust).plan
    first, *others = plan.partitions
    early = replace(plan, partitions=(replace(first, to_index=first.to_index - 1), *others))
    with pytest.raises(PlanOutdated, match="ends partition 0"):
        plan_in_place(rig.files, wal, trust, given=early)
    assert plan_in_place(rig.files, wal, trust, given=plan).planned is not None


def test_damaged_pages_end_the_trust_in_a_state(rig: Rig, wal: Log) -> None:
    """Nothing states what an unsealed file holds; one whose pages are damaged is planned from the log."""
    path = Path(rig.state_file(1))
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    trust = Trust(rig.files, rig.directory)
    assert not trust.doubt(1)
    distrust_damaged(wal, trust)
    assert [part.source for part in plan_in_place(rig.files, wal, trust).plan.partitions] == ["state", "empty"]
