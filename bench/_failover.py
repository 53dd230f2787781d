"""The leader of a cluster ends under calls: how long nobody is answered, and what the callers see of it."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bench._callers import Answers, callers
from bench._cluster import Cluster
from procedures.samples import bank

CALLERS: Final = 4
SETTLED_S: Final = 0.5  # of calls that are answered, before the leader ends and after its successor took over
LATE_S: Final = 0.2  # before the signal, where the gap may begin: an answer that was on its way counts


@dataclass(slots=True)
class Ends:
    """What ends of the leader cost, one entry each."""

    gaps_s: list[float] = field(default_factory=list)  # longest time without any result
    others: list[dict[str, int]] = field(default_factory=list)  # answers that were no result, by what they were

    def total(self) -> dict[str, int]:
        """Answers that were no result, of all ends."""
        return dict(sum((Counter(kinds) for kinds in self.others), Counter[str]()))


def kill_leader(cluster: Cluster, leader: int) -> None:
    """SIGKILL: nothing is said to anybody."""
    cluster.signal(leader, signal.SIGKILL)
    cluster.wait_for_end(leader)


def measure_ends(cluster: Cluster, calls: list[bank.Call], end: Callable[[Cluster, int], None], times: int) -> Ends:
    """Ends the leader so many times, each time that of a whole cluster under calls; it is started again afterwards."""
    ends, moments = Ends(), list[tuple[float, float]]()
    for _ in range(times):
        with callers(list(cluster.ports.values()), calls, count=CALLERS) as seen:
            moment = _end_once(cluster, end)
        moments.append(moment)
        _note(ends, seen, *moment)
        cluster.wait_until_level()
    return ends


def _end_once(cluster: Cluster, end: Callable[[Cluster, int], None]) -> tuple[float, float]:
    """When the leader was told to end, and when its successor had taken calls for a while."""
    leader = cluster.wait_for_leader()
    time.sleep(SETTLED_S)
    began = time.monotonic()
    end(cluster, leader)
    cluster.wait_for_leader()
    time.sleep(SETTLED_S)
    ended = time.monotonic()
    cluster.start(leader)
    return began, ended


def _note(ends: Ends, seen: Answers, began: float, ended: float) -> None:
    gap, at = seen.longest_gap_s(began, ended)
    if at < began - LATE_S:
        raise RuntimeError(f"nobody was answered for {began - at:.1f} s before the leader was told to end")
    ends.gaps_s.append(gap)
    ends.others.append(seen.count_others(began, ended))
