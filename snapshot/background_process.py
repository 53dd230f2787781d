"""Starts a process that yields to others: `python -m snapshot.background_process MODULE ARGUMENTS…` runs its `main`.

One rule: it rests from its first line on (`snapshot.background_io`). The imports of the process that checks an image take 0.2 s
of a processor without a pause, and held a sync of the log up for as long; they cannot call a `Breath`, so a timer does it for
them.
"""

from __future__ import annotations

import importlib
import signal
import sys
import time
from functools import partial

from cmdlog.signal_handlers import handled
from snapshot.background_io import REST_S, WORK_S


def main() -> int:
    """Entry point."""
    with handled(partial(time.sleep, REST_S), signal.SIGALRM):
        signal.setitimer(signal.ITIMER_REAL, WORK_S, WORK_S)
        module = importlib.import_module(sys.argv.pop(1))
        signal.setitimer(signal.ITIMER_REAL, 0)
    code: int = module.main()
    return code


if __name__ == "__main__":
    sys.exit(main())
