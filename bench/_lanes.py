"""A server under load, round by round: what its clients saw, and the CPU time of its processes."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

from bench._common import cpu_seconds
from bench._load import Sample, Target


@dataclass(slots=True)
class Cell:
    """What was seen of one server under one load, round by round."""

    samples: list[Sample] = field(default_factory=list)
    cpu_s: dict[str, float] = field(default_factory=dict)  # by process, over all rounds

    @property
    def rates(self) -> list[float]:
        return [sample.per_second for sample in self.samples]

    def median(self, of: Callable[[Sample], float]) -> float:
        return statistics.median(of(sample) for sample in self.samples)

    def mean_ms(self) -> float:
        """Of all requests of all rounds."""
        total = sum(sample.count * sample.mean_s for sample in self.samples)
        return total / sum(sample.count for sample in self.samples) * 1e3

    def cpu_us(self) -> dict[str, float]:
        """Microseconds of CPU per request: each of the server's processes, and the client."""
        count = sum(sample.count for sample in self.samples)
        used = self.cpu_s | {"client": sum(sample.client_cpu_s for sample in self.samples)}
        return {name: seconds / count * 1e6 for name, seconds in used.items()}


@dataclass(slots=True)
class Lane:
    """A server, the requests that it gets, and its processes."""

    target: Target
    pids: dict[str, int]
    cells: dict[int, Cell] = field(default_factory=dict)  # by clients

    def run(self, cell: Cell, work: Callable[[Target], Sample]) -> float:
        """One round; requests per second."""
        before = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        sample = work(self.target)
        for name, pid in self.pids.items():
            cell.cpu_s[name] = cell.cpu_s.get(name, 0.0) + cpu_seconds(pid) - before[name]
        cell.samples.append(sample)
        return sample.per_second
