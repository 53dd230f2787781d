"""Forks of a node whose code and tables changed, with the code of each of its versions."""

from __future__ import annotations

from pathlib import Path

import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from procedures.errors import MigrationFailed, SchemaConflict
from procedures.storage.state import PartitionState
from replay import engine
from replay.errors import Interrupted
from replay.fork import unfinished
from replay.fork.fork import START, fork
from replay.fork.rerun import CallUnfit
from replay.fork.tally import RerunProgress
from replay.state.trust import state_path
from tests.replay.deployed import ITEMS, PARTITIONS, Deployed, application, fits, make_deployed, ordered, tables_of
from tests.replay.ledgers import SMALL, Versions

pytestmark = pytest.mark.slow
FILES = RealFiles()


@pytest.fixture(scope="module")
def past(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """See `make_deployed`."""
    return make_deployed(tmp_path_factory.mktemp("years") / "node", versions)


def moments(past: Deployed) -> list[int]:
    """Before all calls, and around each deploy."""
    return [
        START,
        past.last(1).txn_id,
        past.first(2).txn_id,
        past.last(2).txn_id,
        past.first(3).txn_id,
        past.last(3).txn_id,
        past.first(4).txn_id,
    ]


@pytest.mark.parametrize("step", [1, 4])
def test_fork_runs_the_calls_that_fit_on_the_tables_of_its_code(
    past: Deployed, versions: Versions, tmp_path: Path, step: int
) -> None:
    """From each moment: the log's changes of tables have no effect after it, this code's come before its first call."""
    db = application(versions, step)
    for n, at in enumerate(moments(past)):
        out = tmp_path / f"out{n}"
        if step < 4 and at >= past.first(4).txn_id:
            with pytest.raises(SchemaConflict, match=r"(table 'items' differs|table 'rates')"):
                fork(FILES, str(past.directory), at=at, db=db, out=str(out), missing="skip")
            continue
        if step == 4 and START < at < past.first(2).txn_id:
            with pytest.raises(MigrationFailed, match="table 'items' has no column 'mood'; it has id, tag"):
                fork(FILES, str(past.directory), at=at, db=db, out=str(out), missing="skip")
            continue
        report = fork(FILES, str(past.directory), at=at, db=db, out=str(out), missing="skip")
        assert tables_of(out) == past.forked(at, step), at
        left_out = [moment for moment in past.moments if moment.txn_id > at and not fits(moment, step)]
        assert sum(of.calls for of in report.tally.left_out.values()) == len(left_out)
        with cmdlog.open(out, db, **SMALL) as node:
            assert node.call("put", id=ITEMS + 9, tag=1) == 1


def test_call_of_another_signature_is_named(past: Deployed, versions: Versions, tmp_path: Path) -> None:
    """A fork that leaves nothing out is refused with both signatures."""
    with pytest.raises(CallUnfit, match=r"ran adjust\(id, times, plus\); the code has adjust\(plus, factor, id, extra=0\)"):
        fork(FILES, str(past.directory), at=START, db=application(versions, 3), out=str(tmp_path / "out"))


def test_fork_with_the_code_of_its_time_is_the_history(past: Deployed, versions: Versions, tmp_path: Path) -> None:
    """From the last transaction before the newest deploy, all calls fit and answer as they did."""
    for step in (3, 4):
        at, db, out = past.last(step - 1).txn_id, application(versions, step), tmp_path / f"out{step}"
        report = fork(FILES, str(past.directory), at=at, until=past.last(step).txn_id, db=db, out=str(out))
        assert tables_of(out) == ordered(past.last(step).tables)
        assert (report.tally.changed, report.tally.left_out) == (0, {})


def test_migrations_of_a_fork_run_once(past: Deployed, versions: Versions, tmp_path: Path) -> None:
    """A fork from before the migrations runs them at its beginning, which its node knows; the log's own pass without effect."""
    db, out = application(versions, 4), tmp_path / "out"
    fork(FILES, str(past.directory), at=past.last(2).txn_id, db=db, out=str(out), missing="skip")
    for partition in range(PARTITIONS):
        state = PartitionState.open(state_path(str(out), partition), partition=partition)
        assert state.migrations_done() == ["0001_names", "0002_halves"]
        state.close()
    with cmdlog.open(out, db, **SMALL) as node:
        assert node.call("cheer", id=0, mood="forked") == 1


def test_interrupted_fork_runs_its_migrations_once(
    past: Deployed, versions: Versions, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted at each commit after the change of tables, it resumes to what one run gives."""
    at, db = past.last(2).txn_id, application(versions, 4)
    monkeypatch.setattr(engine, "GROUP_CALLS_MAX", 1)
    kept = unfinished.save_progress
    for commits in range(4):
        out, left = tmp_path / f"out{commits}", [commits]

        def keep(state: PartitionState, done: RerunProgress, left: list[int] = left) -> None:
            kept(state, done)
            left[0] -= 1
            if left[0] < 0:
                state.save(state.position, state.clock)
                state.connection.execute("COMMIT")
                raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(unfinished, "save_progress", keep)
            with pytest.raises(Interrupted):
                fork(FILES, str(past.directory), at=at, db=db, out=str(out), missing="skip")
        fork(FILES, str(past.directory), at=at, db=db, out=str(out), missing="skip")
        assert tables_of(out) == past.forked(at, 4), commits
