"""What a node checks of itself: all of it begins and ends with the node."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmdlog.node.scrub.file_scan import SliceOrder
from cmdlog.node.scrub.scrub_reader import ReadingFailed, ScrubReader
from tests.node.rig import open_node

pytestmark = pytest.mark.slow


def test_all_checks_begin_and_end_with_the_node(tmp_path: Path) -> None:
    """Threads of drills and scrub run while the settings want them, and none after the close."""
    node = open_node(tmp_path, inline=True, drill_every_s=3600.0, scrub_every_s=3600.0)
    checks = node.overview.checks
    assert checks.scrub.status()["every_s"] == 3600.0
    assert {"drill", "state_check", "scrub"} <= set(node.status())
    node.close()
    checks.stop()
    reader = ScrubReader(str(tmp_path))
    reader.stop()
    with pytest.raises(ReadingFailed, match="stopping"):
        reader.read(SliceOrder("snapshot", str(tmp_path), 1))
