"""Pictures of figures as SVG: a value beside its bar, values side by side, lines over time.

One rule: the same figures give the same bytes, and colours are those of `style_sheet`, so that a picture is read in the light and
in the dark. A colour never says what no text beside it does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from bench._figures import Figure, told_number

LIGHT: Final = {
    "back": "#ffffff", "text": "#1f2328", "faint": "#656d76", "track": "#e6e9ec", "plain": "#8a939c",
    "aim": "#2e7d32", "bar": "#1f5fa8", "missed": "#c2410c",
    "line0": "#1f5fa8", "line1": "#c2571a", "line2": "#3c8d40", "line3": "#7d5ba6", "line4": "#8a8a8a", "line5": "#a08a00",
    "shade0": "#f2d6c4", "shade1": "#dfe9d8",
}  # fmt: skip
DARK: Final = {
    "back": "#0d1117", "text": "#e6edf3", "faint": "#9198a1", "track": "#2a313a", "plain": "#7d8590",
    "aim": "#57ab5a", "bar": "#6cb0f5", "missed": "#f0883e",
    "line0": "#6cb0f5", "line1": "#f0883e", "line2": "#57ab5a", "line3": "#b392f0", "line4": "#9198a1", "line5": "#d4b72c",
    "shade0": "#4a2f1f", "shade1": "#25381f",
}  # fmt: skip
LINES: Final = 6
SHADES: Final = 2
POINTS_MAX: Final = 400  # of a line
BEYOND: Final = 4.0  # times the bar; what is longer is cut off and marked


def style_sheet() -> str:
    """Both palettes as classes: `f-` fills, `s-` strokes."""
    return in_both_palettes(
        lambda palette: "".join(f".f-{name}{{fill:{colour}}}.s-{name}{{stroke:{colour}}}" for name, colour in palette.items())
    )


def in_both_palettes(rules: Callable[[Mapping[str, str]], str]) -> str:
    """Rules of a style sheet, for readers in the light and in the dark. Not by variables, which few viewers of SVG know."""
    return f"{rules(LIGHT)}@media(prefers-color-scheme:dark){{{rules(DARK)}}}"


def number(value: float) -> str:
    """A coordinate."""
    return f"{value:.1f}".removesuffix(".0")


def rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect class="f-{colour}" x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}"/>'


def vertical(x: float, top: float, bottom: float, colour: str, width: float = 1.5) -> str:
    at = number(x)
    return (
        f'<line class="s-{colour}" x1="{at}" x2="{at}" y1="{number(top)}" y2="{number(bottom)}" stroke-width="{number(width)}"/>'
    )


def label(x: float, y: float, text: str, *, colour: str = "text", size: int = 12, anchor: str = "start") -> str:
    place = f'x="{number(x)}" y="{number(y)}" font-size="{size}" text-anchor="{anchor}"'
    return f'<text class="f-{colour}" {place}>{escape(text)}</text>'


def verdict(figure: Figure) -> str:
    """The colour of a ratio."""
    return str(figure.get("reached", "plain")).lower()


def gauge(figure: Figure, *, x: float, y: float, width: float, height: float) -> str:
    """A ratio from nought on, with a thick tick at its bar and a thin one at its aim; one without a bar has a tick at 1."""
    value = figure["ratio"]
    ticks = [(figure["must"], 2.5), (figure["aim"], 1.0)] if "must" in figure else [(1.0, 1.0)]
    marks = [(at, thick) for at, thick in ticks if at is not None]
    largest = max(at for at, _ in marks)
    full = min(max(1.15 * largest, 1.05 * value), BEYOND * largest) or 1.0
    scale = width / full
    parts = [rect(x, y, width, height, "track"), rect(x, y, scale * min(value, full), height, verdict(figure))]
    if value > full:
        tip, middle = x + width, y + height / 2
        corners = f"{number(tip)},{number(y)} {number(tip + 7)},{number(middle)} {number(tip)},{number(y + height)}"
        parts.append(f'<polygon class="f-{verdict(figure)}" points="{corners}"/>')
    parts += [vertical(x + scale * at, y - 3, y + height + 3, "text", thick) for at, thick in marks]
    return "".join(parts)


def measure(value: float, ticks: Sequence[float], full: float, *, width: float, height: float) -> str:
    """A value on a scale that others share, with ticks for its percentiles."""
    scale = width / full if full else 0.0
    parts = [rect(0, 2, width, height - 4, "track"), rect(0, 2, scale * value, height - 4, "bar")]
    return "".join(parts + [vertical(scale * tick, 1, height - 1, "text") for tick in ticks])


def stack(parts: Mapping[str, float], full: float, *, width: float, height: float) -> str:
    """A value that is made of parts, on a scale that others share."""
    drawn, at = [rect(0, 2, width, height - 4, "track")], 0.0
    for place, value in enumerate(parts.values()):
        length = width * max(value, 0.0) / full if full else 0.0
        drawn.append(rect(at, 2, length, height - 4, f"line{place % LINES}"))
        at += length
    return "".join(drawn)


@dataclass(frozen=True, slots=True)
class Axes:
    """A chart's frame, and the scales in it: from `begin` to `end`, and from nought to the highest value."""

    begin: float
    end: float
    highest: float
    width: float = 760
    height: float = 190
    left: float = 64
    top: float = 26

    @property
    def right(self) -> float:
        return self.width - 12

    @property
    def bottom(self) -> float:
        return self.height - 24

    def x(self, moment: float) -> float:
        return self.left + (self.right - self.left) * (moment - self.begin) / ((self.end - self.begin) or 1.0)

    def y(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * value / self.highest

    def grid(self) -> list[str]:
        """Quarters of both scales."""
        parts = []
        for quarter in range(5):
            value, moment = self.highest * quarter / 4, self.begin + (self.end - self.begin) * quarter / 4
            parts.append(f'<path class="s-track" d="M{number(self.left)} {number(self.y(value))}H{number(self.right)}"/>')
            parts.append(label(self.left - 6, self.y(value) + 4, told_number(value), colour="faint", size=11, anchor="end"))
            anchor = "end" if quarter == 4 else "middle"
            parts.append(label(self.x(moment), self.height - 8, told_number(moment), colour="faint", size=11, anchor=anchor))
        return parts


def line_chart(
    x: Sequence[float],
    lines: Mapping[str, Sequence[float]],
    *,
    unit: str,
    spans: Mapping[str, Sequence[tuple[float, float]]] | None = None,
) -> str:
    """Lines over `x` with their names above; `spans` are shaded. Where points lie too close, their mean is drawn."""
    begin, end = (min(x[0], 0.0), x[-1]) if x else (0.0, 0.0)
    axes = Axes(begin, end, nice_ceiling(max((max(values, default=0.0) for values in lines.values()), default=0.0)))
    colours = [f"line{place % LINES}" for place in range(len(lines))]
    shades = {name: f"shade{place % SHADES}" for place, name in enumerate(spans or {})}
    parts = [
        rect(axes.x(low), axes.top, axes.x(high) - axes.x(low), axes.bottom - axes.top, shades[name])
        for name, stretches in (spans or {}).items()
        for low, high in stretches
    ]
    parts += axes.grid()
    for colour, values in zip(colours, lines.values(), strict=True):
        points = " ".join(f"{number(axes.x(moment))},{number(axes.y(value))}" for moment, value in thinned(x, values))
        parts.append(f'<polyline class="s-{colour}" fill="none" stroke-width="1.5" points="{points}"/>')
    parts += key(axes.left, [*zip(colours, lines, strict=True), *((shade, name) for name, shade in shades.items())])
    parts.append(label(axes.right, 17, unit, colour="faint", anchor="end"))
    return picture("".join(parts), axes.width, axes.height)


def key(at: float, entries: Sequence[tuple[str, str]]) -> list[str]:
    """Colours and what they are of, side by side."""
    parts = []
    for colour, name in entries:
        parts += [rect(at, 8, 10, 10, colour), label(at + 14, 17, name)]
        at += 14 + 7 * len(name) + 16
    return parts


def thinned(x: Sequence[float], y: Sequence[float]) -> list[tuple[float, float]]:
    """At most so many points as a line shows."""
    step = math.ceil(len(x) / POINTS_MAX) or 1
    runs = [(x[at : at + step], y[at : at + step]) for at in range(0, len(x), step)]
    return [(sum(moments) / len(moments), sum(values) / len(values)) for moments, values in runs]


def nice_ceiling(value: float) -> float:
    """The next number that is 1, 2, 3, 4, 6 or 8 times a power of ten; its quarters are short numbers."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1, 2, 3, 4, 6, 8, 10) if factor * power >= value * (1 - 1e-9))


def picture(inner: str, width: float, height: float) -> str:
    """A whole SVG for a page that has the style sheet."""
    size = f'viewBox="0 0 {number(width)} {number(height)}" width="{number(width)}" height="{number(height)}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{inner}</svg>'
