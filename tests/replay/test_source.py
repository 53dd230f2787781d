"""The log as replay opens it, and what is kept in memory of it on the way."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from replay.log.collect_evidence import gather
from replay.log.source import open_source
from replay.plan.node_plan import Planned
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import Target, execute
from tests.replay.rig import DEPOSIT, Rig

SEGMENT_BYTES = 4 << 20
BATCHES = 50


@pytest.mark.slow
def test_looking_at_a_log_keeps_no_segment_in_memory(tmp_path: Path) -> None:
    """An open log, and what was gathered of one, are small; a task holds its log open for as long as it replays."""
    rig = Rig(tmp_path, segment_bytes=SEGMENT_BYTES, segments=4)
    rig.deposits(2)
    rig.close()
    gc.disable()
    tracemalloc.start()
    try:
        evidence, source = gather(rig.files, rig.directory), open_source(rig.files, rig.directory)
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    assert evidence.groups
    assert source.segments
    assert held_bytes < SEGMENT_BYTES // 4


@pytest.mark.slow
def test_batches_whose_digests_do_not_come_take_little_memory(tmp_path: Path) -> None:
    """A replay keeps what batches did for digests that may still come, in far less than a page for each call."""
    rig, calls = Rig(tmp_path), 200
    for _ in range(BATCHES):
        rig.batch(0, [(DEPOSIT, [0, 1])] * calls, digest=False)
    rig.close()
    planned = make_plan(rig.files, rig.directory, PAST)
    (tmp_path / "out" / "state").mkdir(parents=True)
    tracemalloc.start()
    try:
        execute(Planned.of(rig.files, planned.plan), Target(rig.files, str(tmp_path / "out")), workers=0)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < calls * BATCHES * 1024
