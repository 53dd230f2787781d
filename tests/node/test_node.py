"""The node as a whole: what it refuses to open, kills, locks, rebuilding, keys over restarts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cli.server.settings_sources import CONFIG_NAME
from cmdlog.node import assembly
from cmdlog.node import boot as boot_module
from cmdlog.node.boot import OtherApplication
from cmdlog.node.clock import HybridClock
from cmdlog.node.outcome import CallOutcome
from cmdlog.node.settings import BadSetting
from cmdlog.wal.errors import Locked, WrongDirectory
from procedures import Database
from procedures.errors import SchemaConflict
from snapshot.capture.image import ImageCapture
from snapshot.errors import SnapshotFailed
from tests.node.apps import tagged
from tests.node.rig import SMALL, alive, ask, counters, kill, open_node, rows, send
from tests.waiting import PATIENCE_S, wait_for

ROOT = Path(__file__).resolve().parents[2]


def hold(directory: Path, mode: str, *settings: str) -> subprocess.Popen[str]:
    """A node in a process of its own; see apps/holder.py."""
    path = {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-m", "tests.node.apps.holder", str(directory), mode, *settings]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, env={**os.environ, **path})


def read_lines(process: subprocess.Popen[str], until: Callable[[str], bool]) -> list[str]:
    """Output up to the line that `until` accepts."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if until(line):
            return lines
    raise AssertionError(f"it ended after {lines[-3:]}")


def end(process: subprocess.Popen[str]) -> str:
    """SIGKILL; what it had still written."""
    kill(process.pid)
    process.wait(timeout=PATIENCE_S)
    assert process.stdout is not None
    with process.stdout as stdout:  # not communicate(): it would pass over what was read ahead
        return stdout.read()


def test_states_are_rebuilt_from_the_log(tmp_path: Path) -> None:
    """Missing, older and whole state files give the same answers after a restart, and ids go on growing."""
    data = tmp_path / "data"
    node = open_node(data, inline=True, partitions=2)
    for n in range(50):
        ask(node, "bump", id=n % 5, amount=n)
    ask(node, "set_rate", name="r", value=3)
    node.close()
    shutil.copytree(data / "state", tmp_path / "old")
    node = open_node(data, inline=True)
    for n in range(50):
        ask(node, "bump", id=n % 5, amount=1000)
    ask(node, "set_rate", name="r", value=4)
    held, last = counters(node), node.clock.last
    node.close()
    for how in ("missing", "older", "whole"):
        if how == "missing":
            shutil.rmtree(data / "state")
        if how == "older":
            shutil.rmtree(data / "state")
            shutil.copytree(tmp_path / "old", data / "state")
        node = open_node(data, inline=True)
        assert counters(node) == held
        assert [value for value, _ in ask(node, "look_everywhere", name="r")] == [4, 4]
        assert node.clock.last >= last
        last = node.clock.last
        node.close()


def test_tables_that_the_rows_do_not_allow_are_refused_before_they_are_logged(tmp_path: Path) -> None:
    """A logged schema that cannot be applied would be the end of every replay; so it is tried first, and the old code goes on."""
    data = tmp_path / "data"
    node = open_node(data, app=tagged.plain, inline=True, partitions=2)
    for number in range(8):
        ask(node, "put", id=number, tag=5)
    node.close()
    with pytest.raises(SchemaConflict, match="UNIQUE constraint"):
        open_node(data, app=tagged.unique, inline=True)
    node = open_node(data, app=tagged.plain, inline=True)
    assert ask(node, "put", id=8, tag=5) == 5
    node.close()


@pytest.mark.slow
def test_a_capture_in_an_inline_site_that_is_restored_is_told_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without that word no snapshot would ever be taken again, and the log would fill."""
    begun = threading.Event()

    def never_complete(_self: ImageCapture) -> bool:
        begun.set()
        return False

    node = open_node(tmp_path / "data", inline=True, partitions=1, site_restarts_max=1)
    with monkeypatch.context() as patched:
        patched.setattr(ImageCapture, "step", never_complete)
        asked = node._snapshots.request_snapshots([0])
        assert begun.wait(PATIENCE_S)
        failed = send(node, "exhaust", id=1).wait()
        assert isinstance(failed, CallOutcome)
        with pytest.raises(SnapshotFailed, match="site ended"):
            asked.result(PATIENCE_S)
    assert node.take_snapshot(0)[0]["index"] > 0
    node.close()


def test_a_second_node_on_the_directory_is_refused(tmp_path: Path) -> None:
    """Exit code 12, and the first one does not notice."""
    node = open_node(tmp_path / "data", inline=True)
    with pytest.raises(Locked) as refused:
        open_node(tmp_path / "data", inline=True)
    assert refused.value.exit_code == 12
    assert ask(node, "bump", id=1, amount=1) == 1
    node.close()
    open_node(tmp_path / "data", inline=True).close()


@pytest.mark.slow
def test_sites_end_with_a_killed_node_even_in_an_endless_call(tmp_path: Path) -> None:
    """SIGKILL of the node while a site hangs: the site ends, a successor opens the directory, and everything is there."""
    process = hold(tmp_path / "data", "hang", "sites=1", "call_timeout_s=600.0")
    lines = read_lines(process, lambda line: line == "hanging\n")
    pids = [int(pid) for pid in next(line for line in lines if line.startswith("pids")).split()[1:]]
    wait_for(lambda: rows(tmp_path / "data", 0, "SELECT idx FROM _cmdlog_meta") != [] and all(map(alive, pids)))
    end(process)
    wait_for(lambda: not any(map(alive, pids)))


def test_a_crash_in_creation_is_swept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that ended while its directory was made is made by the next start."""

    def broken(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("cmdlog.wal.log.write_instance", broken)
        with pytest.raises(KeyboardInterrupt):
            open_node(tmp_path / "data", inline=True)
    node = open_node(tmp_path / "data", inline=True)
    assert ask(node, "bump", id=1, amount=1) == 1
    node.close()
    assert boot_module.applied_index(str(tmp_path / "data"), 0) >= 1
    assert SMALL["segments"] == node.settings.segments


OTHER = Database("other")


def test_another_application_is_refused(tmp_path: Path) -> None:
    """By the name of its database: its procedures would work on tables that are not theirs."""
    open_node(tmp_path / "data", inline=True).close()
    with pytest.raises(OtherApplication, match="belongs to database"):
        open_node(tmp_path / "data", app=OTHER, inline=True)
    open_node(tmp_path / "data", inline=True).close()


def test_a_setting_that_was_fixed_at_creation_is_not_ignored(tmp_path: Path) -> None:
    """Leaving it out takes what the directory was made with; another value is refused by name."""
    open_node(tmp_path / "data", inline=True, partitions=3).close()
    with pytest.raises(BadSetting, match="partitions: the directory was created with 3"):
        open_node(tmp_path / "data", inline=True, partitions=7)


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    """Not even a lock is written beside them; a file is no directory; the root of a new volume is empty enough, and so is
    a folder with nothing but the settings, which are read from there."""
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.png").write_bytes(b"x")
    with pytest.raises(WrongDirectory, match=r"cat\.png"):
        open_node(tmp_path / "photos", inline=True)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["cat.png"]
    with pytest.raises(WrongDirectory, match="is a file"):
        open_node(tmp_path / "photos" / "cat.png", inline=True)
    (tmp_path / "volume" / "lost+found").mkdir(parents=True)
    (tmp_path / "volume" / CONFIG_NAME).write_text("partitions = 3\n")
    open_node(tmp_path / "volume", inline=True).close()


def test_ids_grow_over_restarts_with_the_clock_set_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that starts with its clock an hour back gives greater ids than before."""
    node = open_node(tmp_path / "data", inline=True, partitions=1)
    ids = []
    for _ in range(3):
        reply = send(node, "bump", id=1, amount=1)
        node.help()
        answer = reply.wait()
        assert isinstance(answer, CallOutcome)
        ids.append(answer.txn_id)
    node.close()

    def behind(**options: Any) -> Any:
        return HybridClock(**{**options, "wall": lambda: time.time() - 3600})

    monkeypatch.setattr(assembly, "HybridClock", behind)
    node = open_node(tmp_path / "data", inline=True)
    answer = send(node, "bump", id=1, amount=1).wait()
    assert isinstance(answer, CallOutcome)
    assert [*ids, answer.txn_id] == sorted({*ids, answer.txn_id})
    node.close()
