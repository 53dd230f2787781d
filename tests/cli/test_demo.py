"""The demo as a user runs it, with a small load; and what happens when there is something to find."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.bank import BankState
from cmdlog.cli.demo.demo import Demo, DemoOptions
from cmdlog.cli.demo.display import DemoDisplay
from cmdlog.cli.demo.proof import DemoCall, prove
from cmdlog.cli.demo.server import ServerProcess
from tests.cli.demo_processes import interrupted_demo, processes_below, program
from tests.commands import Command
from tests.waiting import PATIENCE_S, wait_for

SMALL = DemoOptions(calls=300, clients=3, partitions=2, seed=11, workload="bank")


def run_demo(*arguments: str, folder: Path) -> subprocess.CompletedProcess[bytes]:
    """`cmdlog demo` as a process whose temporary files go below `folder`."""
    environment = {**os.environ, "TMPDIR": str(folder)}
    return subprocess.run(program("demo", *arguments), capture_output=True, env=environment, timeout=PATIENCE_S, check=False)


@pytest.mark.slow
def test_demo_proves_its_run(tmp_path: Path) -> None:
    """A small run ends with every proof, exit code 0, its figures as JSON, and leaves neither process nor folder."""
    done = run_demo(
        "--calls", "300", "--clients", "3", "--partitions", "2", "--seed", "7", "--json", "--plot", os.devnull, folder=tmp_path
    )
    assert done.returncode == 0, done.stderr.decode() + done.stdout.decode()
    report = orjson.loads(done.stdout.splitlines()[-1])
    assert report["differences"] == []
    assert len(report["proofs"]) == 6
    assert report["killed_processes"] >= 2  # the node and at least one site
    assert 150 <= report["acknowledged_before_kill"] < report["calls"]
    assert (
        report["recover"]["replayed"] > 0
    )  # of the calls before the kill, all but those of a snapshot that a busy machine asks for
    assert [stage["stage"] for stage in report["stages"]] == ["start", "load", "recover", "start", "resume"]
    assert report["rebuilt_calls"] > 0  # the same
    assert report["repeated_after_recovery"] == report["acknowledged_before_kill"]
    assert report["unanswered_but_logged"] <= report["unanswered_at_kill"] <= 3 + 3
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: processes_below(tmp_path) == [])


@pytest.mark.slow
def test_demo_proves_tpcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command) -> None:
    """The same with TPC-C: every order, payment and delivery is found, and its consistency conditions hold.

    Of customers there are as few as serve 300 calls: the rows of more would only be loaded, and looked at.
    """
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("cmdlog.cli.demo.tpcc.WAREHOUSES", 4)
    monkeypatch.setattr("cmdlog.cli.demo.tpcc.CUSTOMERS", 10)
    options = ("--workload", "tpcc", "--calls", 300, "--clients", 3, "--partitions", 2, "--seed", 7)
    code, report = command("demo", *options, "--json")
    assert code == 0, report
    assert report["differences"] == []
    assert len(report["proofs"]) == 8
    assert any("made local" in note for note in report["notes"])
    assert 100 <= report["repeated_after_recovery"] <= report["acknowledged_before_kill"]  # reads are not repeated
    assert list(tmp_path.iterdir()) == []
    wait_for(lambda: processes_below(tmp_path) == [])


@pytest.mark.slow
@pytest.mark.usefixtures("cold_start")
def test_interrupted_demo_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C in the middle of the load ends the server's processes and removes the folder."""
    assert interrupted_demo("demo", "--calls", "20000", "--partitions", "1", folder=tmp_path, after=b"accounts in") == 130
    wait_for(lambda: processes_below(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


def _take_a_cent(calls: list[DemoCall], seen: BankState) -> tuple[list[DemoCall], BankState]:
    """A server that shows a cent less than there should be."""
    who, (savings, checking) = next(iter(seen.accounts.items()))
    return calls, dataclasses.replace(seen, accounts={**seen.accounts, who: (savings, checking - 1)})


def _forget_an_answer(calls: list[DemoCall], seen: BankState) -> tuple[list[DemoCall], BankState]:
    """A client that was promised a deposit which the server does not have."""
    before = next(call for call in calls if call.procedure == "deposit_checking" and call.answer is not None)
    assert before.answer is not None
    answer = dataclasses.replace(before.answer, txn_id=before.answer.txn_id + 1024)
    return [*calls, DemoCall("promised", before.procedure, before.params, True, answer, 1, True, answer)], seen


@pytest.mark.slow
def test_demo_refutes_a_run_with_a_planted_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a run has shown proves it; were one cent or one promised call missing, it would be refuted by that difference."""
    demo = Demo(SMALL, tmp_path, DemoDisplay(quiet=True))
    look, shown, rows = demo._read_state, list[BankState](), dict[str, Any]()

    def watched(calls: list[DemoCall], proofs: Any, **given: Any) -> Any:
        rows.update(given)
        return prove(calls, proofs, **given)

    def looking() -> BankState:
        shown.append(look())
        return shown[0]

    monkeypatch.setattr(demo, "_read_state", looking)
    monkeypatch.setattr("cmdlog.cli.demo.demo.prove", watched)
    assert demo.run().differences == []
    for plant, finds in ((_take_a_cent, "every account holds what the model says"), (_forget_an_answer, "money is conserved")):
        calls, seen = plant(demo.calls, shown[0])
        verdict = prove(calls, demo._work.proofs(calls, seen), **rows)
        assert any(finds in difference for difference in verdict.differences), verdict
    wait_for(lambda: processes_below(tmp_path) == [])


@pytest.mark.slow
def test_demo_refuses_a_directory_with_something_in_it(tmp_path: Path) -> None:
    """An existing node is never used for the demo: usage error, nothing is touched."""
    (tmp_path / "precious").write_text("kept")
    done = run_demo("--data", str(tmp_path), folder=tmp_path)
    assert done.returncode == 2
    assert b"not empty" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


@pytest.mark.slow
def test_server_that_cannot_start_is_reported_with_its_words(tmp_path: Path) -> None:
    """A server that ends before it serves gives an error with what it said, not a wait for the time limit."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "instance.json").write_text("{}")
    with pytest.raises(CommandFailed) as caught:
        ServerProcess(data, partitions=1, log=tmp_path / "server.log")
    assert "before it was listening: " in str(caught.value)
    assert "instance.json" in str(caught.value)


@pytest.mark.slow
def test_module_is_the_program() -> None:
    """`python -m cmdlog` is `cmdlog`."""
    done = subprocess.run(
        [sys.executable, "-m", "cmdlog", "version", "--json"], capture_output=True, check=True, timeout=PATIENCE_S
    )
    assert "cmdlog" in orjson.loads(done.stdout)
