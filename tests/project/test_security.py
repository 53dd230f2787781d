"""SECURITY.md: short, and each promise in it is held by a test that exists."""

from __future__ import annotations

import ast
import re

from tests.project.test_repository import ROOT

LINES_MAX = 120
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def text() -> str:
    """The document."""
    return (ROOT / "SECURITY.md").read_text(encoding="utf-8")


def test_the_document_is_short_and_says_how_to_report() -> None:
    """Who is in a hurry finds the way to report on its first screen."""
    assert len(text().splitlines()) <= LINES_MAX
    assert text().index("## Report a flaw") < text().index("## Who is trusted with what") < text().index("## Promises")


def test_each_promise_names_a_test_that_exists() -> None:
    """A test that is renamed or removed takes its promise with it."""
    promises = text().partition("## Promises")[2].partition("\n## ")[0]
    rows = [line for line in promises.splitlines() if line.startswith("| ") and not line.startswith("| promise |")]
    assert [row for row in rows if not TEST.search(row)] == []
    named = TEST.findall(promises)
    assert len(named) == promises.count("::")
    functions = {file: ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))) for file in {file for file, _ in named}}
    held = {
        file: {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        for file, nodes in functions.items()
    }
    assert [f"{file}::{test}" for file, test in named if test not in held[file]] == []
