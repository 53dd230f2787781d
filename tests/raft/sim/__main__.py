"""`python -m tests.raft.sim --seeds 10000`: runs seeds over all cores and says how many, how fast, and which failed."""

from __future__ import annotations

import argparse
import concurrent.futures
import os
import sys
import time
import traceback

from tests.raft.sim.history import FAULTY_UNITS, run

CHUNK_SEEDS = 20


def attempt(first: int, last: int) -> tuple[int, int, int, list[tuple[int, str]]]:
    """(seeds, events, writes, failures) of `first..last`, the last one left out."""
    events = writes = 0
    failed = []
    for seed in range(first, last):
        try:
            outcome = run(seed)
        except Exception as error:  # noqa: BLE001 - whatever happens in a seed is what it shows
            failed.append((seed, "".join(traceback.format_exception_only(error)).strip()))
        else:
            events += outcome.events
            writes += outcome.writes
    return last - first, events, writes, failed


def repeat(seed: int, units: int) -> str:
    """The command that shows this seed again."""
    return f"python -m tests.raft.sim --seed {seed} --units {units} --trace"


def main() -> int:
    """Runs what the command line asks for; 1 when a seed failed."""
    parser = argparse.ArgumentParser(description="Simulated histories of one consensus group, each from its seed.")
    parser.add_argument("--seeds", type=int, default=500, help="how many, from --first on [500]")
    parser.add_argument("--first", type=int, default=0, help="the first one [0]")
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--first-failure", action="store_true", help="stop at the first seed that fails")
    parser.add_argument("--trace", action="store_true", help="with --seed: the story, event by event")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes [one per core]")
    parser.add_argument(
        "--units", type=int, default=FAULTY_UNITS, help=f"with --seed: how long there are faults [{FAULTY_UNITS}]"
    )
    given = parser.parse_args()
    if given.seed is not None:
        print(run(given.seed, story=print if given.trace else None, units=given.units))
        return 0
    began, seeds, events, writes, failures = time.monotonic(), 0, 0, 0, 0
    last = given.first + given.seeds
    with concurrent.futures.ProcessPoolExecutor(given.jobs) as pool:
        starts = range(given.first, last, CHUNK_SEEDS)
        for count, more, written, failed in pool.map(attempt, starts, (min(start + CHUNK_SEEDS, last) for start in starts)):
            seeds, events, writes, failures = seeds + count, events + more, writes + written, failures + len(failed)
            for seed, why in failed:
                print(f"seed {seed}: {why}\n    {repeat(seed, FAULTY_UNITS)}", flush=True)
            if failures and given.first_failure:
                pool.shutdown(cancel_futures=True)
                break
            if sys.stderr.isatty():
                print(f"\r{seeds} of {given.seeds} seeds, {events} events", end="", file=sys.stderr)
    took = time.monotonic() - began
    print(
        f"{seeds} seeds, {events} events, {writes} acknowledged writes, {failures} failed; "
        f"{took:.1f} s, {events / took / 1000:.0f} k events/s in {given.jobs} processes"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
