"""What the sites answer when they are asked to prepare a change of their tables, gathered until all have answered.

One rule: every partition answers once: with its change, with the reason why there is none, or by the end of its site.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

Report = Mapping[str, Any]  # "change" (None: nothing to change) and "steps"; or "error" and "hint"


class PreparedChanges:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._awaited: set[int] = set()
        self._reports: dict[int, Report] = {}

    def await_partitions(self, partitions: Iterable[int]) -> None:
        """These are asked from now on; earlier answers are forgotten."""
        with self._lock:
            self._awaited, self._reports = set(partitions), {}

    def add_report(self, partition: int, report: Report) -> None:
        """A site has answered."""
        with self._lock:
            if partition in self._awaited:
                self._awaited.discard(partition)
                self._reports[partition] = report

    def lose(self, partitions: Iterable[int], why: str) -> None:
        """Their site has ended: what it had not answered it never will, and what it kept is gone."""
        with self._lock:
            for partition in self._awaited & set(partitions):
                self._awaited.discard(partition)
                self._reports[partition] = {"error": f"the site of partition {partition} ended: {why}", "hint": ""}

    @property
    def complete(self) -> bool:
        """Whether all have answered."""
        with self._lock:
            return not self._awaited

    def reports(self) -> dict[int, Report]:
        """The answers so far, by partition."""
        with self._lock:
            return dict(sorted(self._reports.items()))
