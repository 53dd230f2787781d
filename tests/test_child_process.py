"""Child processes: what they are started with, and that they end when they should, whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog import child_process
from cmdlog.child_process import PIPE, ChildEnd, ChildProcess, encode_order, last_answer, without_settings
from tests.processes import is_gone
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow  # processes are started

TIMEOUT_S = PATIENCE_S
LARGE_BYTES = 3 << 20  # many times what a pipe holds
LOOK_S = 0.02
COUNTS = """
import json, sys

def main():
    order = sys.stdin.buffer.read()
    sys.stdout.write(f"{len(order)}\\n{json.loads(order)}\\n")
    sys.stdout.flush()
"""
STUBBORN = """
import os, signal, sys, time

def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    print(os.getpid(), flush=True)
    while True:
        time.sleep(100)
"""
TIDYING = """
import pathlib, signal, sys

def end(*_):
    pathlib.Path(sys.argv[1]).unlink()
    sys.exit(7)

def main():
    signal.signal(signal.SIGTERM, end)
    pathlib.Path(sys.argv[1]).touch()
    print("made", flush=True)
    signal.pause()
"""
ECHO = """
import json, os, sys

def main():
    for line in sys.stdin:
        facts = {"pid": os.getpid(), "group": os.getpgrp(), "seed": os.environ.get("PYTHONHASHSEED"), "arguments": sys.argv[1:]}
        print(json.dumps({"order": json.loads(line), **facts}))
"""
WITH_A_CHILD = """
import subprocess, sys

def main():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    print(child.pid, flush=True)
    child.wait()
"""
STARTS_AGAIN = """
import os, sys, time

def main():
    if sys.argv[1:] == ["first"]:
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:], "again"])
    print("again", flush=True)
    time.sleep(1000)
"""
PARENT = """
import sys, time
from cmdlog.child_process import ChildProcess
child = ChildProcess(sys.argv[1])
time.sleep(1000)
"""
Made = Callable[[str], str]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Makes a module that processes of this test can run, and returns its name."""

    def make(source: str) -> str:
        (tmp_path / "planted_child.py").write_text(source)
        return "planted_child"

    monkeypatch.syspath_prepend(tmp_path)
    return make


def first_line(process: subprocess.Popen[Any]) -> str:
    """What a process says first."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return (line if isinstance(line, str) else line.decode()).strip()


def test_child_of_a_killed_parent_ends(made: Made, tmp_path: Path) -> None:
    """SIGKILL gives the parent no chance to end its child, which blocks every signal that can be blocked."""
    command = [sys.executable, "-c", PARENT, made(STUBBORN)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        child = int(first_line(parent))
        assert not is_gone(child)
        parent.kill()
        wait_for(partial(is_gone, child))


def test_error_that_ends_a_child_can_be_read_by_its_parent(made: Made) -> None:
    """In one line, beside the traceback on standard error; a child that ends well leaves none."""
    with ChildProcess(made("import missing_module\ndef main(): pass"), stderr=PIPE) as child:
        assert b"Traceback" in child.communicate(timeout=TIMEOUT_S)[1]
        assert child.last_error() == "ModuleNotFoundError: No module named 'missing_module'"
    with ChildProcess(made("def main(): return 3")) as child:
        assert child.wait(TIMEOUT_S) == 3
        assert child.last_error() == ""


def test_child_finds_what_its_parent_finds(made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package of its parent's current folder hides none, as it does not in the parent."""
    module = made("import replay.errors\ndef main(): pass")
    (tmp_path / "work" / "replay").mkdir(parents=True)
    (tmp_path / "work" / "replay" / "__init__.py").touch()
    monkeypatch.chdir(tmp_path / "work")
    with ChildProcess(module) as child:
        assert child.wait(TIMEOUT_S) == 0


def test_child_whose_parent_ended_before_it_ran_does_nothing(made: Made, tmp_path: Path) -> None:
    """It looks at the pipe before it imports its module: no moment is left in which it could go on alone."""
    module = made("import pathlib, sys; pathlib.Path(sys.argv[1]).touch()\ndef main(): pass")
    reading, writing = os.pipe()
    os.close(writing)
    command = [sys.executable, "-m", "cmdlog.die_with_parent", str(reading), "9", "-1", module, str(tmp_path / "ran")]
    with subprocess.Popen(command, pass_fds=(reading,), process_group=0) as child:
        os.close(reading)
        assert child.wait(TIMEOUT_S) == -signal.SIGKILL
    assert not (tmp_path / "ran").exists()


def test_child_that_has_to_tidy_up_gets_the_signal_it_asked_for(made: Made, tmp_path: Path) -> None:
    """SIGTERM from the kernel is as good as SIGTERM from the parent: files go, and the exit code is the child's own."""
    with ChildProcess(made(TIDYING), str(tmp_path / "file"), stdout=PIPE, parent_ended=signal.SIGTERM) as child:
        assert first_line(child) == "made"
        child._let_go()
        assert child.wait(TIMEOUT_S) == 7
    assert not (tmp_path / "file").exists()


def test_program_that_starts_itself_again_is_still_watched(made: Made) -> None:
    """`exec` keeps the process, and so it keeps the pipe."""
    with ChildProcess(made(STARTS_AGAIN), "first", stdout=PIPE) as child:
        assert first_line(child) == "again"
        child._let_go()
        assert child.wait(TIMEOUT_S) == -signal.SIGKILL


def test_hung_child_is_killed_after_its_time(made: Made) -> None:
    """`end` kills what does not end by itself, with a signal that the child cannot block."""
    with ChildProcess(made(STUBBORN), stdout=PIPE) as child:
        first_line(child)
        child.terminate()
        assert child.end(after_s=0.2) == -signal.SIGKILL


def test_child_that_ends_in_time_keeps_its_exit_code(made: Made) -> None:
    """What ended by itself was not killed."""
    with ChildProcess(made("def main(): return 3")) as child:
        assert child.end(after_s=TIMEOUT_S) == 3
    assert child.returncode == 3


def test_kill_ends_what_the_child_has_started(made: Made) -> None:
    """The group goes as a whole; the group of the parent is another one."""
    with ChildProcess(made(WITH_A_CHILD), stdout=PIPE) as child:
        grandchild = int(first_line(child))
    assert child.returncode == -signal.SIGKILL
    wait_for(partial(is_gone, grandchild))


def test_order_is_answered_line_by_line(made: Made) -> None:
    """Orders are lines of JSON, also where a part of one was encoded elsewhere; arguments, seed and group are as asked for."""
    with ChildProcess(made(ECHO), "a", "b c", hash_seed="17", stdin=PIPE, stdout=PIPE) as child:
        said = [orjson.loads(child.ask(order) or b"") for order in ({"of": {1: "one"}}, [orjson.Fragment(b'"fragment"\n')])]
        assert [answer["order"] for answer in said] == [{"of": {"1": "one"}}, ["fragment"]]
        assert said[0] == {**said[1], "order": said[0]["order"]}
        del said[0]["order"]
        assert said[0] == {"pid": child.pid, "group": child.pid, "seed": "17", "arguments": ["a", "b c"]}


@pytest.mark.parametrize("late_s", [0.0, 3 * LOOK_S], ids=["early", "late"])
def test_order_of_any_size_reaches_a_child_whenever_it_reads(made: Made, late_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Far more than a pipe holds, both ways; a child that begins to read long after the first look has all of it."""
    monkeypatch.setattr(child_process, "LOOK_EVERY_S", LOOK_S)
    text = "x" * LARGE_BYTES
    source = f"import time\ntime.sleep({late_s})\n" + COUNTS
    with ChildProcess(made(source), stdin=encode_order(text), stdout=PIPE) as child:
        ended = child.finish(patience_s=TIMEOUT_S)
        assert ended == ChildEnd(0, b"%d\n" % (LARGE_BYTES + 3) + text.encode() + b"\n", b"")
    with ChildProcess(made(source.replace("read()", "readline()")), stdin=PIPE, stdout=PIPE) as child:
        assert child.ask(text) == b"%d\n" % (LARGE_BYTES + 3) + text.encode() + b"\n"


@pytest.mark.parametrize("when", ["before it reads", "while it answers"])
def test_child_that_is_given_up_is_dead(made: Made, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it hangs in, by the caller's wish or its patience; neither a reader nor a writer is left to wait for it."""
    monkeypatch.setattr(child_process, "LOOK_EVERY_S", LOOK_S)
    half = "sys.stdout.write('half'); sys.stdout.flush();" if when == "while it answers" else ""
    source = f"import sys, time\ndef main():\n    {half} time.sleep(1000)"
    looks = iter([False] * 3)
    with ChildProcess(made(source), stdin=b"x" * LARGE_BYTES, stdout=PIPE) as child:
        assert child.finish(given_up=lambda: next(looks, True)) is None
        assert child.returncode == -signal.SIGKILL
    with ChildProcess(made(source), stdout=PIPE, stderr=PIPE) as child:
        assert child.finish(patience_s=0.05) is None
        assert child.returncode == -signal.SIGKILL
    looks = iter([False] * 3)
    with ChildProcess(made(source), stdin=PIPE, stdout=PIPE) as child:
        assert child.ask("x" * LARGE_BYTES, given_up=lambda: next(looks, True)) is None
        assert child.returncode == -signal.SIGKILL


def test_what_a_child_has_started_does_not_hold_up_its_answer(made: Made) -> None:
    """It may keep the pipes for ever: what counts is that the child itself has ended."""
    source = WITH_A_CHILD.replace("child.wait()", "")
    with ChildProcess(made(source), stdout=PIPE, stderr=PIPE) as child:
        ended = child.finish(patience_s=TIMEOUT_S)
    assert ended is not None
    os.kill(int(ended.output), signal.SIGKILL)


def test_order_to_a_child_that_has_ended_fails(made: Made) -> None:
    """The caller learns it by an error, and closing tries no second time to send what is left."""
    with ChildProcess(made("def main(): return 0"), stdin=PIPE, stdout=PIPE) as child:
        child.wait()
        with pytest.raises((BrokenPipeError, EOFError)):
            child.ask("anything")
    assert child.returncode == 0


@pytest.mark.usefixtures("cold_start")
def test_closed_child_leaves_no_descriptor(made: Made) -> None:
    """Whether it ran, ended before, or could not be started; to close it twice does nothing."""
    module = made("def main(): return 0")
    before = os.listdir("/proc/self/fd")
    for after_s in (0.0, TIMEOUT_S):
        child = ChildProcess(module, stdin=PIPE, stdout=PIPE, stderr=PIPE)
        child.end(after_s=after_s)
        child.close()
        child.close()
    with pytest.raises(FileNotFoundError):
        ChildProcess(module, cwd=Path("/missing"))
    wait_for(lambda: os.listdir("/proc/self/fd") == before)  # threads of other tests may end late


def test_settings_of_this_process_are_not_passed_to_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is started for a demo or a test has the defaults."""
    monkeypatch.setenv("CMDLOG_PARTITIONS", "7")
    monkeypatch.setenv("SOMETHING_ELSE", "stays")
    kept = without_settings()
    assert ("CMDLOG_PARTITIONS" in kept, kept["SOMETHING_ELSE"]) == (False, "stays")


@pytest.mark.parametrize(
    ("output", "answer"),
    [(b"noise\n" + b'{"a": 1}\n', {"a": 1}), (b"", None), (b"Traceback", None), (b"[1]\n", None)],
)
def test_last_answer_is_an_object_or_nothing(output: bytes, answer: dict[str, int] | None) -> None:
    """A process that ended before its answer may have printed anything."""
    assert last_answer(output) == answer
