"""Simulated histories: a slice of the seeds in every run, all of them with `make sim`; and that a seed is a history."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.raft.sim.__main__ import repeat
from tests.raft.sim.history import FAULTY_UNITS, run

ROOT = Path(__file__).resolve().parents[2]
SLICE_SEEDS = 500
SLICE_UNITS = FAULTY_UNITS // 2  # as long as there is time for
PARTS = 10
WEEKLY_SEEDS = 20_000


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_history_is_safe_and_comes_back_to_life(part: int) -> None:
    """Whatever the seed does, nothing that was promised is broken, and after healing everything works again."""
    for seed in range(part, SLICE_SEEDS, PARTS):
        _run(seed, units=SLICE_UNITS)


@pytest.mark.sim
@pytest.mark.parametrize("first", range(SLICE_SEEDS, WEEKLY_SEEDS, SLICE_SEEDS))
def test_many_histories_are_safe(first: int) -> None:
    """The same for many more seeds."""
    for seed in range(first, first + SLICE_SEEDS):
        _run(seed, units=FAULTY_UNITS)


def _run(seed: int, *, units: int) -> None:
    try:
        run(seed, units=units)
    except Exception as error:
        error.add_note(f"seed {seed}: {repeat(seed, units)}")
        raise


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
