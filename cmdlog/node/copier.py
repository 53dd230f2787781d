"""The process that copies segments into the archive (`snapshot.segmentcopy`), from the node's side.

One rule: it is started when the first segment is to be copied, and again after it has died; a node that archives nothing has
none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import orjson

from cmdlog.wal.errors import Corrupt, DiskFull, WriteFailed
from snapshot.errors import SnapshotFailed
from snapshot.segmentcopy import Copied


class Copier:
    """One caller at a time; `stop` from any thread."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._stopped = False

    def copy(self, source: str, target: str, last_block: int) -> Copied:
        """See `copy_segment`. Raises: Corrupt, DiskFull, WriteFailed, SnapshotFailed (the process ended)."""
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            order = {"source": source, "target": target, "last_block": last_block}
            process.stdin.write(orjson.dumps(order, option=orjson.OPT_APPEND_NEWLINE))
            process.stdin.flush()
            line = process.stdout.readline()
        except (OSError, ValueError) as error:
            raise SnapshotFailed(f"the process that copies segments ended: {error}") from error
        if not line.endswith(b"\n"):
            raise SnapshotFailed("the process that copies segments ended")
        return _understood(orjson.loads(line), source)

    def stop(self) -> None:
        """Ends the process, also in the middle of a copy."""
        with self._lock:
            self._stopped = True
            process = self._process
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """After `stop`, when no copy is under way any more."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    stream.close()

    def _running(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._stopped:
                raise SnapshotFailed("the node is stopping")
            if self._process is None or self._process.poll() is not None:
                self.close()
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "snapshot.segmentcopy"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
                    process_group=0,  # Ctrl-C reaches the terminal's whole group; the node decides when this one ends
                )
            return self._process


def _understood(answer: dict[str, Any], source: str) -> Copied:
    kind, text = answer.get("kind"), str(answer.get("error", ""))
    if kind == "disk_full":
        raise DiskFull(text)
    if kind == "corrupt":
        raise Corrupt(text, path=source)
    if kind is not None:
        raise WriteFailed(text)
    partitions = {int(p): (int(first), int(last)) for p, (first, last) in answer["partitions"].items()}
    return Copied(int(answer["bytes"]), str(answer["sha256"]), int(answer["last_chain"]), partitions)
