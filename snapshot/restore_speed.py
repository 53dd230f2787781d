"""How fast snapshots are checked and put in place on this machine, as it was measured when that was last done.

One rule: a figure, never a condition. It is kept beside the states in `state/speeds.json`, with what
`cmdlog.node.background.recovery_forecast` keeps there; a file that is missing, wrong or lost to another writer costs the quality
of a forecast and nothing else.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any, Final, Literal

import orjson

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from cmdlog.wal.format.json_reader import BadJson, load_document

NAME: Final = "speeds.json"
BYTES_MIN: Final = 4 << 20  # of a smaller image, opening files takes most of the time
FIRST_BYTES_PER_S: Final = {"check": 270e6, "restore": 800e6}  # before anything was measured; together 200 MB/s
SECONDS_MIN: Final = 1e-3  # a clock may be coarse
Step = Literal["check", "restore"]


def read_speeds(folder: str) -> dict[str, float]:
    """Bytes per second of each step, measured or believed."""
    speeds = dict(FIRST_BYTES_PER_S)
    stated = read_measured(folder)
    for step in speeds:
        value = stated.get(_key(step))
        if isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < 1e15:
            speeds[step] = float(value)
    return speeds


def note_speed(folder: str, step: Step, *, size_bytes: int, seconds: float) -> None:
    """Records how long this step took. The average with the earlier figure is kept, so that one slow hour does not decide. Best
    effort."""
    if size_bytes < BYTES_MIN:
        return
    measured, stated = size_bytes / max(seconds, SECONDS_MIN), read_measured(folder)
    if _key(step) in stated:
        measured = (measured + read_speeds(folder)[step]) / 2
    write_speeds(folder, {**stated, _key(step): round(measured)})


def write_speeds(folder: str, value: dict[str, Any]) -> None:
    """Replaces the file. Best effort; several processes may do it at a time."""
    path = os.path.join(folder, NAME)
    temporary = f"{path}.{os.getpid()}.tmp"
    with contextlib.suppress(OSError):
        Path(temporary).unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # "x" follows no link that somebody has put there
            file.write(orjson.dumps(value))
        os.replace(temporary, path)


def restore_speeds_of(folder: str) -> dict[str, Any]:
    """The measured values as the file holds them, for a caller that writes the rest of it."""
    return {key: value for key, value in read_measured(folder).items() if key in map(_key, FIRST_BYTES_PER_S)}


def _key(step: str) -> str:
    return f"{step}_bytes_per_s"


def read_measured(folder: str) -> dict[str, Any]:
    """All that the file holds; {} without one that makes sense."""
    with contextlib.suppress(OSError, WalError, BadJson):
        return load_document(RealFiles(), os.path.join(folder, NAME))
    return {}
