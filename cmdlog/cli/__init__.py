"""The command line: `cmdlog serve | call | status | check | log | …`. It translates; the packages below decide."""

from __future__ import annotations


def main() -> None:
    """Entry point of the `cmdlog` program."""
    from cmdlog.cli.program import run

    run()
