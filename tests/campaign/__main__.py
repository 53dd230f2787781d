"""`python -m tests.campaign --seed N`: lives the history of one seed; `--seeds N --first M`: of many, for a while.

What fails is printed with the command that repeats it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Final

from tests.campaign.history import live

STEPS: Final = 12


def attempt(seed: int, steps: int, *, keep: bool = False) -> tuple[Counter[str], str]:
    """What happened in it, and why it failed, with the command that repeats it: "" when it did not."""
    folder = Path(tempfile.mkdtemp(prefix=f"cmdlog-campaign-{seed}-"))
    try:
        return live(seed, folder, steps=steps), ""
    except Exception as error:  # noqa: BLE001 - whatever it is, the seed is named with it
        keep = True
        trace = "".join(traceback.format_exception(error)[-3:])
        return (
            Counter(),
            f"{trace}seed {seed} failed, see {folder}; again: python -m tests.campaign --seed {seed} --steps {steps}",
        )
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--seed", type=int, help="one history, which is kept")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no history begins later")
    given = parser.parse_args()
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    began, total, failed, done = time.monotonic(), Counter[str](), 0, 0
    for seed in seeds:
        if time.monotonic() - began > given.seconds:
            break
        at = time.monotonic()
        counts, why = attempt(seed, given.steps)
        done, failed = done + 1, failed + bool(why)
        total.update(counts)
        sys.stdout.write(f"seed {seed}: {time.monotonic() - at:.1f} s {why or dict(sorted(counts.items()))}\n")
        sys.stdout.flush()
    sys.stdout.write(f"{done} histories, {failed} failed: {dict(sorted(total.items()))}\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
