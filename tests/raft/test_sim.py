"""Simulated histories: a slice of the seeds in every run, thousands with `make sim`; and that a seed is a history."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.raft.sim.__main__ import repeat
from tests.raft.sim.history import FAULTY_UNITS, HAPPENINGS, Outcome, run

ROOT = Path(__file__).resolve().parents[2]
SLICE_SEEDS: Final = 90
SLICE_UNITS: Final = 800  # as long as there is time for
PARTS: Final = 3
WEEKLY_SEEDS: Final = 20_000
WEEKLY_PART_SEEDS: Final = 500


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


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_history_is_safe_and_comes_back_to_life(part: int) -> None:
    """Whatever the seed does, nothing that was promised is broken, and after healing everything works again."""
    counted(part)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for group in HAPPENINGS for name in group])
def test_everything_that_is_simulated_happens(name: str) -> None:
    """A simulation in which nothing goes wrong proves nothing."""
    assert sum(counted(part)[name] for part in range(PARTS)) > 0


@pytest.mark.sim
@pytest.mark.parametrize("first", range(0, WEEKLY_SEEDS, WEEKLY_PART_SEEDS))
def test_many_histories_are_safe(first: int) -> None:
    """The same for many more seeds."""
    for seed in range(first, first + WEEKLY_PART_SEEDS):
        run_seed(seed, units=FAULTY_UNITS)


@pytest.mark.slow
def test_seed_is_a_history_whatever_the_hash_seed() -> None:
    """The same seed gives the same events, twice and in processes whose sets and dicts of text are ordered differently."""
    program = "from tests.raft.sim.history import run; print([run(seed).hash for seed in (1, 2, 4)])"
    told = {
        subprocess.run(
            [sys.executable, "-c", program],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for hash_seed in ("1", "2", "random")
    }
    assert told == {f"{[run(seed).hash for seed in (1, 2, 4)]}\n"}
