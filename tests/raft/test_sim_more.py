"""The other half of the slice of simulated histories, in a file of its own so that two processes share the time."""

from __future__ import annotations

import pytest

from tests.raft.simslice import PARTS, counted


@pytest.mark.slow
@pytest.mark.parametrize("part", range(1, PARTS, 2))
def test_history_is_safe_and_comes_back_to_life(part: int) -> None:
    """Whatever the seed does, nothing that was promised is broken, and after healing everything works again."""
    counted(part)
