"""`python -m tests.raft.sim --seeds 10000`: runs seeds over all cores and says how many, how fast, and which failed."""

from __future__ import annotations

import argparse
import concurrent.futures
import itertools
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.raft.sim.history import FAULTY_UNITS, HAPPENINGS, run
from tests.raft.sim.slow_elections import SYNCS_MS, UNIT_MS, WAYS_MS, elections

CHUNK_SEEDS = 20


@dataclass(slots=True)
class Tally:
    """What some seeds came to."""

    seeds: int = 0
    events: int = 0
    writes: int = 0
    reads: int = 0
    cpu_s: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[tuple[int, str]] = field(default_factory=list)  # (seed, why)

    def add(self, other: Tally) -> None:
        """Takes over what other seeds came to."""
        self.seeds, self.events, self.cpu_s = self.seeds + other.seeds, self.events + other.events, self.cpu_s + other.cpu_s
        self.writes, self.reads = self.writes + other.writes, self.reads + other.reads
        self.counts.update(other.counts)
        self.failures += other.failures


def attempt(first: int, last: int) -> Tally:
    """Runs the seeds `first..last`, the last one left out."""
    tally, began = Tally(seeds=last - first), time.process_time()
    for seed in range(first, last):
        try:
            outcome = run(seed)
        except Exception as error:  # noqa: BLE001 - whatever happens in a seed is what it shows
            tally.failures.append((seed, "".join(traceback.format_exception_only(error)).strip()))
        else:
            tally.add(Tally(0, outcome.events, outcome.writes, outcome.reads, 0.0, Counter(outcome.counts)))
    tally.cpu_s = time.process_time() - began
    return tally


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
    parser.add_argument("--elections", action="store_true", help="elections on slow disks and long ways, seed after seed")
    given = parser.parse_args()
    if given.elections:
        return simulate_elections(range(given.first, given.first + given.seeds) if given.seed is None else [given.seed])
    if given.seed is not None:
        print(run(given.seed, story=print if given.trace else None, units=given.units))
        return 0
    began = time.monotonic()
    total = simulate(given.first, given.first + given.seeds, jobs=given.jobs, stop=given.first_failure)
    report(total, took_s=time.monotonic() - began, jobs=given.jobs)
    return 1 if total.failures else 0


def simulate_elections(seeds: Iterable[int]) -> int:
    """Runs the seeds, and says which took too long, and what the worst was; 1 when one did."""
    count, worst_ms, worst_terms, failed = 0, 0, 0, 0
    for seed, sync_ms, way_ms, slow in itertools.product(seeds, SYNCS_MS, WAYS_MS, (None, 1, 2)):
        found = elections(seed, sync_ms=sync_ms, way_ms=way_ms, slow=slow)
        count, worst_ms = count + len(found), max(worst_ms, *(each.units * UNIT_MS for each in found))
        worst_terms = max(worst_terms, *(each.terms for each in found))
        if any(each.too_long(sync_ms) or each.too_many_terms() for each in found):
            failed += 1
            print(f"seed {seed}: {sync_ms} ms a sync, {way_ms} ms a way, {slow or 'all'} slow: {found}", flush=True)
    print(
        f"{count} elections on slow disks and long ways, the longest {worst_ms} ms, at most {worst_terms} terms, {failed} failed"
    )
    return 1 if failed else 0


def simulate(first: int, last: int, *, jobs: int, stop: bool) -> Tally:
    """Runs the seeds in `jobs` processes, and tells of each that fails; `stop` ends it with the first of these."""
    total = Tally()
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        starts = range(first, last, CHUNK_SEEDS)
        for tally in pool.map(attempt, starts, (min(start + CHUNK_SEEDS, last) for start in starts)):
            total.add(tally)
            for seed, why in tally.failures:
                print(f"seed {seed}: {why}\n    {repeat(seed, FAULTY_UNITS)}", flush=True)
            if total.failures and stop:
                pool.shutdown(cancel_futures=True)
                break
            if sys.stderr.isatty():
                print(f"\r{total.seeds} of {last - first} seeds, {total.events} events", end="", file=sys.stderr)
    return total


def report(total: Tally, *, took_s: float, jobs: int) -> None:
    """Prints what happened, how often, and how fast."""
    for group in HAPPENINGS:
        print(", ".join(f"{name} {total.counts[name]}" for name in group))
    print(
        f"{total.seeds} seeds, {total.events} events, {total.writes} acknowledged writes, {total.reads} reads, "
        f"{len(total.failures)} failed; {took_s:.1f} s, {total.events / took_s / 1000:.0f} k events/s in {jobs} processes, "
        f"{total.events / max(total.cpu_s, 1e-9) / 1000:.0f} k events per second of processor time"
    )


if __name__ == "__main__":
    sys.exit(main())
