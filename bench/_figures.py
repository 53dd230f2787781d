"""What benchmarks wrote in bench/out, read back: by script, by section, and the few figures that say most.

One rule: bars are those that the scripts held their figures to; nothing here judges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

Figure = dict[str, Any]
MISSED: Final = "MISSED"
NOT_MEASURED: Final = ("report",)  # scripts that measure nothing


@dataclass(frozen=True, slots=True)
class Section:
    """A table of a script."""

    title: str
    figures: list[Figure]


@dataclass(frozen=True, slots=True)
class Benchmark:
    """One script's last run. `about` is its JSON without the figures."""

    name: str
    about: dict[str, Any]
    sections: list[Section]

    @staticmethod
    def parse(text: bytes) -> Benchmark:
        """What a script has written."""
        about = orjson.loads(text)
        sections = [Section("", [])]
        for figure in about.pop("figures"):
            if "section" in figure:
                sections.append(Section(figure["section"], []))
            else:
                sections[-1].figures.append(figure)
        return Benchmark(about["benchmark"], about, [section for section in sections if section.figures])

    def ratios(self) -> Iterator[tuple[Section, Figure]]:
        """Those that are held to a bar."""
        for section in self.sections:
            for figure in section.figures:
                if "reached" in figure:
                    yield section, figure

    @property
    def how(self) -> str:
        """In how much time, and when and of what."""
        about = self.about
        quick = "quick" if about["quick"] else "full"
        return f"{quick}, {about['at'][:10]}, commit {about['commit']}, {about['seconds']:,.0f} s"

    @property
    def others(self) -> str:
        """What the benchmark did not get of the machine."""
        return f"{self.about['used_by_others']:.0%} of the cores used by others, {self.about['stolen']:.0%} stolen"


@dataclass(frozen=True, slots=True)
class Headline:
    """A figure that says much in little room."""

    label: str
    benchmark: str
    figure: str
    section: str = ""  # what its section's title contains

    def find(self, benchmarks: Sequence[Benchmark]) -> Figure | None:
        """The figure; None when it was not measured."""
        for benchmark in benchmarks:
            for section, figure in benchmark.ratios():
                if (benchmark.name, figure["name"]) == (self.benchmark, self.figure) and self.section in section.title:
                    return figure
        return None


HEADLINES: Final = (
    Headline("HTTP, 1 client / PostgreSQL, 1", "peers", "cmdlog over HTTP, 1 / PostgreSQL, 1"),
    Headline("HTTP, 32 clients / PostgreSQL, 32", "peers", "cmdlog over HTTP, 32 / PostgreSQL, 32"),
    Headline("/v1/batch / Redis pipelined by 16", "peers", "cmdlog /v1/batch / Redis, 32 pipelined by 16"),
    Headline("embedded, 1 / SQLite synced, 1", "peers", "cmdlog embedded, 1 / SQLite, 1"),
    Headline("embedded idle call / raw write + sync", "engine", "embedded durable call / raw write + fdatasync"),
    Headline("engine / bare loop, 256, digest on", "engine", "engine / bare, 256, digest on"),
    Headline("log sync / off, 256 in flight", "engine", "log sync / off, 256 in flight", "in 1 site process"),
    Headline("memory of the node, end / begin of a soak", "soak", "node: end / begin of the line"),
)


def read_benchmarks(folder: Path) -> list[Benchmark]:
    """Every output in a folder, by name."""
    return [Benchmark.parse(path.read_bytes()) for path in sorted(folder.glob("*.json"))]


def unmeasured(scripts: Path, benchmarks: Sequence[Benchmark]) -> list[str]:
    """Scripts of a folder without an output."""
    names = {path.stem for path in scripts.glob("[!_]*.py")} - {*NOT_MEASURED, *(benchmark.name for benchmark in benchmarks)}
    return sorted(names)


def told_number(value: float) -> str:
    """Three digits, and all before the point."""
    size = abs(value)
    if size >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if size >= 10 else f"{value:.2f}" if size >= 0.1 else f"{value:.2g}"


def told_bar(figure: Figure) -> str:
    """What a ratio is held to."""
    if "must" not in figure:
        return ""
    sign = "≤" if figure["at_most"] else "≥"
    return f"bar {sign} {figure['must']:g}" + ("" if figure["aim"] is None else f", aim {figure['aim']:g}")
