"""When the demo did what, and how fast: the picture of a run, for a terminal and as SVG.

One rule: it draws what was measured. A stage has its begin, its end, and how many calls were done at moments between them; the
picture adds nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from xml.sax.saxutils import escape

LEVELS: Final = " ▁▂▃▄▅▆▇█"
COLUMNS: Final = 56  # of the time axis in a terminal
NAME_COLUMNS: Final = 10
WIDTH, ROW, MARGIN, LABEL = 900, 46, 16, 120  # of the SVG, in pixels


@dataclass(slots=True)
class DemoStage:
    """A part of the run on the time axis; seconds since its beginning."""

    name: str
    begin_s: float
    end_s: float
    calls: int = 0
    marks: list[tuple[float, int]] = field(default_factory=list)  # (moment, calls done by then), ascending

    def rates(self, edges: Sequence[float]) -> list[float]:
        """Calls per second between neighbouring edges; between two marks the calls are spread evenly."""
        done = [self._done_at(edge) for edge in edges]
        return [(after - before) / (hi - lo) for (lo, hi), (before, after) in zip(
            itertools.pairwise(edges), itertools.pairwise(done), strict=True)]  # fmt: skip

    def _done_at(self, moment: float) -> float:
        points = [(self.begin_s, 0), *self.marks, (self.end_s, self.calls)]
        for (lo, before), (hi, after) in itertools.pairwise(points):
            if moment <= hi:
                share = (moment - lo) / (hi - lo) if hi > lo else 1.0
                return before + (after - before) * min(max(share, 0.0), 1.0)
        return float(self.calls)

    @property
    def rate(self) -> float:
        """Calls per second on average."""
        return self.calls / max(self.end_s - self.begin_s, 1e-9)

    def to_json(self) -> dict[str, Any]:
        return {"stage": self.name, "begin_s": round(self.begin_s, 3), "end_s": round(self.end_s, 3), "calls": self.calls}


def draw_text(stages: Sequence[DemoStage]) -> list[str]:
    """A row per stage on one time axis; the height of a column is its rate, measured by the fastest column of all rows."""
    edges = _edges(stages, COLUMNS)
    rates = [stage.rates(edges) for stage in stages]
    highest = max((rate for row in rates for rate in row), default=0.0) or 1.0
    lines = []
    for stage, row in zip(stages, rates, strict=True):
        bars = "".join(_column(stage, rate / highest, *at) for rate, at in zip(row, itertools.pairwise(edges), strict=True))
        lines.append(f"{stage.name:<{NAME_COLUMNS}}{bars}  {_said(stage)}")
    end = f"{edges[-1]:.1f} s"
    return [*lines, f"{'':<{NAME_COLUMNS}}0{end:>{COLUMNS - 1}}"]


def draw_svg(stages: Sequence[DemoStage], title: str) -> str:
    """The same picture as a file of its own; no script, no font, nothing to fetch."""
    edges = _edges(stages, (WIDTH - LABEL - MARGIN) // 6)
    rates = [stage.rates(edges) for stage in stages]
    highest = max((rate for row in rates for rate in row), default=0.0) or 1.0
    height = ROW * (len(stages) + 1) + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="13">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    scale = (WIDTH - LABEL - MARGIN) / edges[-1]
    for number, (stage, row) in enumerate(zip(stages, rates, strict=True)):
        parts += _svg_row(stage, row, edges, base=MARGIN + ROW * (number + 1), scale=scale, highest=highest)
    bottom = MARGIN + ROW * len(stages) + 20
    parts += [
        f'<text x="{LABEL}" y="{bottom}">0 s</text>',
        f'<text x="{WIDTH - MARGIN}" y="{bottom}" text-anchor="end">{edges[-1]:.1f} s</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _svg_row(
    stage: DemoStage, rates: Sequence[float], edges: Sequence[float], *, base: int, scale: float, highest: float
) -> Iterator[str]:
    left, right = LABEL + stage.begin_s * scale, LABEL + stage.end_s * scale
    yield f'<text x="{MARGIN}" y="{base - 4}">{escape(stage.name)}</text>'
    yield _svg_bar(left, base - 2, max(right - left, 1), 2, "#8899aa")
    for rate, (lo, hi) in zip(rates, itertools.pairwise(edges), strict=True):
        if rate > 0:
            high = rate / highest * (ROW - 20)
            yield _svg_bar(LABEL + lo * scale, base - 2 - high, (hi - lo) * scale, high, "#2a6fb0")
    near = min(left, WIDTH - MARGIN - 260)
    yield f'<text x="{near:.1f}" y="{base - ROW + 14}" fill="#445566">{escape(_said(stage))}</text>'


def _svg_bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _edges(stages: Sequence[DemoStage], columns: int) -> list[float]:
    end = max((stage.end_s for stage in stages), default=0.0) or 1.0
    return [end * column / columns for column in range(columns + 1)]


def _column(stage: DemoStage, share: float, lo: float, hi: float) -> str:
    """A column of a row: its rate, or a line where the stage is at work without calls."""
    if share > 0:
        return LEVELS[max(1, round(share * (len(LEVELS) - 1)))]
    return "─" if lo < stage.end_s and hi > stage.begin_s else " "


def _said(stage: DemoStage) -> str:
    seconds = stage.end_s - stage.begin_s
    return f"{stage.calls:,} calls in {seconds:.2f} s: {stage.rate:,.0f}/s" if stage.calls else f"{seconds:.2f} s"
