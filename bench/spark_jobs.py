"""Jobs on Spark: CPU time of the whole process tree (Java and all Pythons) beside the plain replay loop, and memory.

Run: `python bench/spark_jobs.py [--quick] [--soak]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose modules are no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench import _spark_jobs as jobs
from bench._common import Bench, make_parser, work_directory
from replay.spark import session


def main() -> None:
    parser = make_parser("spark_jobs", "Jobs on Spark beside the plain replay loop.")
    parser.add_argument("--calls", type=int, default=400_000, help="in the log of which CPU times are compared")
    parser.add_argument("--soak", action="store_true", help="memory over 20 million calls instead of 2 million")
    parser.add_argument("--only", choices=["empty", "rebuild", "replicas", "memory"], help="one section")
    options = parser.parse_args()
    bench = Bench("spark_jobs", options.seed, options.quick)
    bench.head()
    with work_directory(options.dir) as folder:
        spark = session("bench", master=f"local[{min(2, os.cpu_count() or 1)},4]", scratch=str(folder / "spark"))
        spark.range(0, 2, 1, 2).mapInArrow(_pass, "id long").count()
        calls = 40_000 if options.quick else options.calls
        long_calls = 20_000_000 if options.soak else 100_000 if options.quick else 2_000_000
        work = jobs.Work(bench, spark, folder, options.quick, options.seed, calls, long_calls)
        if options.only:
            getattr(jobs, f"section_{options.only}")(work)
        else:
            jobs.run_sections(work)
        spark.stop()
    bench.write()


def _pass(batches: Iterator[object]) -> Iterator[object]:
    yield from batches


if __name__ == "__main__":
    main()
