"""`python -m tests.cluster.sim --seeds 1000`: runs seeds over all cores and says how many, how fast, and which failed."""

from __future__ import annotations

import argparse
import concurrent.futures
import logging
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Protocol

import structlog

from tests.cluster.sim.cluster_run import STEPS, Ran, run_history
from tests.cluster.sim.members.changing_run import MEMBER_STEPS, run_changing

CHUNK_SEEDS = 5


class Run(Protocol):
    """What makes a history of a seed."""

    def __call__(self, seed: int, *, steps: int, story: Callable[[str], None] | None = None) -> Ran: ...


def attempt(run: Run, first: int, last: int, steps: int) -> tuple[Counter[str], list[tuple[int, str]]]:
    """Runs the seeds `first..last`, the last one left out: what happened in them, and which failed with what."""
    be_silent()
    counts, failures = Counter[str](), []
    for seed in range(first, last):
        try:
            ran = run(seed, steps=steps)
        except Exception as error:  # noqa: BLE001 - whatever happens in a seed is what it shows
            failures.append((seed, "".join(traceback.format_exception_only(error)).strip()))
        else:
            counts += ran.happened + Counter(operations=ran.operations, acknowledged=ran.acknowledged, ticks=ran.ticks)
    return counts, failures


def be_silent() -> None:
    """Log events of simulated nodes are nobody's."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))


def main() -> int:
    """Runs what the command line asks for; 1 when a seed failed."""
    parser = argparse.ArgumentParser(description="Simulated histories of a whole cluster, each from its seed.")
    parser.add_argument("--seeds", type=int, default=200, help="how many, from --first on [200]")
    parser.add_argument("--first", type=int, default=0, help="the first one [0]")
    parser.add_argument("--seed", type=int, help="this one alone, with its story")
    parser.add_argument("--steps", type=int, help=f"of each history, while there are faults [{STEPS}; {MEMBER_STEPS}]")
    parser.add_argument("--membership", action="store_true", help="of clusters whose members change")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes [one per core]")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first seed that fails")
    given = parser.parse_args()
    run, steps = (run_changing, MEMBER_STEPS) if given.membership else (run_history, STEPS)
    steps = given.steps or steps
    if given.seed is not None:
        be_silent()
        print(run(given.seed, steps=steps, story=print))
        return 0
    began = time.monotonic()
    counts, failures = simulate(run, given.first, given.first + given.seeds, steps, given.jobs, stop=given.first_failure)
    for seed, why in sorted(failures):
        which = " --membership" if given.membership else ""
        print(f"seed {seed}: {why[:1000]}\n  again: python -m tests.cluster.sim{which} --seed {seed} --steps {steps}")
    took_s = time.monotonic() - began
    print(f"{given.seeds} histories in {took_s:.0f} s: " + ", ".join(f"{name} {n}" for name, n in sorted(counts.items())))
    return 1 if failures else 0


def simulate(run: Run, first: int, last: int, steps: int, jobs: int, *, stop: bool) -> tuple[Counter[str], list[tuple[int, str]]]:
    """All seeds of the range."""
    counts, failures = Counter[str](), list[tuple[int, str]]()
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        parts = [pool.submit(attempt, run, at, min(at + CHUNK_SEEDS, last), steps) for at in range(first, last, CHUNK_SEEDS)]
        for part in concurrent.futures.as_completed(parts):
            done, failed = part.result()
            counts += done
            failures += failed
            if failures and stop:
                pool.shutdown(cancel_futures=True)
                break
    return counts, failures


if __name__ == "__main__":
    sys.exit(main())
