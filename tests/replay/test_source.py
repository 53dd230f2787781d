"""The log as replay opens it."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path

import pytest

from replay.gather import gather
from replay.source import open_source
from tests.replay.rig import Rig

SEGMENT_BYTES = 4 << 20


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
