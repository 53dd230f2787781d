"""`cmdlog spark …` as a program of its own, whose job stops in its middle and waits: for a driver that is ended from outside."""

from __future__ import annotations

import importlib

from cmdlog.cli.program import run
from tests.spark import failing_work


def main() -> None:
    """The first partition is done as ever, the second one never ends; of a file of calls, some are sent."""
    importlib.import_module("replay.spark.rebuild").__dict__["rebuild_partition"] = failing_work.wait_in_second
    importlib.import_module("replay.spark.backfill").__dict__["backfill_partition"] = failing_work.wait_in_second_whatif
    importlib.import_module("cmdlog.client.feeder").__dict__["Feeder"] = failing_work.WaitingFeeder
    run()


if __name__ == "__main__":
    main()
