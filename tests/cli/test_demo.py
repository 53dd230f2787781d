"""`cmdlog demo` and `cmdlog cluster demo` as commands: exit code, folder, interruption."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo import demo_run
from cmdlog.cli.demo.demo_report import DemoReport, FaultReport
from cmdlog.cli.demo.nodes import DemoNodes
from tests.cli.demo_processes import interrupted_demo, processes_below
from tests.commands import Command
from tests.waiting import PATIENCE_S, wait_for

COMMANDS = {"alone": ("demo",), "cluster": ("cluster", "demo")}
HANGED = FaultReport("hang", "SIGSTOP to node 1", 1, 2.5, leader=3, term=7, answered=1200, unknown=4, refused=9, deposes=True)


class _Judged:
    """A run that has ended."""

    def __init__(self, *differences: str) -> None:
        self._differences = list(differences)

    def __call__(self, options: Any, *_: object) -> _Judged:
        self._nodes = options.nodes
        return self

    def run(self) -> DemoReport:
        proofs = ["money is conserved"]
        return DemoReport(self._nodes, 7, 2, 3, faults=[HANGED], proofs=proofs, differences=self._differences)


@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.parametrize(("differences", "code"), [((), 0), (("refuted: all nodes hold the same rows: table t",), 1)])
def test_exit_code_tells_whether_all_was_proved(
    command: Command, monkeypatch: pytest.MonkeyPatch, name: str, differences: tuple[str, ...], code: int
) -> None:
    """What was refuted is shown, to people and as JSON."""
    monkeypatch.setattr(demo_run, "DemoRun", _Judged(*differences))
    ended, report = command(*COMMANDS[name], "--json")
    assert (ended, report["differences"], report["faults"][0]["without_service_s"]) == (code, list(differences), 2.5)
    assert report["nodes"] == {"alone": 1, "cluster": 3}[name]
    ended, text = command.text(*COMMANDS[name])
    assert ended == code
    assert ("REFUTED" in text) == bool(differences)
    assert "money is conserved" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_directory_with_something_in_it_is_refused(tmp_path: Path, command: Command, name: str) -> None:
    """An existing node is never used for the demo: usage error, nothing is touched."""
    (tmp_path / "precious").write_text("kept")
    code, text = command.text(*COMMANDS[name], "--data", tmp_path)
    assert code == 2
    assert "not empty" in text
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.slow
@pytest.mark.usefixtures("cold_start")
@pytest.mark.parametrize("name", COMMANDS)
def test_interrupted_demo_leaves_nothing(tmp_path: Path, name: str) -> None:
    """Ctrl-C in the middle of the load ends the nodes' processes and removes the folder."""
    arguments = (*COMMANDS[name], "--calls", "50000", "--partitions", "1")
    assert interrupted_demo(*arguments, folder=tmp_path, after=b"accounts in") == 130
    wait_for(lambda: processes_below(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_server_that_cannot_start_is_reported_with_its_words(tmp_path: Path) -> None:
    """A server that ends before it serves gives an error with what it said, not a wait for the time limit."""
    nodes = DemoNodes(tmp_path, partitions=1, count=1)
    nodes.data(1).mkdir()
    (nodes.data(1) / "instance.json").write_text("{}")
    with pytest.raises(CommandFailed) as caught:
        nodes.start(1)
    assert "before it was listening: " in str(caught.value)
    assert "instance.json" in str(caught.value)


@pytest.mark.slow
def test_module_is_the_program() -> None:
    """`python -m cmdlog` is `cmdlog`."""
    done = subprocess.run(
        [sys.executable, "-m", "cmdlog", "version", "--json"], capture_output=True, check=True, timeout=PATIENCE_S
    )
    assert "cmdlog" in orjson.loads(done.stdout)
