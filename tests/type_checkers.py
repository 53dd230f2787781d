"""Type checkers at their strictest, asked which lines of a file are wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import pytest

from tests.waiting import PATIENCE_S

ROOT: Final = Path(__file__).parents[1]
EACH_CHECKER: Final = ("pyright", pytest.param("mypy", marks=pytest.mark.torture))
"""Parameters of a test; mypy takes eight seconds for each folder, and `make types` has it read the project."""
TIMEOUT_S: Final = PATIENCE_S
Line = tuple[str, int]  # file name, from 1


def marked_lines(path: Path) -> set[Line]:
    """The lines that end with `# bad`."""
    return {(path.name, at) for at, line in enumerate(path.read_text().splitlines(), 1) if line.endswith("# bad")}


def wrong_lines(checker: str, paths: Sequence[Path]) -> set[Line]:
    """The lines that the checker names. The files are in one folder, where they may import each other."""
    return _ask_mypy(paths) if checker == "mypy" else _ask_pyright(paths)


def _ask_mypy(paths: Sequence[Path]) -> set[Line]:
    """With the project's settings, of which `strict` is one: what `make types` has found of the product is in mypy's cache."""
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=pyproject.toml", *map(str, paths)]
    told = _run(command, {"PYTHONPATH": str(ROOT), "MYPYPATH": str(paths[0].parent)})
    return {(Path(file).name, int(at)) for file, at in (line.split(":")[:2] for line in told.splitlines() if ": error:" in line)}


def _ask_pyright(paths: Sequence[Path]) -> set[Line]:
    """With the node program of its package, never the machine's, and without asking whether a newer one has appeared."""
    folder = paths[0].parent
    settings: dict[str, Any] = {"include": [path.name for path in paths], "extraPaths": [str(ROOT)], "typeCheckingMode": "strict"}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "-p", str(folder)]
    alone = {"PYRIGHT_PYTHON_GLOBAL_NODE": "0", "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    found = json.loads(_run(command, dict(os.environ) | alone))["generalDiagnostics"]
    return {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in found if one["severity"] == "error"}


def _run(command: Sequence[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout
