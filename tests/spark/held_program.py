"""`python -m tests.spark.held_program FD spark …`: a program whose job stops in its middle and waits, to be ended from outside.

It lives no longer than who holds the other end of the pipe FD (`cmdlog.die_with_parent`): a test run that is ended itself leaves
nothing.
"""

from __future__ import annotations

import importlib
import sys

from cmdlog.cli.app import run
from cmdlog.die_with_parent import watch
from tests.spark import failing_work


def main() -> None:
    """The first partition is done as ever, the second one never ends."""
    watch(int(sys.argv.pop(1)))
    importlib.import_module("replay.spark.jobs.rebuild").__dict__["rebuild_partition"] = failing_work.wait_in_second
    importlib.import_module("replay.spark.jobs.backfill").__dict__["backfill_partition"] = failing_work.wait_in_second_whatif
    run()


if __name__ == "__main__":
    main()
