"""The log as a Spark table: what a scan of it costs beside Parquet files of the very same rows, and memory.

Run: `python bench/spark.py [--quick] [--calls N]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose modules are no package
os.environ["PYTHONPATH"] = sys.path[0]

from bench import _spark_scan
from bench._common import Bench, make_parser, work_directory
from replay.spark import session


def main() -> None:
    parser = make_parser("spark", "The log as a Spark table beside Parquet files of the same rows.")
    parser.add_argument("--calls", type=int, default=1_000_000, help="in the log that is compared")
    parser.add_argument("--long-calls", type=int, default=5_000_000, help="in the log that memory is looked at with")
    parser.add_argument("--turns", type=int, default=5, help="readings of each kind that count")
    options = parser.parse_args()
    bench = Bench("spark", options.seed, options.quick)
    bench.head()
    calls, long_calls, turns = (20_000, 60_000, 2) if options.quick else (options.calls, options.long_calls, options.turns)
    with work_directory(options.dir) as folder:
        spark = session("bench", master=f"local[{min(2, os.cpu_count() or 1)},4]", scratch=str(folder / "spark"))
        _spark_scan.section(bench, spark, folder, calls=calls, long_calls=long_calls, turns=turns)
        spark.stop()
    bench.write()


if __name__ == "__main__":
    main()
