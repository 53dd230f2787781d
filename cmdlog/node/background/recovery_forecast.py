"""How fast procedures run, measured, and how long their replay would take: the forecast of a node and of `recover --plan`.

One rule: replay runs the same procedures through the same executor, so its time is what the sites took live. Each procedure has a
smoothed time per call, from the batches that its sites answered; each partition has a count of the calls that its newest snapshot
does not hold. What snapshots take to be put in place is measured when it is done (`snapshot.restore_speed`). Times are kept
over restarts in `state/speeds.json`, a cache that may be missing or wrong without harm; there, too, a plan finds them.

Calls of mixed batches are charged in proportion to what they are believed to take.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from snapshot.restore_speed import read_measured, read_speeds, restore_speeds_of, write_speeds

FIRST_S: Final = 50e-6  # of a call of which nothing is known
CALL_S_MIN: Final = 1e-8  # a clock may be coarse; also what the file can say
CALL_S_MAX: Final = 3600.0  # no call may run longer
CALLS_WEIGHED: Final = 2000  # the time per call follows about as many of the last calls


def replay_seconds(calls: Mapping[str, int], call_s: Mapping[str, float]) -> float:
    """How long so many calls of each procedure take, by their measured times."""
    return sum(count * call_s.get(name, FIRST_S) for name, count in calls.items())


def restore_seconds(size_bytes: int, bytes_per_s: Mapping[str, float]) -> float:
    """How long snapshots of that size take to be checked and put in place."""
    return sum(size_bytes / speed for speed in bytes_per_s.values())


def read_call_times(folder: str) -> dict[str, float]:
    """Procedure -> seconds per call, as a node measured them; {} without a file that makes sense."""
    try:
        times = {str(name): float(us) / 1e6 for name, us in read_measured(folder)["call_us"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
    return times if all(0 < s < CALL_S_MAX for s in times.values()) else {}


class RecoverySpeeds:
    """Speeds measured on one node. Thread-safe; nothing here is on the path of a call."""

    def __init__(self, directory: str, names: Sequence[str], partitions: int) -> None:
        self._folder = os.path.join(directory, "state")
        self._bytes_per_s = read_speeds(self._folder)
        self._names = names  # by procedure number
        self._lock = threading.Lock()
        self._call_s = read_call_times(self._folder)  # also of procedures that only older code has
        self._behind: list[Counter[str]] = [Counter() for _ in range(partitions)]  # procedure -> calls since the newest snapshot
        self._saved = _read_behind(self._folder)
        self._take_measured: Callable[[], None] = lambda: None

    def measured_by(self, take_measured: Callable[[], None]) -> None:
        """`take_measured` adds the batches that were measured and not added yet."""
        self._take_measured = take_measured

    def serve_procedures(self, names: Sequence[str]) -> None:
        """Batches are of other code from now on; `names` of its procedures, by number."""
        self._names = names

    def add_batches(self, partitions: Sequence[int], procedures: Sequence[Sequence[int]], busy_s: Sequence[float]) -> None:
        """`add` of each batch; those of one procedure alone, which most are, count together."""
        alone: dict[tuple[int, int], tuple[int, float]] = {}
        for partition, numbers, seconds in zip(partitions, procedures, busy_s, strict=True):
            if not numbers:
                continue
            first, count = numbers[0], len(numbers)
            if count > 1 and numbers.count(first) != count:
                self.add(partition, numbers, seconds)
                continue
            before, spent = alone.get((partition, first), (0, 0.0))
            alone[partition, first] = before + count, spent + seconds
        for (partition, number), (count, spent) in alone.items():
            self.add(partition, (number,) * count, spent)

    def add(self, partition: int, procedures: Sequence[int], busy_s: float) -> None:
        """A site has executed a batch with these calls and was busy with it for so long."""
        counts = Counter({self._names[number]: count for number, count in Counter(procedures).items()})
        with self._lock:
            self._behind[partition].update(counts)
            factor = busy_s / replay_seconds(counts, self._call_s)
            for name, count in counts.items():
                measured = max(self._call_s.get(name, FIRST_S) * factor, CALL_S_MIN)
                if name in self._call_s:
                    weight = count / (count + CALLS_WEIGHED)
                    measured = self._call_s[name] + weight * (measured - self._call_s[name])
                self._call_s[name] = measured

    def found(self, partition: int, newest: str, replayed: Mapping[str, int]) -> None:
        """At the start: `replayed` calls were applied, from the `newest` snapshot or from a state that held others after it."""
        name, calls = self._saved.get(partition, ("", Counter[str]()))
        with self._lock:
            self._behind[partition].update(Counter(replayed) | (calls if name == newest else Counter[str]()))

    def mark(self, partition: int) -> Counter[str]:
        """The calls not yet in a snapshot when an image begins; `settle_snapshot` takes them away once it counts."""
        self._take_measured()  # what is added later counts as missing in the snapshot that holds it
        with self._lock:
            return self._behind[partition].copy()

    def settle_snapshot(self, partition: int, marked: Counter[str]) -> None:
        """The snapshot that began at `marked` holds all calls of before that moment."""
        with self._lock:
            self._behind[partition] -= marked

    def replay_s(self, partition: int) -> float:
        """How long the replay of what the partition's newest snapshot does not hold would take."""
        with self._lock:
            return replay_seconds(self._behind[partition], self._call_s)

    def restore_s(self, size_bytes: int) -> float:
        """How long a snapshot of that size would take to be checked and put in place, as the last recoveries measured it."""
        return restore_seconds(size_bytes, self._bytes_per_s)

    def calls_behind(self, partition: int) -> int:
        """Calls that the partition's newest snapshot does not hold."""
        with self._lock:
            return self._behind[partition].total()

    def per_call_us(self) -> dict[str, float]:
        """Procedure -> microseconds per call, of those that ran."""
        with self._lock:
            return {name: round(s * 1e6, 2) for name, s in sorted(self._call_s.items())}

    def save(self, newest: Mapping[int, str]) -> None:
        """What is known, and how many calls follow which newest snapshot. Best effort: without it the next start guesses."""
        with self._lock:
            behind = {str(p): [name, dict(self._behind[p])] for p, name in newest.items()}
        measured = restore_speeds_of(self._folder)
        write_speeds(self._folder, {"call_us": self.per_call_us(), "behind": behind, **measured})


def _read_behind(folder: str) -> dict[int, tuple[str, Counter[str]]]:
    """Partition -> newest snapshot, and procedure -> calls after it, as the last life saved them."""
    with contextlib.suppress(KeyError, TypeError, ValueError, AttributeError):
        stated = read_measured(folder)["behind"]
        return {
            int(p): (str(name), Counter({str(procedure): int(count) for procedure, count in calls.items()}))
            for p, (name, calls) in stated.items()
        }
    return {}
