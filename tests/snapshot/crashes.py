"""Snapshots that are broken off or damaged: a disk that ends an operation, a flipped bit, a seal process that is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from cmdlog.wal.errors import WriteFailed
from cmdlog.wal.files import RealFiles


class CrashingFiles(RealFiles):
    """Fails before the n-th change to the disk, and at every one after it: a process that died there."""

    def __init__(self, survived: int) -> None:
        self.left = survived

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise WriteFailed("the process died here")

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def fsync_dir(self, path: str) -> None:
        self._step()
        super().fsync_dir(path)

    def write_file_atomic(self, path: str, data: Any) -> None:
        self._step()
        super().write_file_atomic(path, data)


def flip(path: Path) -> None:
    """One bit in the middle."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def seal_process(temporary: str, final: str, facts: Mapping[str, Any], *, killed_after_s: float) -> None:
    """The real process, over a captured folder; killed if it has not ended by then."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [
        sys.executable,
        "-m",
        "snapshot.background_io",
        "snapshot.capture.seal",
        temporary,
        final,
        str(os.SCHED_OTHER),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=environment)
    assert process.stdin is not None
    process.stdin.write(orjson.dumps(facts))
    process.stdin.close()
    try:
        process.wait(killed_after_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
