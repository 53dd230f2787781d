"""The processes of the soak's callers, from the side that starts them, and what they report.

One rule: they lead sessions of their own, so Ctrl-C reaches the soak alone, and it ends them in order. If it is killed, they see
the end of their standard input.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import orjson

from bench._common import ROOT
from bench._histogram import Histogram
from bench._soak_tally import SLOTS, Sums

START_S_MAX: Final = 60.0
STOP_S_MAX: Final = 120.0  # the client repeats a call for at most a minute


@dataclass(frozen=True, slots=True)
class Crew:
    """Callers that share a process."""

    way: Literal["batch", "single"]
    callers: int
    calls: int | None  # of each caller; None: until they are stopped


@dataclass(slots=True)
class Interval:
    """What was answered in a stretch of the run."""

    acknowledged: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies: Histogram = field(default_factory=Histogram)  # of single calls

    def add(self, line: dict[str, Any]) -> None:
        self.acknowledged += line["acknowledged"]
        self.errors.update(line["errors"])
        self.latencies.add(Histogram(dict(map(tuple, line["latencies"]))))


class SoakCallers:
    """Every caller of a run."""

    def __init__(self, url: str, crews: Sequence[Crew]) -> None:
        self._lock = threading.Lock()
        self._interval = Interval()
        self.acknowledged: dict[int, Sums] = {}  # by slot; known when all have ended
        self.unknown: dict[int, list[int]] = {}  # numbers by slot
        self._processes: list[subprocess.Popen[bytes]] = []
        self._readers: list[threading.Thread] = []
        self._limited: list[subprocess.Popen[bytes]] = []  # they end by themselves
        self._started = threading.Semaphore(0)  # one for each process that has reported
        first_slot = 0
        for crew in crews:
            order = {"url": url, "way": crew.way, "callers": crew.callers, "first_slot": first_slot, "calls": crew.calls}
            first_slot += crew.callers * SLOTS
            process = subprocess.Popen(
                [sys.executable, "-m", "bench._soaker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT,
                start_new_session=True,
            )  # fmt: skip
            assert process.stdin is not None
            process.stdin.write(orjson.dumps(order) + b"\n")
            process.stdin.flush()
            self._processes.append(process)
            self._limited += [process] if crew.calls is not None else []
            self._readers.append(threading.Thread(target=self._read, args=(process,)))
            self._readers[-1].start()

    def _read(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        for at, text in enumerate(process.stdout):
            if at == 0:
                self._started.release()
            line = orjson.loads(text)
            with self._lock:
                self._interval.add(line)
                self.acknowledged.update({slot: Sums(*sums) for slot, *sums in line.get("acknowledged_by_slot", [])})
                self.unknown.update({slot: numbers for slot, *numbers in line.get("unknown_by_slot", [])})

    def wait_started(self) -> None:
        """Until every process makes calls. Raises: RuntimeError."""
        for _ in self._processes:
            if not self._started.acquire(timeout=START_S_MAX):
                raise RuntimeError(f"callers did not start within {START_S_MAX:g} s")

    def take_interval(self) -> Interval:
        """What was answered since it was last asked."""
        with self._lock:
            taken, self._interval = self._interval, Interval()
        return taken

    @property
    def done(self) -> bool:
        """Whether those with a number of calls have made them, or one has failed."""
        ended = [process.poll() for process in self._processes]
        if any(code not in (None, 0) for code in ended):
            return True
        return bool(self._limited) and all(process.returncode == 0 for process in self._limited)

    def stop(self) -> str:
        """Lets them finish the calls under way; what is wrong with them, whose tracebacks are on standard error, or nothing."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        try:
            codes = [process.wait(STOP_S_MAX) for process in self._processes]
        except subprocess.TimeoutExpired:
            return f"; callers did not end within {STOP_S_MAX:g} s"
        for reader in self._readers:
            reader.join()
        return f"; callers ended with exit codes {codes}" if any(codes) else ""

    def kill(self) -> None:
        """Whatever they do."""
        for process in self._processes:
            process.kill()
            process.wait()
        for reader in self._readers:
            reader.join()
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


@contextmanager
def soak_callers(url: str, crews: Sequence[Crew]) -> Iterator[SoakCallers]:
    """Callers at work; none outlives the block."""
    callers = SoakCallers(url, crews)
    try:
        yield callers
    finally:
        callers.kill()
