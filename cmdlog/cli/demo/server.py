"""The demo's server: real processes, started, watched, killed without warning, started again.

One rule: whatever happens, no process that was started here outlives the demo. The server leads a session of its own, so Ctrl-C
on the terminal reaches the demo alone, and one `killpg` reaches the server with all its sites.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import IO, Any, Final

import orjson

from cmdlog.cli.cli_errors import CommandFailed

BANK: Final = "procedures.samples.bank:db"
READY_TIMEOUT_S: Final = 60.0
END_TIMEOUT_S: Final = 20.0
RECOVER_TIMEOUT_S: Final = 300.0
LOG_TAIL_BYTES: Final = 2000


class ServerProcess:
    """One life of `cmdlog serve`."""

    def __init__(self, data: Path, *, partitions: int, log: Path, application: str = BANK) -> None:
        self._log = log
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        command = [
            *program("serve", application, "--data", str(data), "--partitions", str(partitions)),
            *("--host", "127.0.0.1", "--port", "0", "--log-format", "json", "--json"),
            *("--preallocate", "ahead"),  # the directory goes at the end, and need not take a gibibyte until then
        ]
        began = time.monotonic()
        with log.open("ab") as errors:
            self._popen = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                start_new_session=True, env=environment(), cwd=log.parent,
            )  # fmt: skip
        assert self._popen.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._popen.stdout,), name="demo-server-output", daemon=True)
        self._reader.start()
        try:
            self.url: str = self._wait("listening")["url"]
            self._wait("ready")
        except BaseException:
            self.kill([])
            raise
        self.ready_s = time.monotonic() - began

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def kill(self, sites: list[int]) -> int:
        """SIGKILL to the node and its sites; returns when they are gone. How many processes that were."""
        watched = [fd for pid in (self.pid, *sites) if (fd := _watch(pid)) is not None]
        try:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            for fd in watched:
                if not select.select([fd], [], [], END_TIMEOUT_S)[0]:
                    raise CommandFailed(f"a process of the server survived SIGKILL for {END_TIMEOUT_S:g} s")
        finally:
            for fd in watched:
                os.close(fd)
        self._popen.wait(END_TIMEOUT_S)
        self._reader.join(END_TIMEOUT_S)  # the last holder of the pipe is gone
        return len(watched)

    def stop(self) -> None:
        """An orderly end by SIGTERM. Raises: CommandFailed when the server says that something was wrong."""
        self._popen.send_signal(signal.SIGTERM)
        try:
            code = self._popen.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise CommandFailed(
                f"the server did not stop within {END_TIMEOUT_S:g} s of SIGTERM", hint=self.last_words()
            ) from None
        if code:
            raise CommandFailed(f"the server ended with exit code {code}", hint=self.last_words())

    def last_words(self) -> str:
        """The end of what the server wrote about itself."""
        return _tail(self._log)

    def _wait(self, event: str) -> dict[str, Any]:
        deadline = time.monotonic() + READY_TIMEOUT_S
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise CommandFailed(
                    f"the server did not report {event} within {READY_TIMEOUT_S:g} s", hint=self.last_words()
                ) from None
            if line is None:
                code = self._popen.wait(END_TIMEOUT_S)
                raise CommandFailed(f"the server ended with exit code {code} before it was {event}", hint=self.last_words())
            if line.get("event") == event:
                return line

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                with contextlib.suppress(orjson.JSONDecodeError):
                    self._lines.put(orjson.loads(line))
        self._lines.put(None)


def run_recover(data: Path, log: Path, *options: str) -> tuple[dict[str, Any], float]:
    """`cmdlog recover DIR --json` as a process; its result and its seconds. Raises: CommandFailed."""
    began = time.monotonic()
    with log.open("ab") as errors:
        done = subprocess.run(
            program("recover", str(data), "--json", *options), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
            env=environment(), cwd=log.parent, timeout=RECOVER_TIMEOUT_S, check=False,
        )  # fmt: skip
    lines = [orjson.loads(line) for line in done.stdout.splitlines() if line.startswith(b"{")]
    if done.returncode:
        said = lines[-1].get("error", {}).get("message", "") if lines else ""
        raise CommandFailed(f"cmdlog recover ended with exit code {done.returncode}: {said}", hint=_tail(log))
    return (lines[-1] if lines else {}), time.monotonic() - began


def program(*arguments: str) -> list[str]:
    """The command line of this very program."""
    return [sys.executable, "-m", "cmdlog", *arguments]


def environment() -> dict[str, str]:
    """Ours without settings of the node: the demo runs with defaults, wherever it is started."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}
    kept["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    return kept


def _tail(log: Path) -> str:
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()


def _watch(pid: int) -> int | None:
    """A descriptor that becomes readable when the process has ended; None when it has already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
