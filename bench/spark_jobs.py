"""Jobs on Spark: CPU time of the whole process tree (Java and all Pythons) beside the plain replay loop, and memory.

Run: `python bench/spark_jobs.py [--quick]`. What the ratios mean: bench/README.md.

Both sides plan, replay and write the same Parquet files. The session runs already when it is measured, and has run one job.
"""

from __future__ import annotations

import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose modules are no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench._common import Bar, Bench, cpu_seconds, make_parser, rss_bytes, work_directory
from bench._load import Target as HttpTarget
from bench._load import run_load
from bench._nodes import transfers
from bench._server import answered, bank_server, batch_request
from cmdlog.wal.files import RealFiles
from procedures.samples import bank
from replay.plan import make_plan
from replay.recover import Target, execute
from replay.spark import rebuild, session
from replay.trust import state_path
from snapshot.digest import open_image, table_digests
from snapshot.export import Source, write_tables

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PARTITIONS = 4
BATCH_LINES = 4000
LOOK_S = 0.2


def main() -> None:
    parser = make_parser("spark_jobs", "Jobs on Spark beside the plain replay loop.")
    parser.add_argument("--calls", type=int, default=1_000_000, help="in the log")
    options = parser.parse_args()
    bench = Bench("spark_jobs", options.seed, options.quick)
    bench.head()
    count = 48_000 if options.quick else options.calls
    with work_directory(options.dir) as folder:
        node = write_log(folder, count, options.seed)
        spark = session("bench", master=f"local[{min(2, os.cpu_count() or 1)},4]", scratch=str(folder / "spark"))
        spark.range(0, 2, 1, 2).mapInArrow(_pass, "id long").count()
        bench.section(f"Rebuild of {count:,} transfers on {PARTITIONS} partitions, CPU seconds of all processes")
        plain, jobs, peak = [], [], 0
        for turn in range(2):
            plain.append(measured(run_plain, node, folder / f"plain{turn}"))
            with watched() as memory:
                jobs.append(measured(run_job, spark, node, folder / f"job{turn}"))
            peak = max(peak, *memory)
        bench.value("plain loop, least", min(plain), "CPU s")
        bench.value("rebuild on Spark, least", min(jobs), "CPU s")
        bar = None if options.quick else Bar(1.6, 1.45, at_most=True)  # of a short log Spark's own work is all that is seen
        bench.ratio("rebuild on Spark / plain loop", min(jobs) / min(plain), bar)
        bench.value("largest Python worker", peak / (1 << 20), "MiB")
        spark.stop()
    bench.write()


def write_log(folder: Path, count: int, seed: int) -> Path:
    """A stopped node that has executed so many transfers."""
    with bank_server(folder, partitions=PARTITIONS) as (_, port):
        bodies = [batch_request(transfers(seed + number, BATCH_LINES)) for number in range(4)]
        answered(run_load(HttpTarget(port, bodies), connections=2, count=count // BATCH_LINES))
    return folder / "data"


def run_plain(node: Path, out: Path) -> None:
    """What a rebuild does, in this process and on one core."""
    (out / "state").mkdir(parents=True)
    plan = make_plan(RealFiles(), str(node), use_state="never").plan
    declared = {info.table.name: info for info in bank.db.tables.values()}
    execute(plan, Target(RealFiles(), str(out)), workers=0)
    for part in plan.partitions:
        (out / str(part.partition)).mkdir()
        connection = open_image(state_path(str(out), part.partition))
        write_tables(Source(part.partition, plan.cluster_id, {}, connection), str(out / str(part.partition)), declared=declared)
        table_digests(connection)
        connection.close()
    shutil.rmtree(out)


def run_job(spark: SparkSession, node: Path, out: Path) -> None:
    """The same on Spark."""
    rebuild(spark, str(node), to=str(out))
    shutil.rmtree(out)


def measured(run: Callable[..., None], *arguments: object) -> float:
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


@contextmanager
def watched() -> Iterator[list[int]]:
    """The memory of the largest Python below the JVM, looked at all the time; one number at the end."""
    found, stop = [0], threading.Event()

    def look() -> None:
        while not stop.wait(LOOK_S):
            for pid in tree(os.getpid())[1:]:
                with suppress(OSError):
                    if "java" not in Path(f"/proc/{pid}/comm").read_text():
                        found[0] = max(found[0], rss_bytes(pid))

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()


def _pass(batches: Iterator[object]) -> Iterator[object]:
    yield from batches


if __name__ == "__main__":
    main()
