"""How fast procedures run, measured, and how long their replay would take: the node's forecast of its recovery.

One rule: replay runs the same procedures through the same executor, so its time is what the sites took live. Each procedure has a
smoothed time per call, from the batches that its sites answered; each partition has a count of the calls that its newest snapshot
does not hold. What snapshots take to be put in place is measured when it is done (`snapshot.restorespeed`). Times are kept
over restarts in `state/speeds.json`, a cache that may be missing or wrong without harm.

Calls of mixed batches are charged in proportion to what they are believed to take.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import orjson

from snapshot.restorespeed import NAME, read_speeds, restore_speeds_of, write_speeds

FIRST_S: Final = 50e-6  # of a call of which nothing is known
CALLS_WEIGHED: Final = 2000  # the time per call follows about as many of the last calls


class Speeds:
    """Of one node. Thread-safe; nothing here is on the path of a call."""

    def __init__(self, directory: str, names: Sequence[str], partitions: int) -> None:
        self._folder = os.path.join(directory, "state")
        self._bytes_per_s = read_speeds(self._folder)
        self._names = names  # by procedure number
        self._lock = threading.Lock()
        self._call_s = [0.0] * len(names)  # 0: nothing is known
        self._behind: list[Counter[int]] = [Counter() for _ in range(partitions)]  # procedure -> calls since the newest snapshot
        self._behind_unknown = [0] * partitions  # calls of which the procedure is not known: from before this start
        self._saved: dict[int, tuple[str, int]] = {}  # partition -> newest snapshot and calls behind it, as the last life saved
        self._load()

    def add(self, partition: int, procedures: Sequence[int], busy_s: float) -> None:
        """A site has executed a batch with these calls and was busy with it for so long."""
        counts = Counter(procedures)
        with self._lock:
            self._behind[partition].update(counts)
            believed = sum(count * (self._call_s[number] or FIRST_S) for number, count in counts.items())
            factor = busy_s / believed
            for number, count in counts.items():
                measured = (self._call_s[number] or FIRST_S) * factor
                if self._call_s[number]:
                    weight = count / (count + CALLS_WEIGHED)
                    measured = self._call_s[number] + weight * (measured - self._call_s[number])
                self._call_s[number] = measured

    def found(self, partition: int, newest: str, replayed: int) -> None:
        """At the start: `replayed` calls were applied, from the `newest` snapshot or from a state that held others behind it."""
        name, calls = self._saved.get(partition, ("", 0))
        with self._lock:
            self._behind_unknown[partition] = max(replayed, calls if name == newest else 0)

    def mark(self, partition: int) -> tuple[Counter[int], int]:
        """What is behind now, when an image begins; `settle` takes it away once the snapshot counts."""
        with self._lock:
            return self._behind[partition].copy(), self._behind_unknown[partition]

    def settle(self, partition: int, marked: tuple[Counter[int], int]) -> None:
        """The snapshot that began at `marked` holds all that was behind then."""
        with self._lock:
            self._behind[partition].subtract(marked[0])
            self._behind_unknown[partition] = max(0, self._behind_unknown[partition] - marked[1])

    def replay_s(self, partition: int) -> float:
        """How long the replay of what the partition's newest snapshot does not hold would take."""
        with self._lock:
            known = sum(count * (self._call_s[number] or FIRST_S) for number, count in self._behind[partition].items())
            return max(0.0, known) + self._behind_unknown[partition] * self._mean_s()

    def restore_s(self, size_bytes: int) -> float:
        """How long a snapshot of that size would take to be checked and put in place, as the last recoveries measured it."""
        return sum(size_bytes / speed for speed in self._bytes_per_s.values())

    def calls_behind(self, partition: int) -> int:
        """Calls that the partition's newest snapshot does not hold."""
        with self._lock:
            return max(0, self._behind[partition].total()) + self._behind_unknown[partition]

    def per_call_us(self) -> dict[str, float]:
        """Procedure -> microseconds per call, of those that ran."""
        return {name: round(s * 1e6, 2) for name, s in zip(self._names, list(self._call_s), strict=True) if s}

    def save(self, newest: Mapping[int, str]) -> None:
        """What is known, and how many calls are behind which newest snapshot. Best effort: without it the next start guesses."""
        behind = {str(p): [name, self.calls_behind(p)] for p, name in newest.items()}
        measured = restore_speeds_of(self._folder)
        write_speeds(self._folder, {"call_us": self.per_call_us(), "behind": behind, **measured})

    def _mean_s(self) -> float:
        known = [s for s in self._call_s if s]
        return sum(known) / len(known) if known else FIRST_S

    def _load(self) -> None:
        with contextlib.suppress(OSError, orjson.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError):
            value: Mapping[str, Any] = orjson.loads(Path(self._folder, NAME).read_bytes())
            times = {str(name): float(us) / 1e6 for name, us in value["call_us"].items()}
            if all(0 < s < 3600 for s in times.values()):
                self._call_s = [times.get(name, 0.0) for name in self._names]
                self._saved = {int(p): (str(name), int(calls)) for p, (name, calls) in value["behind"].items()}
