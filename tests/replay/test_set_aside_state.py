"""State files that are replaced in place: kept while a replay has not shown that nothing is lost with them."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from cmdlog.wal.log import Log
from replay.errors import Divergence
from replay.plan.in_place_plan import plan_in_place
from replay.recover.execute import Target
from replay.recover.in_place import bring_up, replay_in_place
from replay.state.set_aside_state import kept_path
from tests.replay.rig import DRIFT, Rig, balances_of


def diverge(rig: Rig, workers: int = 0) -> Divergence:
    """How a start fails."""
    wal = Log.open(rig.files, rig.directory)
    try:
        target = Target(rig.files, wal.directory)
        found = plan_in_place(rig.files, wal, target.trust)
        with pytest.raises(Divergence) as caught:
            replay_in_place(target, found, workers=workers)
    finally:
        wal.close()
    return caught.value


def distrust(rig: Rig) -> None:
    """As after a power cut."""
    for partition in range(2):
        rig.trust.revoke(partition)


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_divergence_shows_the_live_value_of_a_distrusted_state(rig: Rig, workers: int) -> None:
    """The state that is replaced is kept, named, and gives the live values, at each of two starts."""
    rig.batch(0, [(DRIFT, [0])])
    rig.close()
    live = balances_of(rig.directory)[0]
    distrust(rig)
    for _ in range(2):
        error = diverge(rig, workers)
        assert error.place.rows[0].live == {"id": 0, "balance": live}
        assert kept_path(rig.directory, 0) in error.hint
        assert Path(kept_path(rig.directory, 0)).exists()
        assert not Path(kept_path(rig.directory, 0).removesuffix(".set-aside")).exists()


def test_kept_state_goes_with_the_next_success(rig: Rig) -> None:
    """A recovery that succeeds leaves none behind, also one of an earlier start."""
    rig.close()
    distrust(rig)
    stale = Path(kept_path(rig.directory, 1))
    stale.write_bytes(b"of an earlier start")
    wal = Log.open(rig.files, rig.directory)
    bring_up(rig.files, wal)
    assert not list(Path(rig.directory, "state").glob("*.set-aside*"))
    stale.write_bytes(b"left by a crash")
    bring_up(rig.files, wal)
    wal.close()
    assert not stale.exists()


def test_without_room_the_state_is_replaced_and_the_error_says_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full volume does not keep a node from starting: nothing is kept, and the live value is not at hand."""
    rig.batch(0, [(DRIFT, [0])])
    rig.close()
    distrust(rig)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))
    error = diverge(rig)
    assert "had no room to keep the previous state of partition 0" in error.hint
    assert error.place.rows[0].live_as_of_index is None
    assert not Path(kept_path(rig.directory, 0)).exists()
