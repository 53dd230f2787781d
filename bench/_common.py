"""What every benchmark shares: its options, the machine, interleaved measurement, figures with their bars, JSON beside the text.

One rule: figures that are compared are measured in one run, in turns. The machine may be busy with something else; then all
variants suffer alike, and the median of many short rounds is quoted, never the total.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import apsw
import orjson

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "bench" / "out"
Name = TypeVar("Name")


def make_parser(name: str, about: str) -> argparse.ArgumentParser:
    """Options of every benchmark. From here on SIGTERM ends it as Ctrl-C does: with everything that it started."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    parser = argparse.ArgumentParser(prog=f"bench/{name}.py", description=about)
    parser.add_argument("--quick", action="store_true", help="few rounds, under 20 s: does it run, roughly how fast")
    parser.add_argument("--seed", type=int, default=1, help="of the load")
    parser.add_argument("--dir", type=Path, default=OUT, help="where to work: a disk like the one of the data directory")
    return parser


def machine() -> dict[str, Any]:
    """Where and on what the figures were measured."""
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def commit() -> str:
    """The commit of the working tree, with `+` when files differ from it."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        return "unknown"
    head = _git("rev-parse", "--short=12", "HEAD")
    return head + ("+" if _git("status", "--porcelain", "--untracked-files=no") else "")


def _machine_ticks() -> tuple[int, int, int]:
    """Of all cores since boot: busy, stolen by the hypervisor, all."""
    user, nice, system, idle, iowait, irq, softirq, steal = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:9])
    busy = user + nice + system + irq + softirq
    return busy, steal, busy + steal + idle + iowait


@dataclass(frozen=True, slots=True)
class Bar:
    """What a ratio must reach, and what it should."""

    must: float
    aim: float | None = None
    at_most: bool = False  # smaller is better

    def judge(self, value: float) -> str:
        for word, limit in (("aim", self.aim), ("bar", self.must)):
            if limit is not None and (value <= limit if self.at_most else value >= limit):
                return word
        return "MISSED"

    def __str__(self) -> str:
        sign = "<=" if self.at_most else ">="
        return f"{sign} {self.must:g}" + ("" if self.aim is None else f", aim {sign} {self.aim:g}")


@dataclass(slots=True)
class Bench:
    """One benchmark's figures, printed as they come and written as JSON at the end."""

    name: str
    seed: int
    quick: bool
    out: Path = OUT
    figures: list[dict[str, Any]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    ticks: tuple[int, int, int] = field(default_factory=_machine_ticks)

    def head(self) -> None:
        """Prints what the figures belong to."""
        about = machine()
        print(f"bench/{self.name}.py  commit {commit()}  seed {self.seed}" + ("  quick" if self.quick else ""))
        print("  " + ", ".join(f"{name} {value}" for name, value in about.items()))

    def section(self, title: str) -> None:
        """Begins a table; the figures up to the next one belong to it."""
        self.figures.append({"section": title})
        print(f"\n{title}")

    def times(self, name: str, seconds: Sequence[float]) -> float:
        """A latency: median and p99 in microseconds. Returns the median in seconds."""
        median, p99 = statistics.median(seconds), percentile(seconds, 0.99)
        self.figures.append({"name": name, "median_us": median * 1e6, "p99_us": p99 * 1e6, "samples": len(seconds)})
        print(f"  {name:<58} {median * 1e6:>10,.1f} us   p99 {p99 * 1e6:>10,.1f} us   n {len(seconds):,}")
        return median

    def rates(self, name: str, per_second: Sequence[float], unit: str = "calls/s") -> float:
        """A throughput of several rounds: median, slowest of a hundred. Returns the median."""
        median, low = statistics.median(per_second), percentile(per_second, 0.01)
        self.figures.append({"name": name, "median": median, "p1": low, "unit": unit, "rounds": len(per_second)})
        print(f"  {name:<58} {median:>12,.0f} {unit}   p1 {low:>12,.0f}   rounds {len(per_second)}")
        return median

    def value(self, name: str, value: float, unit: str) -> float:
        self.figures.append({"name": name, "value": value, "unit": unit})
        print(f"  {name:<58} {value:>12,.3f} {unit}")
        return value

    def series(
        self,
        name: str,
        at_s: Sequence[float],
        lines: Mapping[str, Sequence[float]],
        unit: str,
        spans: Mapping[str, Sequence[tuple[float, float]]] | None = None,
    ) -> None:
        """Values over the time of a run; each line has one for every moment. `spans` are stretches of it, by what happened."""
        self.figures.append({"series": name, "at_s": list(at_s), "lines": dict(lines), "unit": unit, "spans": dict(spans or {})})

    def ratio(self, name: str, value: float, bar: Bar | None = None) -> float:
        """A quotient, with the bar that it is held to."""
        entry: dict[str, Any] = {"name": name, "ratio": value}
        told = ""
        if bar is not None:
            entry |= {"must": bar.must, "aim": bar.aim, "at_most": bar.at_most, "reached": bar.judge(value)}
            told = f"   {bar.judge(value):<6} ({bar})"
        self.figures.append(entry)
        print(f"  {'= ' + name:<58} {value:>12.3f}{told}")
        return value

    def note(self, text: str) -> None:
        self.figures.append({"note": text})
        print(f"  {text}")

    def write(self) -> Path:
        """The figures as a JSON file; `bench/report.py` makes a page of those in bench/out."""
        others = self._others()
        self.out.mkdir(parents=True, exist_ok=True)
        path = self.out / f"{self.name}.json"
        about = {
            "benchmark": self.name,
            "machine": machine(),
            "commit": commit(),
            "seed": self.seed,
            "quick": self.quick,
            "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "seconds": round(time.monotonic() - self.began, 1),
            **others,
            "figures": self.figures,
        }
        path.write_bytes(orjson.dumps(about, option=orjson.OPT_INDENT_2))
        told = ", ".join(f"{name.replace('_', ' ')} {share:.0%}" for name, share in others.items())
        print(f"\n{path}  {about['seconds']} s   {told}")
        return path

    def _others(self) -> dict[str, float]:
        """Shares of all cores that this benchmark did not get: other processes, and what the hypervisor gave to other machines.

        Call it when every process of the benchmark has ended; those of others are what remains.
        """
        busy, stolen, total = (now - then for now, then in zip(_machine_ticks(), self.ticks, strict=True))
        used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        ours = sum(usage.ru_utime + usage.ru_stime for usage in used) * os.sysconf("SC_CLK_TCK")
        total = max(total, 1)  # a run shorter than a tick
        return {"used_by_others": round(max(0.0, busy - ours) / total, 3), "stolen": round(stolen / total, 3)}


@contextmanager
def work_directory(parent: Path) -> Iterator[Path]:
    """An empty folder on the disk under test, removed afterwards."""
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="work-", dir=parent) as folder:
        yield Path(folder)


def in_turns(variants: Mapping[Name, Callable[[int], float]], rounds: int) -> dict[Name, list[float]]:
    """Runs each variant once per round, starting with another one each time; what they return, by variant."""
    found: dict[Name, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for number in range(rounds):
        turn = number % len(names)
        for name in names[turn:] + names[:turn]:
            found[name].append(variants[name](number))
    return found


def paired(above: Sequence[float], below: Sequence[float]) -> float:
    """Median of the rounds' own quotients: what slowed a whole round down cancels out."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def rss_bytes(pid: int) -> int:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and of its children that have ended, in steps of 10 ms."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(int(ticks) for ticks in fields[11:15]) / os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(pid: int) -> float:
    """CPU time of a process, of all below it, and of those that have ended."""
    children = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return cpu_seconds(pid) + sum(tree_cpu_seconds(int(child)) for child in children)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
