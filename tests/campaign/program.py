"""The program as an operator runs it: `cmdlog serve` as a process to be killed, and every other command to its end.

One rule: only public interfaces, that is the command line, HTTP and its client. A planted defect (`tests.campaign.mutants`) is
the one thing that may be put between.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cmdlog
from cmdlog.cli.app import run
from cmdlog.cli.output import out
from cmdlog.client import RetryPolicy
from tests.campaign.truth import Wrong
from tests.waiting import PATIENCE_S

READY_S: Final = PATIENCE_S  # of a start, with all that it replays, on a busy machine
COMMAND_S: Final = PATIENCE_S
ANSWER_S: Final = PATIENCE_S
LAST_WORDS: Final = 600  # characters


def arguments_of(mutant: str) -> list[str]:
    """How the program is started."""
    return [sys.executable, "-m", *(["cmdlog.cli"] if not mutant else ["tests.campaign.mutants", mutant])]


@dataclass(frozen=True, slots=True)
class Ran:
    """A command that has ended."""

    code: int
    values: list[Any]
    errors: str

    @property
    def error(self) -> Mapping[str, Any]:
        """Of `--json`; {} where there is none."""
        found: Mapping[str, Any] = self.values[-1].get("error", {}) if self.values and isinstance(self.values[-1], dict) else {}
        return found


class Program:
    """Where the application lies, and what every process is given."""

    def __init__(self, apps: Path, mutant: str = "") -> None:
        self._mutant = mutant
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(apps), os.getcwd(), os.environ.get("PYTHONPATH", "")]),
        }

    def run(self, *words: object) -> Ran:
        """A command, with `--json` if it is among the words: in this process, which has everything imported already.

        A drill takes only idle time, and so it has a process of its own; so has a program with a planted defect.
        """
        if not self._mutant and words[0] != "drill":
            return _run_here(words)
        command = [*arguments_of(self._mutant), *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=COMMAND_S, check=False)
        return Ran(done.returncode, _values(done.stdout), done.stderr[-LAST_WORDS:])

    def serve(self, directory: Path, app: str, settings: Mapping[str, Any]) -> Server:
        """Starts a node and waits until it serves. Raises: Wrong when it does not."""
        words = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
        command = [*arguments_of(self._mutant), "serve", app, "--data", str(directory), "--port", "0", "--json", *words]
        return Server(command, self.environment, directory.with_name("server.log"))


def _run_here(words: Sequence[object]) -> Ran:
    results, errors, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv, out.json = ["cmdlog", *map(str, words)], False
    try:
        with contextlib.redirect_stdout(results), contextlib.redirect_stderr(errors):
            run()
    except SystemExit as end:
        return Ran(int(end.code or 0), _values(results.getvalue()), errors.getvalue()[-LAST_WORDS:])
    finally:
        sys.argv = before
    raise AssertionError("the program ends its process")


def _values(text: str) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.startswith(("{", "["))]


class Server:
    """A running `cmdlog serve`."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        self.began_millis = int(time.time() * 1000)  # every transaction of this life is younger
        with log.open("ab") as stderr:
            self._process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=stderr)
        self.url = ""
        try:
            self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _wait_until_ready(self) -> None:
        assert self._process.stdout is not None
        deadline = time.monotonic() + READY_S
        for line in self._process.stdout:
            value = json.loads(line)
            self.url = value.get("url", self.url)
            if value.get("event") == "ready":
                return
            if "error" in value:
                raise Wrong(f"the node does not start: {value['error']}")
            if time.monotonic() > deadline:
                raise Wrong(f"the node does not start in {READY_S:g} s: {self.last_words()}")
        raise Wrong(f"the node does not start: exit code {self._process.wait()}: {self.last_words()}")

    def client(self, *, attempts_max: int = 1) -> cmdlog.Client:
        """Which says at once what a single attempt came to, unless it is given more of them."""
        policy = RetryPolicy(attempt_s=ANSWER_S, attempts_max=attempts_max)
        return cmdlog.Client(self.url, retry=policy, timeout_s=ANSWER_S)

    def kill(self) -> None:
        """SIGKILL: what no fsync has is in the page cache."""
        self._process.kill()
        self._reap()

    def stop(self) -> None:
        """SIGTERM, in order. Raises: Wrong when it does not end well."""
        self._process.send_signal(signal.SIGTERM)
        try:
            code = self._process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise Wrong(f"the node does not stop in {READY_S:g} s: {self.last_words()}") from None
        self._reap()
        if code:
            raise Wrong(f"the node stopped with exit code {code}: {self.last_words()}")

    def last_words(self) -> str:
        return self._log.read_text(errors="replace")[-LAST_WORDS:]

    def _reap(self) -> None:
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
