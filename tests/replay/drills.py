"""A node to drill, a drill of it, and what that left."""

from __future__ import annotations

import os
from pathlib import Path

from cmdlog.wal.files import RealFiles
from replay.drill.drill import drill
from replay.drill.report import FOLDER, DrillReport
from tests.replay.rig import Rig


def with_snapshots(folder: Path) -> Rig:
    """A running node whose partitions have two snapshots each, with calls before, between and behind them."""
    rig = Rig(folder)
    for _ in range(2):
        rig.deposits(8)
        for partition in (0, 1):
            rig.snapshot(partition)
    rig.deposits(8)
    rig.log()
    return rig


def run_drill(rig: Rig, seed: int = 1) -> DrillReport:
    """A drill beside the rig's node."""
    return drill(RealFiles(), rig.directory, seed=seed)


def left_behind(rig: Rig) -> list[str]:
    """What drills left in the node's directory, without reports."""
    return [name for name in os.listdir(Path(rig.directory, FOLDER)) if not name.endswith(".json")]
