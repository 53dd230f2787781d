"""Figures of `http_load.py` as one picture, and those of `cluster.py` as another.

It needs matplotlib (`pip install -e '.[bench]'`); without it the figures stand alone.

One rule: it draws what the JSON holds and computes nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Sequence[dict[str, Any]]  # name, clients (0: half load), per_second, p50_ms, p99_ms, p999_ms, cpu_us, of calls stages
SIZE_INCHES = (12, 8)
DPI = 110
MISSING = "no plot: matplotlib is not installed (pip install -e '.[bench]')"
COLOURS = ("#1f5fa8", "#c2571a", "#3c8d40", "#7d5ba6", "#8a8a8a", "#b8a000")


def plot(path: Path, title: str, rows: Rows) -> str:
    """Draws the picture; says where it is, or why there is none."""
    if (plt := _pyplot()) is None:
        return MISSING
    closed = [row for row in rows if row["clients"]]
    most = max(row["clients"] for row in closed)
    figure, ((rates, latencies), (cpu, stages)) = plt.subplots(2, 2, figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(title)
    _rates(rates, closed)
    _latencies(latencies, rows)
    _cpu(cpu, [row for row in closed if row["clients"] == most])
    _stages(stages, [row for row in rows if "stages" in row])
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return f"plot: {path}"


def plot_gaps(path: Path, title: str, gaps: Mapping[str, Sequence[float]], *, bar_s: float) -> str:
    """How long nobody was answered when the leader ended, by how it ended: the share of ends that cost at most so much."""
    if (plt := _pyplot()) is None:
        return MISSING
    figure, axes = plt.subplots(figsize=SIZE_INCHES, layout="constrained")
    figure.suptitle(title)
    for colour, (name, seconds) in zip(COLOURS, gaps.items(), strict=False):
        shares = [(at + 1) / len(seconds) for at in range(len(seconds))]
        axes.step([0.0, *sorted(seconds)], [0.0, *shares], where="post", label=f"{name}, {len(seconds)} times", color=colour)
    axes.axvline(bar_s, color=COLOURS[-2], linestyle="--", label=f"{bar_s:g} s")
    axes.set_xlabel("longest time without an answer, seconds")
    axes.set_ylabel("share of ends")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right")
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return f"plot: {path}"


def _pyplot() -> Any:
    """matplotlib's drawing module; None where it is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    import matplotlib as mpl  # noqa: PLC0415 - only where it is installed

    mpl.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    return pyplot


def _load_name(clients: int) -> str:
    return {0: "half load", 1: "1 client"}.get(clients, f"{clients} clients")


def _groups(axes: Any, rows: Rows) -> Iterator[tuple[str, list[float], Rows, float, str]]:
    """One group of columns per load: each server's name, places, rows, width and colour."""
    names, loads = list(dict.fromkeys(row["name"] for row in rows)), list(dict.fromkeys(row["clients"] for row in rows))
    axes.set_xticks(range(len(loads)), [_load_name(clients) for clients in loads])
    width = 0.8 / len(names)
    for at, name in enumerate(names):
        mine = [row for row in rows if row["name"] == name]
        shift = (at - (len(names) - 1) / 2) * width
        yield name, [loads.index(row["clients"]) + shift for row in mine], mine, width, COLOURS[at]


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
    processes = sorted({process for row in rows for process in row["cpu_us"]}, key=lambda name: (name == "client", name))
    _stack(axes, [row["name"] for row in rows], {name: [row["cpu_us"].get(name, 0.0) for row in rows] for name in processes})
    axes.set_title(f"microseconds of CPU per request, {_load_name(rows[0]['clients'])}")


def _stages(axes: Any, rows: Rows) -> None:
    stages = list(dict.fromkeys(stage for row in rows for stage in row["stages"]))
    means = {stage: [row["stages"].get(stage, {"mean_ms": 0.0})["mean_ms"] for row in rows] for stage in stages}
    _stack(axes, [_load_name(row["clients"]) for row in rows], means)
    axes.set_title("where a call's time goes: mean ms by stage")


def _stack(axes: Any, names: Sequence[str], parts: dict[str, list[float]]) -> None:
    """One bar per name, made of its parts."""
    floor = [0.0] * len(names)
    for at, (part, widths) in enumerate(parts.items()):
        axes.barh(names, widths, left=floor, label=part, color=COLOURS[at])
        floor = [low + width for low, width in zip(floor, widths, strict=True)]
    axes.invert_yaxis()
    axes.legend()
