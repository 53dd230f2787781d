"""Programs of the product start warm, whichever way they are started; nothing else would say so but the time that tests take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmdlog.child_process import PIPE, ChildProcess
from tests import warm_start

pytestmark = pytest.mark.slow  # processes are started

PATHS = """
import json, sys

def main():
    print(json.dumps([sys.path[0], "cmdlog.api.app" in sys.modules, sys.argv]))
"""


@pytest.fixture(autouse=True)
def warm_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every start from here on is one by the process of the imports."""
    warm_start.start_importer()

    def start_cold(_process: Any, args: Any, *_given: Any) -> None:
        raise AssertionError(f"a cold start: {args}")

    monkeypatch.setenv("PYTHONHASHSEED", "0")
    monkeypatch.setattr(warm_start, "_start_cold", start_cold)


def test_children_of_the_product_start_warm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites, workers and servers of a node; as with `-P`, their current folder hides no module from them."""
    (tmp_path / "paths.py").write_text(PATHS)
    monkeypatch.syspath_prepend(str(tmp_path))
    with ChildProcess("paths", "one", stdout=PIPE, cwd=tmp_path.parent) as child:
        program = str(warm_start.ROOT / "cmdlog/die_with_parent.py")
        assert next(child.answers()) == [str(tmp_path), True, [program, "one"]]


def test_commands_start_warm() -> None:
    """`cmdlog` as a program of its own."""
    done = subprocess.run([sys.executable, "-m", "cmdlog", "version"], capture_output=True, check=True)
    assert b"cmdlog" in done.stdout


@pytest.mark.parametrize("line", [["-c", "pass"], ["-P", "-m", "json.tool"], ["-I", "-m", "cmdlog"], ["-m", "pytest"], []])
def test_other_programs_start_as_ever(line: list[str]) -> None:
    """The process of the imports stands for programs of the product with no options but `-P`."""
    with pytest.raises(AssertionError, match="a cold start"):
        subprocess.run([sys.executable, *line], check=True, stdin=subprocess.DEVNULL)
