"""One page of every figure in bench/out beside its bar, and the figures that say most as a small picture.

Run: `python bench/report.py [--summary bench/figures.svg]`, after the benchmarks whose figures it shows. It measures nothing.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder, whose replay.py is no package

from bench._common import OUT
from bench._figures import MISSED, read_benchmarks, unmeasured
from bench._page import page
from bench._summary import summary


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/report.py", description="A page of all figures.")
    parser.add_argument("--figures", type=Path, default=OUT, help="where the benchmarks wrote them")
    parser.add_argument("--page", type=Path, default=OUT / "report.html", help="the page to write")
    parser.add_argument("--summary", type=Path, default=OUT / "figures.svg", help="the small picture to write")
    options = parser.parse_args()
    benchmarks = read_benchmarks(options.figures)
    if not benchmarks:
        raise SystemExit(f"no figures in {options.figures}: run a benchmark first, for instance bench/peers.py --quick")
    missing = unmeasured(Path(__file__).parent, benchmarks)
    options.page.write_text(page(benchmarks, missing))
    options.summary.write_text(summary(benchmarks))
    reached = [figure["reached"] for benchmark in benchmarks for _, figure in benchmark.ratios()]
    print(f"{options.page}: {len(benchmarks)} benchmarks, {reached.count(MISSED)} of {len(reached)} bars missed")
    print(options.summary)
    if missing:
        print(f"not measured: {', '.join(missing)}")


if __name__ == "__main__":
    main()
