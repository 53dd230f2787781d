"""All figures as one page of HTML that needs nothing else.

One rule: it is well-formed XML, every figure of the JSON is on it, and what missed its bar is listed at the top.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any, Final

from bench._figures import HEADLINES, MISSED, Benchmark, Figure, Section, told_bar, told_number
from bench._svg import LINES, gauge, in_both_palettes, line_chart, measure, picture, stack, style_sheet, verdict

WIDTH: Final = 340
HEIGHT: Final = 16
STYLE: Final = """
body{background:var(--back);color:var(--text);font:14px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:68rem;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin:2.2rem 0 .2rem;border-bottom:1px solid var(--track)}
h3{font-size:1rem;margin:1.2rem 0 .3rem}p{margin:.3rem 0}a{color:var(--bar)}.faint{color:var(--faint)}
.aim{color:var(--aim)}.bar{color:var(--bar)}.missed{color:var(--missed);font-weight:600}
table{border-collapse:collapse}td,th{padding:.1rem .8rem .1rem 0;text-align:left;vertical-align:middle}
td.name{width:24rem}td.told{white-space:nowrap;font-variant-numeric:tabular-nums}
svg{max-width:100%;overflow:visible;display:block}.key{display:inline-block;width:.7em;height:.7em;margin:0 .3em 0 1em}
"""


def page(benchmarks: Sequence[Benchmark], missing: Sequence[str]) -> str:
    """The page; `missing` are the scripts without an output."""
    colours = in_both_palettes(lambda palette: f":root{{{';'.join(f'--{name}:{colour}' for name, colour in palette.items())}}}")
    keys = "".join(f".k-{place}{{background:var(--line{place})}}" for place in range(LINES))
    style = f"<style>{colours}{style_sheet()}{STYLE}{keys}</style>"
    head = f'<head><meta charset="utf-8"/><title>cmdlog: benchmarks</title>{style}</head>'
    body = [*_overview(benchmarks, missing), *(line for benchmark in benchmarks for line in _benchmark(benchmark))]
    return (
        f'<!doctype html>\n<html xmlns="http://www.w3.org/1999/xhtml" lang="en">{head}<body>\n'
        + "\n".join(body)
        + "\n</body></html>\n"
    )


# -- what comes first ----------------------------------------------------------------------------------------------------


def _overview(benchmarks: Sequence[Benchmark], missing: Sequence[str]) -> Iterator[str]:
    yield "<h1>cmdlog: benchmarks</h1>"
    machines = {
        ", ".join(f"{name} {value}" for name, value in benchmark.about["machine"].items() if name != "load_1min")
        for benchmark in benchmarks
    }
    yield from (f"<p>{escape(machine)}</p>" for machine in sorted(machines))
    yield '<p class="faint">Ratios are of variants that took turns in one run. Thick tick: the bar; thin tick: the aim.</p>'
    yield "<h2>Figures that say most</h2>"
    rows = []
    for headline in HEADLINES:
        figure = headline.find(benchmarks)
        rows.append(
            _ratio(figure, headline.label) if figure else _row(headline.label, "", '<span class="faint">not measured</span>')
        )
    yield _table(rows)
    yield "<h2>Missed</h2>"
    yield from _missed(benchmarks)
    yield "<h2>Runs</h2>"
    yield _table([_run(benchmark) for benchmark in benchmarks])
    if missing:
        yield f"<p>Not measured: {escape(', '.join(missing))}.</p>"


def _missed(benchmarks: Sequence[Benchmark]) -> Iterator[str]:
    """Every figure that did not reach its bar."""
    rows = [
        _ratio(figure, f"{benchmark.name}: {figure['name']}", under=section.title)
        for benchmark in benchmarks
        for section, figure in benchmark.ratios()
        if figure["reached"] == MISSED
    ]
    yield _table(rows) if rows else "<p>Every figure that has a bar reached it.</p>"


def _run(benchmark: Benchmark) -> str:
    reached = [figure["reached"] for _, figure in benchmark.ratios()]
    missed = reached.count(MISSED)
    told = f'<span class="{"missed" if missed else "faint"}">{missed} missed</span> of {len(reached)} bars'
    link = f'<a href="#{benchmark.name}">{benchmark.name}</a>'
    return f"<tr><td>{link}</td><td>{escape(benchmark.how)}</td><td>{escape(benchmark.others)}</td><td>{told}</td></tr>"


# -- one script ----------------------------------------------------------------------------------------------------------


def _benchmark(benchmark: Benchmark) -> Iterator[str]:
    yield f'<h2 id="{benchmark.name}">{benchmark.name}</h2>'
    load = benchmark.about["machine"]["load_1min"]
    about = f"{benchmark.how}, seed {benchmark.about['seed']}, {benchmark.others}, load {load}"
    yield f'<p class="faint">bench/{benchmark.name}.py: {escape(about)}</p>'
    for section in benchmark.sections:
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield f"<h3>{escape(section.title)}</h3>"
    for kind, group in groupby(section.figures, key=_kind):
        yield from DRAWN[kind](list(group))


def _kind(figure: Figure) -> str:
    """The first member that says what a figure is."""
    return next((kind for kind in DRAWN if kind in figure), "other")


def _ratios(figures: Sequence[Figure]) -> Iterator[str]:
    yield _table([_ratio(figure, figure["name"]) for figure in figures])


def _ratio(figure: Figure, name: str, *, under: str = "") -> str:
    colour = verdict(figure)
    word = "" if colour == "plain" else f' <span class="{colour}">{figure["reached"]}</span>'
    told = f'{told_number(figure["ratio"])}{word} <span class="faint">{escape(told_bar(figure))}</span>'
    return _row(name, picture(gauge(figure, x=0, y=3, width=WIDTH, height=HEIGHT - 6), WIDTH, HEIGHT), told, under=under)


def _values(figures: Sequence[Figure]) -> Iterator[str]:
    """Values of one unit share a scale."""
    yield from _measures([(figure["name"], figure["value"], [], figure["unit"]) for figure in figures])


def _rates(figures: Sequence[Figure]) -> Iterator[str]:
    """Medians; the tick is the slowest of a hundred rounds."""
    yield from _measures([(figure["name"], figure["median"], [figure["p1"]], figure["unit"]) for figure in figures])


def _times(figures: Sequence[Figure]) -> Iterator[str]:
    """Medians; the tick is the 99th percentile."""
    yield from _measures([(figure["name"], figure["median_us"], [figure["p99_us"]], "µs") for figure in figures])


def _servers(figures: Sequence[Figure]) -> Iterator[str]:
    """Servers under a load: rate, latency, CPU time, and where a call's time goes."""
    names = [_load_name(figure) for figure in figures]
    shares = [[figure[share] for share in ("p99_ms", "p999_ms") if share in figure] for figure in figures]
    yield from _measures([(name, figure["per_second"], [], "requests/s") for name, figure in zip(names, figures, strict=True)])
    rows = zip(names, figures, shares, strict=True)
    yield from _measures([(name, figure["p50_ms"], of, "ms: median, p99, p999") for name, figure, of in rows])
    yield from _stacks({name: figure["cpu_us"] for name, figure in zip(names, figures, strict=True)}, "µs of CPU per request")
    stages = {
        name: {stage: of["mean_ms"] for stage, of in figure["stages"].items()}
        for name, figure in zip(names, figures, strict=True)
        if "stages" in figure
    }
    if stages:
        yield from _stacks(stages, "ms by stage")


def _load_name(figure: Figure) -> str:
    clients = figure.get("clients")
    return f"{figure['name']}" + ("" if clients is None else f", {clients} clients" if clients else ", open loop")


def _series(figures: Sequence[Figure]) -> Iterator[str]:
    for figure in figures:
        unit = f"{figure['unit']} over seconds" if figure["unit"] else "over seconds"
        drawn = line_chart(figure["at_s"], figure["lines"], unit=unit, spans=figure.get("spans"))
        yield f"<p>{escape(figure['series'])}</p>{drawn}"


def _gaps(figures: Sequence[Figure]) -> Iterator[str]:
    for figure in figures:
        gaps = sorted(figure["gaps_s"])
        shares = {"share of ends without an answer for at most so long": [(at + 1) / len(gaps) for at in range(len(gaps))]}
        yield line_chart(gaps, shares, unit="over seconds")


def _notes(figures: Sequence[Figure]) -> Iterator[str]:
    yield from (f'<p class="faint">{escape(figure["note"])}</p>' for figure in figures)


def _others(figures: Sequence[Figure]) -> Iterator[str]:
    """What has no picture: a profile's stacks."""
    yield from (f'<p class="faint">{escape(", ".join(figure))}: in the JSON</p>' for figure in figures)


DRAWN: Final[Mapping[str, Any]] = {
    "ratio": _ratios,
    "value": _values,
    "median": _rates,
    "median_us": _times,
    "per_second": _servers,
    "series": _series,
    "gaps_s": _gaps,
    "note": _notes,
    "other": _others,
}


# -- rows ----------------------------------------------------------------------------------------------------------------


def _measures(rows: Sequence[tuple[str, float, list[float], str]]) -> Iterator[str]:
    """Name, value, ticks, unit: those that follow each other with one unit share a scale."""
    for unit, group in groupby(rows, key=lambda row: row[3]):
        members = list(group)
        full = max(max(value, *ticks, 0.0) for _, value, ticks, _ in members)
        yield _table(
            [
                _row(
                    name,
                    picture(measure(max(value, 0.0), ticks, full, width=WIDTH, height=HEIGHT), WIDTH, HEIGHT),
                    f'{told_number(value)} <span class="faint">{" / ".join(map(told_number, ticks))} {escape(unit)}</span>',
                )
                for name, value, ticks, _ in members
            ]
        )


def _stacks(rows: Mapping[str, Mapping[str, float]], unit: str) -> Iterator[str]:
    """Values made of parts; the parts are named above."""
    names = list(dict.fromkeys(part for parts in rows.values() for part in parts))
    full = max(sum(max(value, 0.0) for value in parts.values()) for parts in rows.values())
    keys = "".join(f'<span class="key k-{place % LINES}"></span>{escape(part)}' for place, part in enumerate(names))
    yield f'<p class="faint">{escape(unit)}:{keys}</p>'
    yield _table(
        [
            _row(
                name,
                picture(stack({part: parts.get(part, 0.0) for part in names}, full, width=WIDTH, height=HEIGHT), WIDTH, HEIGHT),
                told_number(sum(parts.values())),
            )
            for name, parts in rows.items()
        ]
    )


def _row(name: str, drawn: str, told: str, *, under: str = "") -> str:
    below = f'<br/><span class="faint">{escape(under)}</span>' if under else ""
    text = re.sub(r"\s+", " ", name)
    return f'<tr><td class="name">{escape(text)}{below}</td><td>{drawn}</td><td class="told">{told}</td></tr>'


def _table(rows: Sequence[str]) -> str:
    return f"<table>{''.join(rows)}</table>"
