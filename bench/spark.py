"""Spark: the log as a table beside Parquet files of the very same rows; jobs beside the plain replay loop; memory of both.

Run: `python bench/spark.py [--quick] [--soak] [--only PART]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose modules are no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench import _spark_jobs, _spark_scan
from bench._common import Bench, make_parser, work_directory
from replay.spark import session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JOBS = {
    "empty": _spark_jobs.section_empty,
    "rebuild": _spark_jobs.section_rebuild,
    "replicas": _spark_jobs.section_replicas,
    "memory": _spark_jobs.section_memory,
}


def main() -> None:
    parser = make_parser("spark", "The log as a Spark table, and jobs on Spark.")
    parser.add_argument("--calls", type=int, default=1_000_000, help="in the log that is scanned")
    parser.add_argument("--long-calls", type=int, default=5_000_000, help="in the log that memory of a scan is looked at with")
    parser.add_argument("--turns", type=int, default=5, help="readings of each kind that count")
    parser.add_argument("--job-calls", type=int, default=400_000, help="in the log that jobs replay")
    parser.add_argument("--soak", action="store_true", help="memory of a rebuild over 20 million calls instead of 2 million")
    parser.add_argument("--only", choices=["scan", *JOBS], help="one part")
    options = parser.parse_args()
    bench = Bench("spark", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder:
        spark = session("bench", master=f"local[{min(2, os.cpu_count() or 1)},4]", scratch=str(folder / "spark"))
        spark.range(0, 2, 1, 2).mapInArrow(_pass, "id long").count()
        if options.only in (None, "scan"):
            scan(bench, spark, folder, options)
        for name, section in JOBS.items():
            if options.only in (None, name):
                section(work_of(bench, spark, folder, options))
        spark.stop()
    bench.write()


def scan(bench: Bench, spark: SparkSession, folder: Path, options: argparse.Namespace) -> None:
    calls, long_calls, turns = (20_000, 60_000, 2) if options.quick else (options.calls, options.long_calls, options.turns)
    _spark_scan.section(bench, spark, folder, calls=calls, long_calls=long_calls, turns=turns)


def work_of(bench: Bench, spark: SparkSession, folder: Path, options: argparse.Namespace) -> _spark_jobs.Work:
    calls = 20_000 if options.quick else options.job_calls
    long_calls = 20_000_000 if options.soak else 100_000 if options.quick else 2_000_000
    return _spark_jobs.Work(bench, spark, folder, options.quick, options.seed, calls, long_calls)


def _pass(batches: Iterator[object]) -> Iterator[object]:
    yield from batches


if __name__ == "__main__":
    main()
