"""The figures that say most as one small picture, for the README.

One rule: it is a file of text that is committed. So it holds no time of its own, and it says of which commit and machine it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bench._figures import HEADLINES, Benchmark, told_bar, told_number
from bench._svg import gauge, label, number, rect, style_sheet, verdict

WIDTH: Final = 760
ROW: Final = 30
TOP: Final = 12
GAUGE_X: Final = 290
GAUGE_WIDTH: Final = 230
WORDS: Final = {"aim": "aim reached", "bar": "bar reached", "missed": "missed"}


def summary(benchmarks: Sequence[Benchmark]) -> str:
    """The picture; figures that were not measured say so."""
    parts = []
    for place, headline in enumerate(HEADLINES):
        y = TOP + place * ROW
        figure = headline.find(benchmarks)
        parts.append(label(GAUGE_X - 12, y + 14, headline.label, anchor="end"))
        if figure is None:
            parts.append(label(GAUGE_X, y + 14, "not measured", colour="faint"))
            continue
        parts.append(gauge(figure, x=GAUGE_X, y=y + 4, width=GAUGE_WIDTH, height=12))
        at, told = GAUGE_X + GAUGE_WIDTH + 16, verdict(figure)
        parts.append(label(at, y + 9, f"{told_number(figure['ratio'])}  {WORDS[told]}", colour=told, size=11))
        parts.append(label(at, y + 22, told_bar(figure), colour="faint", size=11))
    height = TOP + len(HEADLINES) * ROW + 40
    parts += [label(14, height - 34 + 16 * at, line, colour="faint", size=11) for at, line in enumerate(_origin(benchmarks))]
    about = "cmdlog: measured figures beside their bars"
    head = f'viewBox="0 0 {WIDTH} {number(height)}" width="{WIDTH}" height="{number(height)}" role="img" aria-label="{about}"'
    font = "text{font-family:system-ui,sans-serif}"
    inner = rect(0, 0, WIDTH, height, "back") + "\n" + "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" {head}>\n<style>{style_sheet()}{font}</style>\n{inner}\n</svg>\n'


def _origin(benchmarks: Sequence[Benchmark]) -> list[str]:
    """Machine and runs that the figures are of, in two lines."""
    used = {headline.benchmark for headline in HEADLINES}
    of = [benchmark for benchmark in benchmarks if benchmark.name in used]
    if not of:
        return ["nothing was measured"]
    machine = of[0].about["machine"]
    commits, days = sorted({one.about["commit"] for one in of}), sorted({one.about["at"][:10] for one in of})
    quick = [one.name for one in of if one.about["quick"]]
    how = "all quick" if len(quick) == len(of) else f"quick: {', '.join(quick)}" if quick else "full runs"
    busy = max(one.about["used_by_others"] for one in of)
    where = f"{machine['cpu']}, {machine['cores']} cores, Python {machine['python']}"
    return [
        f"Ratios of one run each; thick tick: bar, thin tick: aim. {where}",
        f"{days[-1]}, commit {', '.join(commits)}; {how}; others used up to {busy:.0%} of the cores",
    ]
