"""What the sites answer when they are asked to prepare a change of their tables, gathered until all have answered.

One rule: every partition answers once: with its change, with the reason why there is none, or by the end of its site.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Any

Report = Mapping[str, Any]  # "change" (None: nothing to change); or "error" and "hint", and "lost" where the site has ended


class PreparedChanges:
    """Thread-safe. Of the newest attempt; what was asked for by an earlier one is no answer."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = 0  # what the attempt's reports name
        self._awaited: set[int] = set()
        self._reports: dict[int, Report] = {}

    def await_partitions(self, partitions: Iterable[int], at: int) -> None:
        """These are asked from now on, in the attempt of this transaction id."""
        with self._lock:
            self._at, self._awaited, self._reports = at, set(partitions), {}

    def add_report(self, partition: int, report: Report) -> None:
        """A site has answered."""
        with self._lock:
            if partition in self._awaited and report["at"] == self._at:
                self._awaited.discard(partition)
                self._reports[partition] = report

    def lose(self, partitions: Iterable[int], why: str) -> None:
        """Their site has ended: what it had not answered it never will, and what it kept is gone."""
        with self._lock:
            for partition in self._awaited.intersection(partitions):
                self._awaited.discard(partition)
                self._reports[partition] = {"error": f"the site of partition {partition} ended: {why}", "hint": "", "lost": True}

    def reports(self, at: int) -> dict[int, Report] | None:
        """The answers to this attempt, by partition; None until all have answered, or when another one has begun."""
        with self._lock:
            return None if self._awaited or self._at != at else dict(sorted(self._reports.items()))
