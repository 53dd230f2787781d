"""Runs `snapshot.capture.seal`: the process that checks an image, makes it durable and gives it its name.

One rule: it takes time that nobody else wants, as long as nobody waits for it (`cmdlog.node.background.idle_priority`).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import orjson

from cmdlog.child_process import PIPE, ChildEnd, ChildProcess, describe_end, last_answer
from cmdlog.node.background.idle_priority import idle_first
from snapshot.errors import SnapshotFailed

SEAL_TIMEOUT_S: Final = 3600.0  # an hour is more than any disk needs


class SealProcess:
    """One process at a time. `seal` belongs to one thread, `stop` to any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: ChildProcess | None = None
        self._stopping = False

    def seal(
        self, temporary: str, final: str, facts: Mapping[str, Any], pressing: Callable[[], bool], *, asked: bool = False
    ) -> None:
        """On return the snapshot `final` is durable and verified.

        `pressing` is asked now and then: once it says so, the process takes its share of the processor. `asked`: somebody waits.
        Raises: SnapshotFailed; the image at `temporary` is then whole, gone, or at `final` and nothing relies on it.
        """
        facts = {**facts, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        order = orjson.dumps(facts, option=orjson.OPT_NON_STR_KEYS)
        size = sum(entry.stat().st_size for entry in os.scandir(temporary))
        ended = idle_first(
            partial(self._run, temporary, final, order),
            size_bytes=size,
            pressing=pressing,
            asked=asked,
            timeout_s=SEAL_TIMEOUT_S,
            again=lambda: _take_back(temporary, final),
        )
        if ended is None:
            raise SnapshotFailed("sealing took too long")
        said = last_answer(ended.output) or {}
        if ended.code != 0 or "error" in said:
            raise SnapshotFailed(str(said.get("error", f"the sealing process ended: {describe_end(ended.code)}")))

    def stop(self) -> None:
        """Ends the process under way; no other one begins."""
        with self._lock:
            self._stopping = True
            if self._process is not None:
                self._process.kill()

    def _run(self, temporary: str, final: str, order: bytes, policy: int, given_up: Callable[[], bool]) -> ChildEnd | None:
        """None when it was given up and ended."""
        with self._lock:
            if self._stopping:
                raise SnapshotFailed("the node is stopping")
            arguments = ("snapshot.capture.seal", temporary, final, str(policy))
            process = self._process = ChildProcess("snapshot.background_process", *arguments, stdin=order, stdout=PIPE)
        try:
            return process.finish(given_up=given_up)
        finally:
            with self._lock:
                self._process = None
            process.close()


def _take_back(temporary: str, final: str) -> bool:
    """A process was ended after giving the name, before it had read all back: what it made is sealed from the beginning."""
    if os.path.exists(final):
        os.rename(final, temporary)
    return os.path.exists(temporary)
