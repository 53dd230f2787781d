"""A recovery to another place that is broken off: it is gone on with by the same plan, and by no other one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cmdlog.wal.directory.instance import Identity, write_marker
from cmdlog.wal.errors import WrongDirectory
from cmdlog.wal.log import Log
from procedures.execution.batch_transaction import BatchTransaction
from procedures.storage.state import Position
from replay import engine, loop
from replay.errors import Interrupted, PlanOutdated
from replay.plan.node_plan import Plan, Planned
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import RecoveryProgress
from replay.recover.to_directory import rebuild
from replay.state.trust import Trust, read_position, state_path
from tests.replay.rig import DEPOSIT, DRIFT, TRAP, Rig, balances_of


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """A stopped node with some deposits behind it; each batch is committed alone."""
    monkeypatch.setattr(engine, "GROUP_CALLS_MAX", 1)
    monkeypatch.setattr(loop, "REPORT_EVERY_CALLS", 1)
    rig = Rig(tmp_path)
    rig.deposits(12)
    rig.close()
    return rig


def reopened(rig: Rig, until: int | None = None) -> Planned:
    """The plan as a second command reads it from a file."""
    return Planned.of(rig.files, planned_of(rig, until))


def planned_of(rig: Rig, until: int | None = None) -> Plan:
    """The plan of a recovery to another place."""
    return make_plan(rig.files, rig.directory, PAST, until=until).plan


def break_off(rig: Rig, out: Path, *, after: int) -> None:
    """Ctrl-C when so many calls are done."""
    done = 0

    def stop(progress: RecoveryProgress) -> None:
        nonlocal done
        done = progress.done
        if done >= after:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match="again to resume"):
        rebuild(reopened(rig), rig.files, str(out), workers=0, progress=stop)


@pytest.fixture(autouse=True)
def every_call_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Progress is told at once."""
    monkeypatch.setattr("replay.recover.progress.DISPLAY_EVERY_S", 0.0)


@pytest.mark.parametrize("after", [1, 9, 20, 33, 42])
def test_second_run_goes_on_from_the_states(rig: Rig, tmp_path: Path, after: int) -> None:
    """Broken off anywhere, nothing that was done is done again, and the result is that of one run."""
    rebuild(reopened(rig), rig.files, str(tmp_path / "whole"), workers=0)
    break_off(rig, tmp_path / "out", after=after)
    stands = [read_position(state_path(str(tmp_path / "out"), p), p) for p in range(2)]
    assert not (tmp_path / "out" / "instance.json").exists()
    seen: list[RecoveryProgress] = []
    report = rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0, progress=seen.append)
    for result, at in zip(report.results, stands, strict=True):
        assert not isinstance(at, str)
        assert result.entries == result.index - at.index
    assert seen[-1].percent == 100
    assert rig.digests(str(tmp_path / "out")) == rig.digests(str(tmp_path / "whole"))
    Log.open(rig.files, str(tmp_path / "out")).close()


def test_broken_off_in_the_last_steps_goes_on_too(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while the new log is made: snapshots and log are made again, the states stay."""
    monkeypatch.setattr(Log, "create", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0)
    monkeypatch.undo()
    report = rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0)
    assert report.calls == 0
    assert balances_of(str(tmp_path / "out")) == rig.balances


def test_call_that_was_running_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who breaks off a recovery that seems to hang learns in which call; it was not applied, and nothing calls it a fault."""
    rig = Rig(tmp_path)
    index = rig.batch(1, [(DEPOSIT, [10, 1]), (TRAP, [10])])
    rig.close()
    monkeypatch.setenv("LEDGER_TRAP", "break")
    with pytest.raises(Interrupted, match=f"interrupted in trap, transaction {rig.history[-1][0]}, index {index}"):
        rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0)
    monkeypatch.undo()
    rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0)
    assert balances_of(str(tmp_path / "out")) == rig.balances


def test_interruption_between_two_calls_names_partition_and_index(
    rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no call was running, the place is what is known: the message has no empty places."""
    commit = BatchTransaction.commit_batch

    def interrupted(self: BatchTransaction, position: Position, *args: Any) -> None:
        commit(self, position, *args)
        if position.index == 5:
            raise KeyboardInterrupt

    monkeypatch.setattr(BatchTransaction, "commit_batch", interrupted)
    with pytest.raises(Interrupted, match=r"was interrupted in partition [01], index 5\n"):
        rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0)


def test_another_plan_is_refused_and_both_are_named(rig: Rig, tmp_path: Path) -> None:
    """What is there stays as it is, and the message says what it is."""
    break_off(rig, tmp_path / "out", after=9)
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    until = rig.history[-3][0]
    with pytest.raises(WrongDirectory, match=f"unfinished recovery of {rig.directory}, plan .* up to transaction {until}"):
        rebuild(reopened(rig, until), rig.files, str(tmp_path / "out"), workers=0)
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before
    assert rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0).calls


def test_foreign_file_is_never_gone_on_with(rig: Rig, tmp_path: Path) -> None:
    """A directory that holds anything that is not of a recovery is refused as ever."""
    break_off(rig, tmp_path / "out", after=9)
    (tmp_path / "out" / "precious").write_text("x")
    with pytest.raises(WrongDirectory, match="precious"):
        rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0)


@pytest.mark.parametrize("by", ["recovery", "fork"])
def test_unfinished_directory_is_never_taken_for_an_empty_one(rig: Rig, tmp_path: Path, by: str) -> None:
    """A node that is created there would begin with nothing, under a new cluster id, and its clients' calls would run again."""
    out = tmp_path / "out"
    break_off(rig, out, after=4)
    if by == "fork":
        write_marker(rig.files, str(out), "fork")
    before = sorted(path.name for path in out.iterdir())
    with pytest.raises(WrongDirectory, match=f"{by} that was interrupted"):
        Log.create(rig.files, str(out), Identity.fresh())
    with pytest.raises(WrongDirectory, match=f"{by} that was interrupted"):
        Log.open(rig.files, str(out))
    assert sorted(path.name for path in out.iterdir()) == before


def test_older_plan_is_refused_where_the_log_has_gone_on(tmp_path: Path) -> None:
    """Carried out, it would leave acknowledged calls out; a plan that was made for a moment is not concerned."""
    rig = Rig(tmp_path)
    rig.deposits(4)
    plan = planned_of(rig)
    early = planned_of(rig, until=plan.partitions[0].to_txn)
    rig.deposits(4)
    rig.close()
    with pytest.raises(PlanOutdated, match="the plan ends partition"):
        rebuild(Planned.of(rig.files, plan), rig.files, str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
    rebuild(Planned.of(rig.files, early), rig.files, str(tmp_path / "early"))


def test_state_of_another_boot_is_restored_anew(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut the states that were never synced are not believed; the run begins them again, and is right."""
    break_off(rig, tmp_path / "out", after=20)
    monkeypatch.setattr(type(rig.files), "boot_id", lambda _self: "another")
    report = rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=0)
    assert report.calls == 42
    assert balances_of(str(tmp_path / "out")) == rig.balances


def test_partition_with_missing_calls_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What touched the rows of a call that was set aside is known from a whole run only; nothing is listed twice."""
    rig = Rig(tmp_path)
    rig.batch(0, [(DRIFT, [0])])
    rig.batch(0, [(DEPOSIT, [0, 1])])
    rig.deposits(4)
    rig.close()
    monkeypatch.setattr(Log, "create", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(Interrupted):
        rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=1, quarantine=True)
    assert len((tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()) == 1
    assert not Trust(rig.files, str(tmp_path / "out")).doubt(0)
    monkeypatch.undo()
    report = rebuild(reopened(rig), rig.files, str(tmp_path / "out"), workers=1, quarantine=True)
    assert [result.calls > 0 for result in report.results] == [True, False]
    assert len((tmp_path / "out" / "quarantine.jsonl").read_text().splitlines()) == 1
    assert report.aside[0].touches[0]
    assert balances_of(str(tmp_path / "out")) == rig.balances
