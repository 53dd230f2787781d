"""Freed memory that is kept for the next array."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

from tests.waiting import PATIENCE_S

PROGRAM = """
import resource, sys
from replay.spark.base.malloc_tuning import keep_freed
print(keep_freed() if sys.argv[1] == "keep" else None)
for turn in range(60):
    if turn == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    arrays = [bytearray(b"x") * (700 << 10) for _ in range(6)]
    del arrays
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[str, int]:
    """(what `keep_freed` said, pages that fifty turns got anew)."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    said, count = done.stdout.split()
    return said, int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are not asked")
def test_arrays_of_the_next_turn_get_the_pages_of_the_last_one() -> None:
    """Once asked, glibc hands nothing back between the turns: no page is zeroed again, where thousands were."""
    said, kept = faults("keep")
    assert said == "True"
    assert kept < 500 < faults("plain")[1]
