"""Ctrl-C and SIGTERM: every command ends with 130 or 143 after saying what is left; misuse is JSON where JSON is wanted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cli import app
from cmdlog.cli.signals import BrokenOff, report_on_interrupt
from procedures.errors import EnvironmentFault
from replay.diff import diff
from tests.commands import Command
from tests.replay.rig import DEPOSIT, TRAP, Rig, balances_of
from tests.waiting import PATIENCE_S, wait_for


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A stopped node whose last call of partition 1 hangs where the environment says so."""
    rig = Rig(tmp_path)
    rig.deposits(4)
    rig.batch(1, [(TRAP, [10])])
    rig.close()
    return rig


def started(*arguments: object) -> subprocess.Popen[str]:
    """The program, beside a call that hangs."""
    return subprocess.Popen(
        [sys.executable, "-m", "cmdlog.cli", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "LEDGER_TRAP": "hang", "PYTHONPATH": str(Path(__file__).resolve().parents[2])},
    )


def signalled(process: subprocess.Popen[str], number: signal.Signals, ready: Callable[[], bool]) -> tuple[int, str, str]:
    """Exit code, standard output and error of a process that gets the signal when it is ready."""
    wait_for(lambda: ready() or process.poll() is not None)
    process.send_signal(number)
    printed, errors = process.communicate(timeout=PATIENCE_S)
    return process.returncode, printed, errors


def replays(folder: Path) -> Callable[[], bool]:
    """Whether both states of the directory stand in front of the call that hangs: nothing but that is left to do."""

    def look() -> bool:
        try:
            return len(json.loads((folder / "state" / "trust.json").read_bytes())["files"]) == 2
        except FileNotFoundError:
            return False

    return look


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_recovery_says_how_to_go_on(rig: Rig, tmp_path: Path, number: signal.Signals) -> None:
    """To another place and in place, as JSON and in words; what is left is gone on with."""
    process = started("recover", rig.directory, "--to", tmp_path / "out", "--json")
    code, printed, _ = signalled(process, number, replays(tmp_path / "out"))
    failed = json.loads(printed)["error"]
    assert (code, failed["exit_code"]) == (128 + number, 128 + number)
    assert "the recovery to" in failed["message"]
    assert "the same command" in failed["hint"]
    rig.forget_state(0)
    rig.forget_state(1)
    code, printed, errors = signalled(started("recover", rig.directory), number, replays(Path(rig.directory)))
    assert (code, printed) == (128 + number, "")
    assert {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}[number] in errors
    assert "the same command resumes there" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_fork_says_how_to_go_on_wherever_it_is(
    rig: Rig, command: Command, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Both signals in the same words, whether it still reads or has begun to write."""

    def signalled(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), number)
        signal.pause()  # the handler ends it

    target = f"{rig.directory}.fork"
    for where in ("_ran_before", "find_remaining_log"):
        monkeypatch.setattr(f"replay.fork.fork.{where}", signalled)
        arguments = ("--at", rig.history[-2][0], "--app", "tests.node.apps.faulty:db", "--to", target, "--json")
        code, failed = command("fork", rig.directory, *arguments)
        assert (code, "the fork to" in failed["error"]["message"]) == (128 + number, True), failed
        assert "the same command" in failed["error"]["hint"]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["int", "term"])
def test_history_says_from_where_to_go_on(tmp_path: Path, number: signal.Signals) -> None:
    """The reader of a pipe that is ended has every call up to the one that is named, and the error last."""
    rig = Rig(tmp_path)
    for _ in range(40):
        rig.batch(0, [(DEPOSIT, [n % 3, n]) for n in range(50)])
    rig.close()
    process = started("log", "history", rig.directory, "--json")
    assert process.stdout is not None
    first = os.read(process.stdout.fileno(), 50).decode()  # the pipe holds some hundred lines; then the process waits
    code, printed, _ = signalled(process, number, lambda: True)
    *calls, last = [json.loads(line) for line in (first + printed).splitlines()]
    assert (code, last["error"]["exit_code"]) == (128 + number, 128 + number)
    told = [int(call["txn_id"]) for call in calls]
    goes_on = next(
        txn for txn in told[-1:] + [txn for txn, _ in rig.history if txn > told[-1]] if str(txn) in last["error"]["hint"]
    )
    assert goes_on in [txn for txn, _ in rig.history if txn >= told[-1]][:2]
    assert len(calls) < 2000


def test_comparison_and_export_leave_nothing(rig: Rig, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files of differences nor of tables, nor what was made on the way to them."""

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(diff, "_changes", stop)
    code, failed = command("diff", rig.directory, rig.directory, "--parquet", tmp_path / "files", "--json")
    assert (code, failed["error"]["exit_code"]) == (130, 130)
    assert "neither side was changed" in failed["error"]["message"]
    monkeypatch.setattr("replay.recover.to_directory.execute", stop)
    code, text = command("snapshot", "export", rig.directory, "--to", tmp_path / "tables", "--point", rig.history[-1][0])
    assert (code, "nothing was written" in text) == (130, True)
    assert [path.name for path in tmp_path.iterdir()] == ["node"]
    assert balances_of(rig.directory) == rig.balances


def test_any_other_command_ends_in_the_same_way(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Also where nobody has words of its own for it."""

    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("cmdlog.wal.dump.verify_log", stop)
    code, failed = command("log", "verify", tmp_path, "--json")
    assert (code, failed["error"]) == (130, {"kind": "BrokenOff", "message": "interrupted", "hint": "", "exit_code": 130})


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("recover", "d", "--nothing", "--json"), "--nothing"),
        (("recover", "--json"), "DIR"),
        (("--json", "recover", "d", "--partitions", "many"), "--partitions"),
        (("fork", "d", "--json", "--at", "start"), "--app"),
        (("log", "history", "--partition", "x", "d", "--json"), "--partition"),
        (("no-such-command", "--json"), "no-such-command"),
        (("log", "no-such-command", "--json"), "no-such-command"),
    ],
)
def test_misuse_is_told_as_json(
    command: Command, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    """Wherever `--json` stands, one object on standard output and nothing else, with exit code 2 and where help is."""
    code, failed = command(*arguments)
    error = failed["error"]
    assert (code, error["kind"], error["exit_code"]) == (2, "UsageError", 2)
    assert says in error["message"]
    assert "--help" in error["hint"]


def test_misuse_without_json_shows_the_usage(command: Command) -> None:
    """For people as ever."""
    code, text = command("recover", "d", "--nothing")
    assert code == 2
    assert "Usage" in text
    assert "--nothing" in text


FAULT = EnvironmentFault("interrupted", txn_id=1, procedure="deposit", position=0, cause="KeyboardInterrupt()")


def on_the_way_out(error: Exception) -> None:
    """As a library and the executor of procedures do."""
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt as reached:
        raise error from reached


@pytest.mark.parametrize("error", [RuntimeError("the other process is gone"), FAULT])
def test_failure_on_the_way_out_of_a_signal_is_no_defect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """A signal to the whole process group ends what the command needs, too: it says so, and shows no traceback."""
    monkeypatch.setattr(app, "command_parser", lambda _: lambda **_: on_the_way_out(error))
    with pytest.raises(SystemExit) as left:
        app.run()
    assert left.value.code == 130
    assert "interrupted" in capsys.readouterr().err


def test_signal_that_reached_a_call_ends_the_command_in_its_own_words() -> None:
    """The procedure's error comes out of the interruption; the command says what is left all the same, and of others nothing."""
    with pytest.raises(BrokenOff, match="interrupted; nothing is left"), report_on_interrupt("nothing is left"):
        on_the_way_out(FAULT)
    with pytest.raises(OSError, match="no memory"), report_on_interrupt("nothing is left"):
        raise OSError("no memory")
