"""`cmdlog serve` before its server has taken over."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from structlog.testing import capture_logs

from cmdlog.cli.cli_errors import explain
from cmdlog.cli.server import serve
from cmdlog.cli.server.serve import naming, stopped_in_order
from cmdlog.cli.server.start_report import StartReport, tell_start
from cmdlog.member.rejoin.life_end import CopyNeeded
from cmdlog.node.node import Node
from cmdlog.node.settings import Settings
from cmdlog.node.sites.site_child import NotStarted
from cmdlog.node.sites.site_faults import SiteFault
from cmdlog.signal_handlers import STOPS, handled, stop_signals
from cmdlog.testing.server import Server
from tests.waiting import PATIENCE_S


@pytest.mark.parametrize("number", STOPS)
def test_a_stop_before_the_server_runs_ends_with_success(number: signal.Signals) -> None:
    """Nothing was begun, so nothing failed; whoever had the signal before has it again."""
    before = signal.getsignal(number)
    with pytest.raises(SystemExit) as ended, stopped_in_order():
        signal.raise_signal(number)
    assert ended.value.code == 0
    assert signal.getsignal(number) is before


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2])
def test_a_server_drains_on_every_signal_that_would_end_it(tmp_path: Path, number: signal.Signals) -> None:
    """The end of a terminal, or a tool that rotates logs, does not kill it in the middle of a call."""
    server = Server("procedures.samples.bank:db", tmp_path, partitions=1)
    try:
        server.start()
        server.client.call("open_account", branch=1, customer=1, savings=5, checking=5)
        process = server._running()
        process.send_signal(number)
        assert process.wait(PATIENCE_S) == 0
        server._gone()
        server.start()
        assert server.client.status()["partitions"]["0"]["applied"] > 0
    finally:
        server.close()


def _fill(end: int) -> None:
    os.set_blocking(end, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(end, b"x" * 4096)
    os.set_blocking(end, True)


@pytest.mark.slow
@pytest.mark.parametrize("output", ["closed", "full"])
@pytest.mark.parametrize("streams", [("stdout",), ("stdout", "stderr")], ids="+".join)
def test_a_server_drains_though_nobody_reads_its_output(tmp_path: Path, output: str, streams: tuple[str, ...]) -> None:
    """Who read it has ended, as `head -1` does, or is stuck: a stop says so there, and takes place all the same."""
    reads, writes = os.pipe()
    command = [
        sys.executable,
        "-m",
        "cmdlog.cli",
        "serve",
        "procedures.samples.bank:db",
        "--data",
        str(tmp_path),
        "--port",
        "0",
        "--json",
    ]
    errors = writes if "stderr" in streams else subprocess.DEVNULL
    with subprocess.Popen(command, stdout=writes, stderr=errors) as process, open(reads, "rb") as lines:
        try:
            assert any(b'"ready"' in line for line in lines)
            if output == "closed":
                lines.close()
            else:
                _fill(writes)
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            os.close(writes)


def test_a_signal_that_is_ignored_stays_so() -> None:
    """`nohup` makes a program ignore the end of its terminal."""
    with handled(lambda: None, signal.SIGHUP):
        assert set(stop_signals()) == set(STOPS)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        assert set(STOPS) - set(stop_signals()) == {signal.SIGHUP}


def test_an_error_without_a_path_gets_that_of_the_directory(tmp_path: Path) -> None:
    """A write to an open file that fails names none; one that is named stays."""
    for named, shown in ((None, str(tmp_path)), ("/elsewhere", "/elsewhere")):
        with pytest.raises(OSError, match="No space") as failed, naming(tmp_path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), named)
        failure = explain(failed.value)
        assert failure is not None
        assert (failure.message, failure.exit_code) == (f"{shown}: No space left on device", 14)


def test_a_site_that_does_not_start_is_no_defect() -> None:
    """What it said decides the exit code."""
    for kind, code in (("disk_full", 14), ("io", 15), ("died", 1)):
        failure = explain(NotStarted(SiteFault(kind, "planted")))
        assert failure is not None
        assert (failure.message, failure.exit_code) == ("planted", code)


@pytest.mark.parametrize("names", [[], ["LOCK", "lost+found"], None])
def test_new_data_directory_is_announced(tmp_path: Path, names: list[str] | None) -> None:
    """Who forgot --data reads which directory is made, before it is."""
    data = tmp_path / "data"
    if names is not None:
        data.mkdir()
        for name in names:
            (data / name).touch()
    with capture_logs() as logs:
        StartReport(data).announce_creation()
    assert [(entry["event"], entry["what"]) for entry in logs] == [
        ("new_data_directory", f"creating a new, empty data directory {data}")
    ]


@pytest.mark.parametrize("name", ["instance.json", "letter.txt"])
def test_directory_that_holds_something_is_not_announced_as_new(tmp_path: Path, name: str) -> None:
    """A node is opened, and anything else is refused."""
    (tmp_path / name).touch()
    with capture_logs() as logs:
        StartReport(tmp_path).announce_creation()
    assert logs == []


def test_server_is_said_to_listen_once_it_serves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before that, where it says how far it is; a new node was recovered from nothing, which needs no line per partition."""
    part = {"partition": 0, "from": "empty", "why": "the log reaches back", "replayed_calls": 0, "passed": []}
    node = cast(Node, SimpleNamespace(settings=Settings(partitions=1), routes={"bump": None}, recovery=[part]))
    report = StartReport(tmp_path)
    report.say_listening("http://127.0.0.1:8642")
    begun = f"opening {tmp_path}; until it can serve, http://127.0.0.1:8642/readyz answers 503\n"
    assert capsys.readouterr().out == begun
    report.say_ready(node)
    ready = "ready: 1 procedures on 1 partitions\ncmdlog listening on http://127.0.0.1:8642\n"
    assert capsys.readouterr().out == "partition 0: from nothing (the log reaches back), 0 calls replayed\n" + ready
    report.announce_creation()
    report.say_ready(node)
    assert capsys.readouterr().out == ready


def test_start_names_what_it_was_not_rebuilt_from() -> None:
    """A damaged snapshot that a start passed over is on the terminal with its reason."""
    passed = [{"name": "p0000-17", "why": "image.sqlite has changed"}]
    part = {"partition": 0, "from": "snapshot", "why": "the newest whole one", "replayed_calls": 1, "passed": passed}
    assert tell_start(part).endswith("1 calls replayed; not from p0000-17: image.sqlite has changed")


def test_node_that_has_to_be_copied_runs_its_command_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own process, once everything is printed: the same words, as whoever started it gave them."""
    done = list[object]()
    monkeypatch.setattr(serve, "end_output", lambda: done.append("printed"))
    monkeypatch.setattr(os, "execv", lambda *command: done.append(command))
    with serve.restarted_for_copy():
        raise CopyNeeded("no log holds what it lacks")
    assert done == ["printed", (sys.executable, [sys.executable, *sys.orig_argv[1:]])]
