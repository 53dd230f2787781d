"""A child process that runs the program which it is given as its argument."""

from __future__ import annotations

import sys


def main() -> int:
    """Entry point of the process."""
    exec(sys.argv[1], {})  # noqa: S102 - the programs are in the tests that start it
    return 0
