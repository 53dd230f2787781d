"""The picture of a demo's run."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from cmdlog.cli.demo.stage_history import COLUMNS, LEVELS, NAME_COLUMNS, DemoStage, draw_svg, draw_text

RUN = [
    DemoStage("start", 0.0, 1.0),
    DemoStage("load", 1.0, 3.0, 3000, [(2.0, 1000)]),
    DemoStage("recover", 3.0, 3.5, 3000),
]
SVG = "{http://www.w3.org/2000/svg}"


def test_rates_are_those_between_the_marks() -> None:
    """Calls are spread evenly between two marks; before and after the stage there are none."""
    assert RUN[1].rates([0.0, 1.0, 2.0, 3.0, 4.0]) == pytest.approx([0.0, 1000.0, 2000.0, 0.0])
    assert RUN[1].rate == pytest.approx(1500.0)


def test_a_terminal_shows_a_row_per_stage_on_one_axis() -> None:
    """Each begins where the one before it ended; the fastest column is full, a stage without calls is a line."""
    *rows, axis = draw_text(RUN)
    bars = [row[NAME_COLUMNS : NAME_COLUMNS + COLUMNS] for row in rows]
    assert [len(bar) for bar in bars] == [COLUMNS] * 3
    assert set(bars[0].strip()) == {"─"}
    assert set(bars[1].strip()) <= set(LEVELS)
    assert max(LEVELS.index(one) for one in bars[2]) == len(LEVELS) - 1
    assert [len(bar) - len(bar.lstrip()) for bar in bars] == [0, 16, 48]
    assert "3,000 calls in 0.50 s: 6,000/s" in rows[2]
    assert axis.split() == ["0", "3.5", "s"]


def test_the_svg_is_a_picture_of_its_own() -> None:
    """Well-formed, with every stage, all inside the frame, and nothing to fetch; names are escaped."""
    text = draw_svg([*RUN, DemoStage("a < b & c", 3.5, 3.6)], "run <1>")
    root = ElementTree.fromstring(text)  # noqa: S314 - we have just written it
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    labels = [one.text for one in root.iter(f"{SVG}text")]
    assert {"start", "load", "recover", "a < b & c"} <= set(labels)
    for bar in root.iter(f"{SVG}rect"):
        assert float(bar.get("x", 0)) + float(bar.attrib["width"]) <= width + 0.2
        assert 0 <= float(bar.get("y", 0)) <= float(bar.get("y", 0)) + float(bar.attrib["height"]) <= height
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_run_that_took_no_time_has_a_picture() -> None:
    """No division by nothing."""
    assert len(draw_text([DemoStage("start", 0.0, 0.0)])) == 2
    assert draw_svg([], "empty").startswith("<svg")
