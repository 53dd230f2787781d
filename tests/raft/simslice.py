"""The slice of simulated histories that every run of the tests has, cut in parts.

One rule: a part runs once in a process, whoever asks first.
"""

from __future__ import annotations

import functools
from collections import Counter
from typing import Final

from tests.raft.sim.__main__ import repeat
from tests.raft.sim.history import Outcome, run

SLICE_SEEDS: Final = 500
SLICE_UNITS: Final = 800  # as long as there is time for
PARTS: Final = 10


@functools.cache
def counted(part: int) -> Counter[str]:
    """What happened in a part of the slice. Raises: what a seed of it breaks."""
    counts: Counter[str] = Counter()
    for seed in range(part, SLICE_SEEDS, PARTS):
        counts.update(run_seed(seed, units=SLICE_UNITS).counts)
    return counts


def run_seed(seed: int, *, units: int) -> Outcome:
    """Runs one; a failure says how to repeat it."""
    try:
        return run(seed, units=units)
    except Exception as error:
        error.add_note(f"seed {seed}: {repeat(seed, units)}")
        raise
