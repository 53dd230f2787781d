"""The page of all figures: nothing is left out, what missed its bar is named, and the same figures give the same bytes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from bench._common import Bar, Bench
from bench._figures import Benchmark, read_benchmarks, told_number, unmeasured
from bench._page import page
from bench._summary import summary

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"
HTML = "{http://www.w3.org/1999/xhtml}"
SERVER = {"p50_ms": 1.0, "p99_ms": 2.0, "p999_ms": 9.0, "cpu_us": {"node": 90.0, "client": 30.0}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Figures of every kind, of two scripts."""
    peers = Bench("peers", seed=1, quick=True, out=tmp_path)
    peers.section("Ratios <of> peers & others")
    peers.ratio("cmdlog over HTTP, 1 / PostgreSQL, 1", 0.9, Bar(0.5, 0.8))
    peers.ratio("cmdlog over HTTP, 32 / PostgreSQL, 32", 0.7, Bar(1.3, 2.0))
    peers.ratio("cmdlog embedded, 1 / SQLite, 1", 40.0, Bar(0.8))
    peers.ratio("no bar / at all", 0.25)
    peers.note("a note > nothing")
    peers.write()
    other = Bench("other", seed=1, quick=False, out=tmp_path)
    other.times("a latency", [1e-6, 2e-6, 9e-6])
    other.section("Kinds")
    other.rates("a rate", [10.0, 30.0])
    other.value("a value", -3.0, "ms")
    other.value("nothing", 0.0, "ms")
    other.series("a line", [1.0, 2.0, 3.0], {"one": [1.0, 5.0, 2.0], "two": [0.0, 0.0, 0.0]}, "MiB", {"a phase": [(1.5, 2.0)]})
    other.series("no moments", [], {}, "MiB")
    other.ratio("none at most", 2.0, Bar(0, at_most=True))
    other.figures.append({"name": "a server", "clients": 32, "per_second": 9.0, "stages": {"log": {"mean_ms": 0.5}}, **SERVER})
    other.figures.append({"gaps_s": [0.5, 0.1], "no_results": []})
    other.figures.append({"stacks": [[1, "main"]]})
    other.write()
    return tmp_path


@pytest.fixture
def benchmarks(folder: Path) -> list[Benchmark]:
    """The same, read back."""
    return read_benchmarks(folder)


def parse(text: str) -> ET.Element:
    """The page or picture. Raises: ParseError when it is not well-formed."""
    return ET.fromstring(text.removeprefix("<!doctype html>\n"))  # noqa: S314 - it is our own


def words_of(element: ET.Element) -> str:
    """Its text, with single spaces."""
    return re.sub(r"\s+", " ", " ".join(element.itertext()))


def test_every_figure_is_on_the_page(benchmarks: list[Benchmark]) -> None:
    """Its name, and a picture of it, whatever its kind."""
    root = parse(page(benchmarks, []))
    told = words_of(root)
    for benchmark in benchmarks:
        for section in benchmark.sections:
            assert section.title in told
            for figure in section.figures:
                assert str(figure.get("name") or figure.get("series") or figure.get("note") or "") in told
    assert len(root.findall(f".//{HTML}td/{SVG}svg")) >= 14
    assert len(root.findall(f".//{SVG}polyline")) == 3
    assert "a phase" in told
    assert len(root.findall(f".//{SVG}rect[@class='f-shade0']")) == 2  # the stretch, and the key


def test_what_missed_its_bar_is_listed_before_the_rest(benchmarks: list[Benchmark]) -> None:
    """By script, name, value and bar; what reached it is not in the list."""
    text = page(benchmarks, [])
    listed = text[text.index("<h2>Missed</h2>") : text.index("<h2>Runs</h2>")]
    assert "peers: cmdlog over HTTP, 32 / PostgreSQL, 32" in listed
    assert "other: none at most" in listed
    assert "bar ≥ 1.3, aim 2" in listed
    assert "PostgreSQL, 1<" not in listed
    assert listed.count("<tr>") == 2


@pytest.mark.parametrize("draw", [lambda found: page(found, ["x"]), summary])
def test_same_figures_give_the_same_bytes(folder: Path, draw: Any) -> None:
    """A committed picture changes when its figures do, and not with the day."""
    assert draw(read_benchmarks(folder)) == draw(read_benchmarks(folder))


def test_scripts_without_an_output_are_named(tmp_path: Path, benchmarks: list[Benchmark]) -> None:
    """Helpers and the report itself measure nothing."""
    for name in ("peers", "soak", "_load", "report"):
        (tmp_path / f"{name}.py").touch()
    assert unmeasured(tmp_path, benchmarks) == ["soak"]


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (1.0, "1"), (0.7064, "0.71"), (0.031, "0.031"), (12.34, "12.3"), (1234.5, "1,234"), (-3.0, "-3"), (0.96, "0.96")],
)
def test_numbers_have_three_digits(value: float, told: str) -> None:
    """And all that stand before the point."""
    assert told_number(value) == told


@pytest.mark.slow
def test_report_is_a_program(folder: Path) -> None:
    """It writes both files, counts what was missed, and refuses a folder without figures."""
    command = [sys.executable, str(ROOT / "bench" / "report.py"), "--figures"]
    written = ["--page", str(folder / "page.html"), "--summary", str(folder / "small.svg")]
    done = subprocess.run([*command, str(folder), *written], capture_output=True, text=True, check=True)
    assert "2 benchmarks, 2 of 4 bars missed" in done.stdout
    parse((folder / "page.html").read_text())
    parse((folder / "small.svg").read_text())
    (folder / "empty").mkdir()
    refused = subprocess.run([*command, str(folder / "empty"), *written], capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "run a benchmark first" in refused.stderr
