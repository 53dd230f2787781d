"""The command line: `cmdlog serve | call | status | check | log | …`. It translates; the packages below decide."""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the `cmdlog` program."""
    try:
        from cmdlog.cli.program import run
    except KeyboardInterrupt:  # before there is anything to say
        sys.exit(130)

    run()
