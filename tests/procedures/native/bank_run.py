"""A seeded bank workload on one site, as a program: prints how the calls ended, and the digests of all batches."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson

from procedures.native import accelerator
from procedures.samples import bank
from tests.procedures.sites import Site


def run_bank(path: Path, *, seed: int) -> list[tuple[list[int], int]]:
    """(result hashes, rows digest) of each batch."""
    site = Site(path, bank.db)
    calls = [*bank.loader(branches=2, customers=10), *bank.workload(seed, calls=300, branches=2, customers=10)]
    try:
        found = []
        for first in range(0, len(calls), 16):
            applied = site.apply(*calls[first : first + 16])
            found.append((applied.result_hashes, applied.rows_digest))
        return found
    finally:
        site.close()


if __name__ == "__main__":
    sys.stdout.write(orjson.dumps([accelerator is None, run_bank(Path(sys.argv[1]), seed=int(sys.argv[2]))]).decode())
