"""`cmdlog` as an operator runs it, within the test's process: `tests/conftest.py` gives it to every test as `command`."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from cmdlog.cli.app import run
from cmdlog.cli.output import out


class Command:
    """Runs the program, as a new process would begin it: a `--json` of an earlier command is forgotten."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch, self._capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> tuple[int, Any]:
        """Exit code and, with `--json` among the arguments, the last value; else what was printed, the error if nothing was."""
        code, results, errors = self._run(arguments)
        return code, json.loads(results.splitlines()[-1]) if "--json" in arguments else results or errors

    def values(self, *arguments: object) -> tuple[int, list[Any]]:
        """With `--json`: exit code and all values."""
        code, results, _ = self._run((*arguments, "--json"))
        return code, [json.loads(line) for line in results.splitlines()]

    def text(self, *arguments: object) -> tuple[int, str]:
        """Exit code and all that was printed, results before errors."""
        code, results, errors = self._run(arguments)
        return code, results + errors

    def _run(self, arguments: tuple[object, ...]) -> tuple[int, str, str]:
        self._monkeypatch.setattr(sys, "argv", ["cmdlog", *map(str, arguments)])
        self._monkeypatch.setattr(out, "json", False)
        if "drill" in arguments:  # it lowers the priority of its process for good, and this one has other tests to run
            self._monkeypatch.setattr("replay.drill.drill.lower_priority", lambda: None)
        with pytest.raises(SystemExit) as ended:
            run()
        printed = self._capsys.readouterr()
        return int(ended.value.code or 0), printed.out, printed.err
