"""Figures of `http_load.py` as one picture. Needs matplotlib (`pip install -e '.[bench]'`); without it the figures stand alone.

One rule: it draws what the JSON holds and computes nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]  # figures of single requests: name, clients, per_second, p50_ms, p99_ms, cpu_us
SIZE_INCHES = (12, 8)
DPI = 110
COLOURS = ("#1f5fa8", "#c2571a", "#3c8d40", "#7d5ba6", "#8a8a8a", "#b8a000")


def plot(path: Path, title: str, rows: Rows, half: Rows) -> str:
    """Draws the picture; says where it is, or why there is none."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed (pip install -e '.[bench]')"
    import matplotlib as mpl  # noqa: PLC0415 - only where it is installed

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, ((rates, latencies), (cpu, below)) = plt.subplots(2, 2, figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(title)
    _rates(rates, rows)
    _latencies(latencies, rows)
    _cpu(cpu, [row for row in rows if row["clients"] == max(row["clients"] for row in rows)])
    _half_load(below, half)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return f"plot: {path}"


def _groups(axes: Any, rows: Rows) -> Iterator[tuple[str, list[float], Rows, float, str]]:
    """One group of columns per number of clients: each server's name, places, rows, width and colour."""
    names, clients = list(dict.fromkeys(row["name"] for row in rows)), sorted({row["clients"] for row in rows})
    axes.set_xticks(range(len(clients)), [f"{number} clients" if number > 1 else "1 client" for number in clients])
    width = 0.8 / len(names)
    for at, name in enumerate(names):
        mine = sorted((row for row in rows if row["name"] == name), key=lambda row: row["clients"])
        yield name, [group + (at - (len(names) - 1) / 2) * width for group in range(len(clients))], mine, width, COLOURS[at]


def _rates(axes: Any, rows: Rows) -> None:
    for name, places, mine, width, colour in _groups(axes, rows):
        axes.bar(places, [row["per_second"] for row in mine], width, label=name, color=colour)
    axes.set_title("requests/s, clients wait for their answers")
    axes.margins(y=0.3)
    axes.legend()


def _latencies(axes: Any, rows: Rows) -> None:
    """Median as a dot, a line up to p99 and p999."""
    for _, places, mine, _, colour in _groups(axes, rows):
        for member, marker in (("p50_ms", "o"), ("p99_ms", "_"), ("p999_ms", "x")):
            axes.plot(places, [row[member] for row in mine], marker, color=colour)
        axes.vlines(places, [row["p50_ms"] for row in mine], [row["p999_ms"] for row in mine], color=colour)
    axes.set_yscale("log")
    axes.set_title("latency in ms: median (dot), p99 (bar), p999 (cross)")
    axes.grid(axis="y", alpha=0.3)


def _cpu(axes: Any, rows: Rows) -> None:
    """CPU per request, stacked by process."""
    parts = sorted({process for row in rows for process in row["cpu_us"]}, key=lambda name: (name == "client", name))
    floor = [0.0] * len(rows)
    for at, process in enumerate(parts):
        widths = [row["cpu_us"].get(process, 0.0) for row in rows]
        axes.barh([row["name"] for row in rows], widths, left=floor, label=process, color=COLOURS[at])
        floor = [low + width for low, width in zip(floor, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_title(f"microseconds of CPU per request, {rows[0]['clients']} clients")
    axes.legend()


def _half_load(axes: Any, rows: Rows) -> None:
    shares = ("p50", "p99", "p999")
    for at, row in enumerate(rows):
        axes.barh([f"{row['name']} {share}" for share in shares], [row[f"{share}_ms"] for share in shares], color=COLOURS[at])
    axes.invert_yaxis()
    axes.set_title("latency at half load, ms")
