"""The legs of a recovery from several directories: one that stops keeps no other one from its end, and calls can be set aside."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from replay.engine import CatalogMissing
from replay.errors import Poison
from replay.plan.cluster_plan import JointPlan
from replay.plan.cluster_planner import make_joint_plan
from replay.plan.planner import MEMBER_QUARANTINE
from replay.recover.execute import Target
from replay.recover.from_cluster import rebuild_jointly, run_legs
from replay.state.trust import STATE_FOLDER, Trust, read_position, state_path
from tests.replay.rig import ACCOUNTS, DEPOSIT, TRAP, Rig, balances_of


def in_legs(plan: JointPlan) -> JointPlan:
    """The plan with a leg for each partition, as if each came from another log."""
    return replace(plan, legs=tuple(replace(leg, partitions=(part,)) for leg in plan.legs for part in leg.partitions))


def test_leg_that_stops_lets_the_others_come_to_their_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every call that stops a partition is told at once, and what is behind it of the other partitions has been done."""
    rig = Rig(tmp_path, partitions=3)
    stops = [rig.batch(p, [(TRAP, [10 * p])]) for p in (0, 2)]
    rig.deposits(3)
    rig.close()
    monkeypatch.setenv("LEDGER_TRAP", "fault")
    (tmp_path / "out" / STATE_FOLDER).mkdir(parents=True)
    plan = in_legs(make_joint_plan(rig.files, [rig.directory]))
    target = Target(rig.files, str(tmp_path / "out"))
    with pytest.raises(Poison, match=r"partition 0 .*also stopped.* partition 2") as caught:
        run_legs(plan, target, workers=0, progress=lambda _progress: None)
    assert [stop.place.index for stop in (caught.value, *caught.value.also)] == stops
    found = read_position(state_path(target.directory, 1), 1)
    assert not isinstance(found, str)
    assert found.index == plan.legs[1].partitions[0].to_index
    monkeypatch.undo()
    report = run_legs(plan, target, workers=0, progress=lambda _progress: None, go_on=True)
    assert [result.calls > 0 for result in report.results] == [True, False, True]
    assert balances_of(target.directory, 3) == rig.balances
    assert not any(Trust(rig.files, target.directory).doubt(p) for p in range(3))


def test_calls_without_code_are_set_aside_over_several_directories_too(tmp_path: Path) -> None:
    """Refused with exit code 13 unless they are to be left for the replay, which keeps them and goes on."""
    rig = Rig(tmp_path)
    before = dict(rig.balances)
    rig.batch(0, [(DEPOSIT, [0, 5])], version=9, live=False)
    rig.balances = before
    rig.batch(0, [(DEPOSIT, [ACCOUNTS - 1, 5])], live=False)
    rig.stop()
    with pytest.raises(CatalogMissing):
        make_joint_plan(rig.files, [rig.directory])
    plan = make_joint_plan(rig.files, [rig.directory], purpose=MEMBER_QUARANTINE)
    report = rebuild_jointly(plan, rig.files, str(tmp_path / "out"), workers=1, quarantine=True)
    assert [(call.params, call.kind) for call in report.aside[0].calls] == [([0, 5], "code")]
    assert balances_of(str(tmp_path / "out")) == rig.balances
