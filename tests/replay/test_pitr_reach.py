"""How far back a moment can be restored: histories that promise nothing, a recovery point alone, no archive at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.record import RecordKind
from cmdlog.wal.log import Log
from replay.errors import UntilUnreachable
from tests.replay.archiverig import ArchiveRig, plan_for
from tests.replay.rig import DEPOSIT, Rig

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]


def test_skip_far_behind_its_batch_is_heeded(tmp_path: Path) -> None:
    """A call hung for long while another partition filled segments: its skip stands there, and counts."""
    rig = ArchiveRig(tmp_path, segments=8)
    rig.rotate(1)
    index = rig.batch(0, [(DEPOSIT, [0, 5]), (DEPOSIT, [1, 7])], skips=frozenset({1}), digest=False)
    moment, balances = rig.history[-1]
    for n in range(40):
        rig.batch(1, [(DEPOSIT, [10, n])])
    rig.entry(0, RecordKind.SKIP, {"index": index, "position": 1, "reason": "hung", "txn_id": rig.tick(1, 0)[0]})
    rig.rotate(4)
    rig.close()
    plan = plan_for(rig.directory, moment)
    assert plan.archive
    assert rig.recovered(tmp_path / "out", moment) == balances


def test_moment_before_everything_that_is_kept_is_refused(tmp_path: Path) -> None:
    """Without a promise the past goes; then it says from where on there is anything."""
    rig = ArchiveRig(tmp_path, rules={"window_s": 0}, segments=6)
    rig.rotate(5)
    rig.close()
    assert rig.names(".seg") == []
    with pytest.raises(
        UntilUnreachable, match=r"blocks 1 to \d+ of the log cannot be read .* transactions from the beginning to"
    ):
        plan_for(rig.directory, rig.history[0][0])


def test_point_is_restored_from_a_run_that_does_not_reach_the_log(tmp_path: Path) -> None:
    """What a recovery point pins is archived alone, and is enough; moments beside it are refused."""
    rig = ArchiveRig(tmp_path, rules={"window_s": 0}, segments=6)
    rig.rotate(3)
    point, balances = rig.point(), rig.history[-1][1]
    rig.rotate(6)
    rig.close()
    assert 0 < len(rig.names(".seg")) < 6
    assert rig.recovered(tmp_path / "out", point.txn_id) == balances
    wal = Log.open(RealFiles(), str(tmp_path / "out"))
    assert wal.recovered.txn_id_max >= rig.last_txn
    wal.close()
    later = next(txn for txn, _ in rig.history if txn > point.txn_id)
    with pytest.raises(UntilUnreachable, match="cannot be read"):
        plan_for(rig.directory, later)


def test_without_an_archive_nothing_has_changed(tmp_path: Path) -> None:
    """A node whose folder archive/ is missing recovers from what it has."""
    rig = Rig(tmp_path)
    rig.deposits(4)
    rig.close()
    shutil.rmtree(Path(rig.directory) / "archive")
    assert plan_for(rig.directory, None).archive == ()
    assert plan_for(rig.directory, rig.history[8][0]).archive == ()
