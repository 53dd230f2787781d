"""Jobs on Spark beside the plain replay loop: CPU time of the whole process tree, memory, what planning and an empty job cost.

One rule: both sides of a ratio plan, replay the same calls with digests compared, and write the same Parquet files, in turns; the
least CPU time of several turns is quoted, because whatever else runs on the machine only adds. The session runs already when it
is measured, and has run a job.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from bench._common import Bar, Bench, cpu_seconds, rss_bytes
from bench._transfer_log import TARGET, moment_behind, put_snapshots, write_nodes
from cmdlog.wal.files import RealFiles
from procedures.samples import bank
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import Target, execute
from replay.spark import backfill, rebuild
from replay.spark.jobs.past_replay import Moment, find_history
from replay.state.trust import state_path
from snapshot.export import TableSource, write_tables
from snapshot.table_digest import open_image, table_digests

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
LOOK_S = 0.1
MIB = 1 << 20
WORKER_MIB_MAX = 200.0
EMPTY_S_MAX = 2.0
MOMENTS = 5


@dataclass(frozen=True, slots=True)
class Work:
    """What the sections share."""

    bench: Bench
    spark: SparkSession
    folder: Path
    quick: bool
    seed: int
    calls: int  # in the log of which CPU times are compared
    long_calls: int  # in the longer one of those of which the memory is

    @property
    def turns(self) -> int:
        return 1 if self.quick else 2

    def bar(self, must: float, aim: float | None = None) -> Bar | None:
        """Of a short log Spark's own work is all that is seen."""
        return None if self.quick else Bar(must, aim, at_most=True)


def section_empty(work: Work) -> None:
    """What a job costs that has nearly nothing to do."""
    bench = work.bench
    bench.section("A job with nearly nothing to do, in a warm session")
    node = _node(work, "empty", 1)
    _run_job(work, [node])
    walls, cpus = [], []
    for _ in range(3):
        began = time.perf_counter()
        cpus.append(_measured(_run_job, work, [node]))
        walls.append(time.perf_counter() - began)
    bench.value("rebuild, CPU time, least", min(cpus), "CPU s")
    bench.value("rebuild, by the clock, least", min(walls), "s")
    bench.ratio(f"rebuild by the clock / {EMPTY_S_MAX:g} s", min(walls) / EMPTY_S_MAX, Bar(1.0, at_most=True))
    shutil.rmtree(node)


def section_rebuild(work: Work) -> None:
    """Rebuild and back-fill beside the plain loop."""
    bench, count = work.bench, work.calls
    bench.section(f"Jobs over {count:,} transfers on four partitions, CPU seconds of all processes")
    node, half = _node(work, "one", count), work.folder / "half"
    shutil.copytree(node, half)
    put_snapshots(half, count // 2)
    moments = [moment_behind(count * (number + 1) // MOMENTS) for number in range(MOMENTS)]
    lanes: dict[str, Callable[[], None]] = {
        "plain loop": lambda: _run_plain(work, node),
        "rebuild": lambda: _run_job(work, [node]),
        f"rebuild at {MOMENTS} moments": lambda: _run_job(work, [node], moments),
        "rebuild from snapshots at half of it": lambda: _run_job(work, [half]),
        "back-fill with the same code": lambda: _run_backfill(work, node),
    }
    least = _least(work, lanes)
    for name, seconds in least.items():
        bench.value(f"{name}, least", seconds, "CPU s")
    bench.ratio("rebuild / plain loop", least["rebuild"] / least["plain loop"], work.bar(1.6, 1.45))
    for name in list(lanes)[2:]:
        bench.ratio(f"{name} / rebuild", least[name] / least["rebuild"])
    shutil.rmtree(half)
    shutil.rmtree(node)


def section_replicas(work: Work) -> None:
    """One directory of a cluster of one, beside three of a cluster of three with the same entries."""
    bench = work.bench
    bench.section(f"Three replicas with the same {work.calls:,} transfers beside one log, CPU seconds of all processes")
    one, three = _node(work, "one", work.calls), [work.folder / f"of-three-{number}" for number in range(3)]
    _alone(write_nodes, three, work.seed, work.calls)
    least = _least(work, {"one": lambda: _run_job(work, [one]), "three": lambda: _run_job(work, three)})
    for name, seconds in least.items():
        bench.value(f"rebuild of {name}, least", seconds, "CPU s")
    bench.ratio("rebuild of three replicas / of one log", least["three"] / least["one"], work.bar(1.25))
    for node in (one, *three):
        shutil.rmtree(node)


def section_memory(work: Work) -> None:
    """Peak memory of a short log and of a long one whose state is no larger; and what the plan takes on the driver."""
    bench, peaks = work.bench, []
    for count in (work.long_calls // 20, work.long_calls):
        bench.section(f"Memory of a rebuild of {count:,} transfers; the state does not grow")
        node = _node(work, "memory", count)
        seconds, grown = _alone(_plan, [str(node)])
        bench.value("plan, in a process of its own", seconds, "CPU s")
        bench.value("plan, memory added at most", grown / MIB, "MiB")
        with watched() as peak:
            cpu_s = _measured(_run_job, work, [node])
        peaks.append(peak)
        bench.value("rebuild", cpu_s, "CPU s")
        bench.value("largest Python worker", peak.worker / MIB, "MiB")
        bench.value("Java", peak.java / MIB, "MiB")
        bench.value("driver's Python, memory added at most", peak.driver_grown / MIB, "MiB")
        shutil.rmtree(node)
    short, long = peaks
    bench.ratio(f"largest worker / {WORKER_MIB_MAX:g} MiB", long.worker / MIB / WORKER_MIB_MAX, Bar(1.0, at_most=True))
    bench.ratio("largest worker, long / short", long.worker / short.worker, Bar(1.15, 1.05, at_most=True))
    bench.ratio("Java, long / short", long.java / short.java, Bar(1.25, 1.1, at_most=True))


# -- what is measured ----------------------------------------------------------------------------------------------------


def _node(work: Work, name: str, calls: int) -> Path:
    _alone(write_nodes, [work.folder / name], work.seed, calls)
    return work.folder / name


def _alone(run: Callable[..., T], *arguments: object) -> T:
    """In a process of its own, so that the driver's memory is that of the job alone."""
    with ProcessPoolExecutor(max_workers=1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(run, *arguments).result()


def _plan(nodes: Sequence[str]) -> tuple[float, int]:
    """CPU seconds that the driver's plan takes, and how much it adds to the memory of the process."""
    with watched() as peak:
        began = time.process_time()
        find_history(RealFiles(), nodes, None, accept_data_loss=False)
        return time.process_time() - began, max(0, _peak_bytes(os.getpid()) - peak.driver_before)


def _run_plain(work: Work, node: Path) -> None:
    """What a rebuild does, in this process and on one core."""
    out = work.folder / "plain"
    (out / "state").mkdir(parents=True)
    planned = make_plan(RealFiles(), str(node), PAST)
    plan = planned.plan
    declared = {info.table.name: info for info in bank.db.tables.values()}
    execute(planned, Target(RealFiles(), str(out)), workers=0)
    for part in plan.partitions:
        (out / str(part.partition)).mkdir()
        connection = open_image(state_path(str(out), part.partition))
        write_tables(
            TableSource(part.partition, plan.cluster_id, {}, connection), str(out / str(part.partition)), declared=declared
        )
        table_digests(connection)
        connection.close()
    shutil.rmtree(out)


def _run_job(work: Work, nodes: Sequence[Path], until: Sequence[Moment] | None = None) -> None:
    """The same on Spark."""
    out = work.folder / "out"
    rebuild(work.spark, [str(node) for node in nodes], to=str(out), until=until)
    shutil.rmtree(out)


def _run_backfill(work: Work, node: Path) -> None:
    """All calls twice: by the code of the log, and by the same code as another."""
    out = work.folder / "out"
    done = backfill(work.spark, str(node), bank.db, to=str(out), target=TARGET)
    if any(sum(of.values()) for of in done.changes.values()):
        raise RuntimeError(f"the same code came to other rows: {done.changes}")
    shutil.rmtree(out)


# -- how it is measured --------------------------------------------------------------------------------------------------


def _least(work: Work, lanes: dict[str, Callable[[], None]]) -> dict[str, float]:
    """CPU seconds of each, the least of some turns; each turn begins with another one."""
    found: dict[str, list[float]] = {name: [] for name in lanes}
    names = list(lanes)
    for number in range(work.turns):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            found[name].append(_measured(lanes[name]))
    return {name: min(of) for name, of in found.items()}


def _measured(run: Callable[..., None], *arguments: object) -> float:
    """CPU seconds of this process and all below it."""
    before = tree_cpu_s()
    run(*arguments)
    return tree_cpu_s() - before


def tree_cpu_s() -> float:
    """Of the processes that run, with those of theirs that have ended."""
    total = 0.0
    for pid in tree(os.getpid()):
        with suppress(OSError):
            total += cpu_seconds(pid)
    return total


def tree(pid: int) -> list[int]:
    """The process and all below it."""
    try:
        text = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return [pid]
    return [pid, *(below for child in text.split() for below in tree(int(child)))]


@dataclass(slots=True)
class Peak:
    """Bytes of resident memory, at most."""

    worker: int = 0  # of the largest Python below the JVM
    java: int = 0
    driver: int = 0
    driver_before: int = 0

    @property
    def driver_grown(self) -> int:
        return max(0, self.driver - self.driver_before)

    def look(self) -> None:
        for pid in tree(os.getpid()):
            with suppress(OSError):
                self._note(pid, _peak_bytes(pid))

    def _note(self, pid: int, size: int) -> None:
        if pid == os.getpid():
            self.driver = max(self.driver, size)
        elif Path(f"/proc/{pid}/comm").read_text().strip() == "java":
            self.java = max(self.java, size)
        else:
            self.worker = max(self.worker, size)


@contextmanager
def watched() -> Iterator[Peak]:
    """The peaks, looked at all the time, so that a worker counts that has ended meanwhile."""
    peak, stop = Peak(driver_before=rss_bytes(os.getpid())), threading.Event()
    for pid in tree(os.getpid()):
        with suppress(OSError):
            Path(f"/proc/{pid}/clear_refs").write_text("5")  # the kernel's peak begins anew: see proc(5)

    def watch() -> None:
        while not stop.wait(LOOK_S):
            peak.look()

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield peak
        peak.look()
    finally:
        stop.set()
        thread.join()


def _peak_bytes(pid: int) -> int:
    """Since the process began, or since its peak was set back."""
    text = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) << 10 for line in text.splitlines() if line.startswith("VmHWM:")), 0)
