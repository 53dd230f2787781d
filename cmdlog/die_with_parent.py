"""`python -m cmdlog.die_with_parent FD COMMAND…`: `cmdlog` until the other end of the pipe FD is closed.

One rule: who started it, however it ended, leaves no server behind. The kernel closes the pipe of a process that is killed; no
signal and no clean-up of that process is needed. The whole process group goes, as it does by `cmdlog.testing.Server.kill`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading


def watch(pipe: int) -> None:
    """Returns at once; ends the process group when the other end of the pipe is closed."""
    if os.getpgrp() != os.getpid():
        raise RuntimeError("a leashed process leads a process group of its own: others must not end with it")
    os.set_inheritable(pipe, False)
    threading.Thread(target=_wait, args=(pipe,), name="cmdlog-leash", daemon=True).start()


def _wait(pipe: int) -> None:
    while os.read(pipe, 1):  # nothing is ever written
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


if __name__ == "__main__":
    from cmdlog.cli import main

    watch(int(sys.argv.pop(1)))
    main()
