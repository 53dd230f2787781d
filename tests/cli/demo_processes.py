"""Demos as a user runs them: processes, what they start, and how they are interrupted."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S


def program(*arguments: str) -> list[str]:
    """The command line of the program."""
    return [sys.executable, "-m", "cmdlog", *arguments]


def processes_below(folder: Path) -> list[str]:
    """Command lines of running processes that name the folder, or that run in it."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            line = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            place = os.readlink(process / "cwd")
        except OSError:
            continue
        if (str(folder) in line or place.startswith(str(folder))) and process.name != str(os.getpid()):
            found.append(line)
    return found


def interrupted_demo(*arguments: str, folder: Path, after: bytes) -> int:
    """The exit code, as a shell has it, of a demo with temporary files below `folder` that gets Ctrl-C once it says something.

    It is pressed until the demo ends: Python drops an interrupt that arrives within a destructor, and one that arrives when
    everything is done and the interpreter is ending ends the process by the signal.
    """
    environment = {**os.environ, "TMPDIR": str(folder)}
    demo = subprocess.Popen(program(*arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert demo.stderr is not None
    try:
        for line in demo.stderr:
            if after in line:
                break
        assert processes_below(folder) != []
        for patience_s in (2, 2, 2, PATIENCE_S):
            demo.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                demo.communicate(timeout=patience_s)
                break
    finally:
        demo.kill()
        demo.wait()
    return demo.returncode if demo.returncode >= 0 else 128 - demo.returncode
