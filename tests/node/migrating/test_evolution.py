"""Whatever becomes of a table in its life, live rows are those of the model, and so is every way back to every moment."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmdlog.wal.files import RealFiles
from replay.errors import UntilBeyond
from replay.plan.node_plan import Planned
from replay.plan.planner import make_plan
from replay.recover.to_directory import rebuild
from tests.node.migrating.evolution import Life, shown
from tests.node.rig import open_node

pytestmark = pytest.mark.slow
MOMENTS = 3  # of a life, beside its end


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.fuzz) for seed in range(3, 60))])
def test_life_equals_its_model_from_every_side(tmp_path: Path, seed: int) -> None:
    """From the start of the log, from each set of snapshots, and at moments in between, with the code of then."""
    folder = tmp_path / f"s{seed}"
    folder.mkdir()
    life = Life(folder, seed)
    try:
        life.run(14)
        chosen = [*sorted(life.chance.sample(range(len(life.moments) - 1), MOMENTS)), len(life.moments) - 1]
        for at in chosen:
            until, app, rows = life.moments[at]
            out = folder / f"out-{at}"
            rebuild(plan_until(str(life.data), until), RealFiles(), str(out))
            node = open_node(out, app=app, inline=True, segments=64)
            assert shown(node) == rows
            node.close()
        _check_restarts(life)
    finally:
        life.close()


def plan_until(data: str, until: int) -> Planned:
    """Of that moment; of the log's end where nothing has a later id."""
    try:
        return make_plan(RealFiles(), data, use_state="never", until=until)
    except UntilBeyond:
        return make_plan(RealFiles(), data, use_state="never")


def _check_restarts(life: Life) -> None:
    """Without states: from the newest snapshots, then from older ones, at last from the start."""
    _, app, rows = life.moments[-1]
    snapshots = life.data / "snapshots"
    while True:
        shutil.rmtree(life.data / "state", ignore_errors=True)
        node = open_node(life.data, app=app, inline=True, segments=64)
        assert shown(node) == rows
        node.close()
        left = sorted(path for path in snapshots.iterdir() if path.is_dir()) if snapshots.exists() else []
        if not left:
            return
        shutil.rmtree(left[-1])
