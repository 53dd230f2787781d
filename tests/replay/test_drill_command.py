"""`cmdlog drill`, and the process that runs one: what they report, their exit codes, and what is left of them."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import cmdlog
from cmdlog.child_process import PIPE, ChildProcess
from procedures.samples import bank
from replay.drill import drill as module
from replay.drill.report import FOLDER
from tests.commands import Command
from tests.replay.drills import with_snapshots
from tests.replay.rig import DRIFT, Rig
from tests.waiting import PATIENCE_S


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """See `with_snapshots`."""
    return with_snapshots(tmp_path)


@pytest.fixture
def command(command: Command, monkeypatch: pytest.MonkeyPatch) -> Command:
    """The command at this process's own priority."""
    monkeypatch.setattr(module, "lower_priority", lambda: None)
    return command


def test_command_tells_the_report_and_its_exit_code(rig: Rig, command: Command) -> None:
    """JSON holds the report; a table shows it; a divergence exits with 16, after the report."""
    code, value = command("drill", rig.directory, "--seed", 5, "--json")
    assert (code, value["verdict"], value["seed"]) == (0, "proven", 5)
    assert value["partitions"][0]["second"]["to_txn"].isdecimal()
    code, text = command("drill", rig.directory)
    assert code == 0
    assert "proven in" in text
    assert "report:" in text
    rig.batch(0, [(DRIFT, [0])])
    rig.snapshot(0)
    code, (report, told) = command.values("drill", rig.directory)
    assert code == 16
    assert report["verdict"] == "diverged"
    assert told["error"]["exit_code"] == 16


def test_command_says_what_was_not_compared(tmp_path: Path, command: Command) -> None:
    """A node that never had a call is no damaged one, but "proven" alone would say too much of it."""
    with cmdlog.open(tmp_path / "idle", bank.db, partitions=2, segments=4, segment_bytes=4 << 20):
        pass
    code, value = command("drill", tmp_path / "idle", "--json")
    assert (code, value["verdict"], value["nothing_to_compare"]) == (0, "proven", [0, 1])
    code, text = command("drill", tmp_path / "idle")
    assert (code, text.count("nothing to compare: there is no snapshot")) == (0, 2)
    assert "nothing to compare in partition 0, 1: no calls were replayed" in " ".join(text.split())
    assert "one snapshot alone" not in text


def test_directory_that_is_no_nodes_gets_no_folder(tmp_path: Path, command: Command) -> None:
    """A typing error in the path leaves nothing there."""
    (tmp_path / "other").mkdir()
    code, _ = command("drill", tmp_path / "other", "--json")
    assert code == 1
    assert os.listdir(tmp_path / "other") == []


@pytest.mark.slow
def test_terminated_process_leaves_nothing(rig: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM, as a stopping node sends it, and as the kernel does once the node is gone."""
    (tmp_path / "slow_drill.py").write_text(_SLOW_DRILL)
    monkeypatch.syspath_prepend(tmp_path)
    folder = Path(rig.directory, FOLDER)
    for way in ("signal", "pipe"):
        with ChildProcess("slow_drill", rig.directory, stdout=PIPE, parent_ended=signal.SIGTERM) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"restoring\n"
            assert [name for name in os.listdir(folder) if name.startswith("tmp-")]
            if way == "signal":
                process.terminate()
            else:
                process._let_go()
            assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert os.listdir(folder) == ["lock"]


_SLOW_DRILL = """
import signal
from replay.drill import drill, proofs
def restore(snapshot, target):
    print("restoring", flush=True)
    signal.pause()
def main():
    proofs.restore = restore
    drill.lower_priority = lambda: None
    return drill.main()
"""


def test_command_says_where_the_log_begins(tmp_path: Path, command: Command) -> None:
    """A recovered node has one snapshot, and no state before it."""
    with cmdlog.open(tmp_path / "node", bank.db, partitions=1, segments=4, segment_bytes=4 << 20) as opened:
        opened.call("open_accounts", branch=1, first=0, count=100, savings=5, checking=5)
    assert command("recover", tmp_path / "node", "--to", tmp_path / "made")[0] == 0
    code, text = command("drill", tmp_path / "made")
    assert code == 0
    assert "nothing to compare: there is only one snapshot" in text
    assert "nothing older: the log begins after index" in text
    with cmdlog.open(tmp_path / "made", bank.db) as opened:
        opened.call("deposit_checking", branch=1, customer=0, amount=7)
    code, text = command("drill", tmp_path / "made")
    assert (code, "nothing to compare" in text, "there is only one snapshot" in text) == (0, False, True)
