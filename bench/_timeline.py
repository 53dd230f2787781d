"""A snapshot's effect over time as a picture. Needs matplotlib (`pip install -e '.[bench]'`); without it the figures stand alone.

One rule: it draws what it is given and decides nothing.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

SIZE_INCHES = (12, 7)
DPI = 110
PHASE_COLOURS = {"capture": "#f2d6c4", "seal": "#dfe9d8"}
LINE = "#1f5fa8"


@dataclass(frozen=True, slots=True)
class Slice:
    """A short stretch of a run."""

    at_s: float  # its middle
    per_second: float
    p99_ms: float
    gap_ms: float  # longest without an answer


@dataclass(frozen=True, slots=True)
class Phase:
    """When a snapshot was captured or sealed."""

    name: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """One column of the picture."""

    title: str
    slices: Sequence[Slice]
    phases: Sequence[Phase]


def plot(path: Path, title: str, runs: Sequence[Run]) -> str:
    """Draws the picture; says where it is, or why there is none."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed (pip install -e '.[bench]')"
    import matplotlib as mpl  # noqa: PLC0415 - only where it is installed

    mpl.use("Agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415

    figure, columns = plt.subplots(3, len(runs), figsize=SIZE_INCHES, layout="constrained", squeeze=False, sharex="col")
    figure.suptitle(title)
    for number, run in enumerate(runs):
        at = [part.at_s for part in run.slices]
        rows = (
            ("calls/s", [part.per_second for part in run.slices]),
            ("p99, ms", [part.p99_ms for part in run.slices]),
            ("longest gap between answers, ms", [part.gap_ms for part in run.slices]),
        )
        for axes, (name, values) in zip(columns[:, number], rows, strict=True):
            axes.plot(at, values, color=LINE, linewidth=1)
            axes.set_ylabel(name)
            axes.set_ylim(bottom=0)
            axes.grid(axis="y", alpha=0.3)
            named = set()
            for phase in run.phases:
                label = None if phase.name in named else phase.name
                named.add(phase.name)
                axes.axvspan(phase.begin_s, phase.end_s, color=PHASE_COLOURS[phase.name], label=label)
        columns[0, number].set_title(run.title)
        columns[0, number].legend(loc="lower right")
        columns[2, number].set_xlabel("seconds")
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return f"plot: {path}"
