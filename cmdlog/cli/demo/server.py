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
import threading
import time
from pathlib import Path
from typing import IO, Any, Final

import orjson

from cmdlog.child_process import PIPE, ChildProcess, without_settings
from cmdlog.cli.cli_errors import CommandFailed

BANK: Final = "procedures.samples.bank:db"
READY_TIMEOUT_S: Final = 240.0  # several nodes start at once, on a machine that may do something else
END_TIMEOUT_S: Final = 120.0
COMMAND_TIMEOUT_S: Final = 300.0
LOG_TAIL_BYTES: Final = 2000


class LaunchedServer:
    """One life of `cmdlog serve`, from its start; `url` and `ready_s` are known once it is ready."""

    def __init__(self, data: Path, *options: str, log: Path, application: str = BANK) -> None:
        """`options` of `serve`, where they differ from the defaults."""
        self._log = log
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self.url, self.ready_s = "", 0.0
        command = [
            *("serve", application, "--data", str(data), "--host", "127.0.0.1", "--log-format", "json", "--json"),
            *("--preallocate", "ahead"),  # the directory goes at the end, and need not take a gibibyte until then
            *options,
        ]
        self._began = time.monotonic()
        with log.open("ab") as errors:
            self._process = _cmdlog(*command, errors=errors, cwd=log.parent)
        assert self._process.stdout is not None
        self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), name="demo-server-output", daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Until it serves calls. Raises: CommandFailed when it does not; then it is gone."""
        try:
            self.url = self._wait("listening")["url"]
            self._wait("ready")
        except BaseException:
            self.kill([])
            raise
        self.ready_s = time.monotonic() - self._began

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def kill(self, sites: list[int]) -> int:
        """SIGKILL to the node and its sites; returns when they are gone. How many processes that were."""
        watched = [fd for pid in (self.pid, *sites) if (fd := _watch(pid)) is not None]
        try:
            self._process.kill()
            for fd in watched:
                if not select.select([fd], [], [], END_TIMEOUT_S)[0]:
                    raise CommandFailed(f"a process of the server survived SIGKILL for {END_TIMEOUT_S:g} s")
        finally:
            for fd in watched:
                os.close(fd)
        self._reader.join(END_TIMEOUT_S)  # the last holder of the pipe is gone
        self._process.close()
        return len(watched)

    def signal(self, number: signal.Signals) -> None:
        """Sends it to the node's process, and waits for nothing."""
        self._process.send_signal(number)

    def stop(self) -> None:
        """An orderly end by SIGTERM. Raises: CommandFailed when the server ends with an error."""
        self.signal(signal.SIGTERM)
        if (code := self._process.end_within(END_TIMEOUT_S)) is None:
            raise CommandFailed(f"the server did not stop within {END_TIMEOUT_S:g} s of SIGTERM", hint=self.last_words())
        self._reader.join(END_TIMEOUT_S)
        self._process.close()
        if code:
            raise CommandFailed(f"the server ended with exit code {code}", hint=self.last_words())

    def last_words(self) -> str:
        """The end of what the server wrote about itself."""
        return _tail(self._log)

    def _wait(self, event: str) -> dict[str, Any]:
        deadline, why = time.monotonic() + READY_TIMEOUT_S, ""
        while True:
            try:
                line = self._lines.get(timeout=max(deadline - time.monotonic(), 0.0))
            except queue.Empty:
                raise CommandFailed(
                    f"the server did not report {event} within {READY_TIMEOUT_S:g} s", hint=self.last_words()
                ) from None
            if line is None:
                code = self._process.wait(END_TIMEOUT_S)
                raise CommandFailed(f"the server ended with exit code {code} before it was {event}{why}", hint=self.last_words())
            if line.get("event") == event:
                return line
            if "error" in line:
                why = f": {line['error'].get('message', '')}"

    def _read(self, stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                with contextlib.suppress(orjson.JSONDecodeError):
                    self._lines.put(orjson.loads(line))
        self._lines.put(None)


def run_command(*arguments: str, log: Path) -> tuple[dict[str, Any], float]:
    """A command with `--json` as a process; its result and its seconds. Raises: CommandFailed."""
    began = time.monotonic()
    with log.open("ab") as errors, _cmdlog(*arguments, "--json", errors=errors, cwd=log.parent) as process:
        ended = process.finish(patience_s=COMMAND_TIMEOUT_S)
    if ended is None:
        raise CommandFailed(f"cmdlog {arguments[0]} did not end within {COMMAND_TIMEOUT_S:g} s", hint=_tail(log))
    lines = [orjson.loads(line) for line in ended.output.splitlines() if line.startswith(b"{")]
    if ended.code:
        said = lines[-1].get("error", {}).get("message", "") if lines else ""
        raise CommandFailed(f"cmdlog {arguments[0]} ended with exit code {ended.code}: {said}", hint=_tail(log))
    return (lines[-1] if lines else {}), time.monotonic() - began


def _cmdlog(*arguments: str, errors: IO[bytes], cwd: Path) -> ChildProcess:
    """This very program, with defaults wherever it is started."""
    return ChildProcess("cmdlog.cli", *arguments, environment=without_settings(), stdout=PIPE, stderr=errors, cwd=cwd)


def _tail(log: Path) -> str:
    return log.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()


def _watch(pid: int) -> int | None:
    """A descriptor that becomes readable when the process has ended; None when it has already."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return None
