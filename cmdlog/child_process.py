"""Processes that this program starts for itself: how they are started, get an order, and end.

One rule: a child never outlives its parent, however that ends. The parent keeps the writing end of a pipe, the child has the
other end; the kernel signals the child's whole group when nothing holds the writing end any more (`cmdlog.die_with_parent`).
Neither needs to run a single line for that: a killed parent does not, nor does a child inside a regular expression or a call of
the disk. A child that is still importing is ended as well.

Each child leads a process group: Ctrl-C reaches the terminal's group, and the parent alone decides when its children end.

The module lies beside the packages because `procedures`, `snapshot`, `replay` and the node start processes, and no package is
below all of them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import orjson

from cmdlog.die_with_parent import ERROR_BYTES_MAX
from cmdlog.hidden_packages import library_hint

PIPE: Final = subprocess.PIPE
KILLED_HINT: Final = (
    "the kernel kills a process when memory runs out, and `dmesg` then says so: give it more memory or let fewer processes run, "
    "and start again; what is durable is complete"
)


class ChildProcess(subprocess.Popen[bytes]):
    """`module.main()` in a process that finds the modules this one finds. `kill` and `end` may be called from any thread."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] = os.environ,
        hash_seed: str | None = None,
        parent_ended: signal.Signals = signal.SIGKILL,
        pass_fds: Sequence[int] = (),
        stdin: int = subprocess.DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """`parent_ended` is the signal that it gets then: one that has to remove files asks for SIGTERM. Raises: OSError."""
        path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        variables = {**environment, "PYTHONPATH": path}
        if hash_seed is not None:
            variables["PYTHONHASHSEED"] = hash_seed
        watched, self._life = os.pipe()
        self._error_fd = os.memfd_create("cmdlog-child-error")
        program = [
            sys.executable,
            "-P",
            "-m",
            "cmdlog.die_with_parent",
        ]  # -P: a module in the current folder would hide one of ours
        start = [*program, str(watched), str(int(parent_ended)), str(self._error_fd)]
        try:
            super().__init__(
                [*start, module, *arguments], env=variables, pass_fds=(watched, self._error_fd, *pass_fds), process_group=0,
                stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd,
            )  # fmt: skip
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(watched)

    def order(self, value: Any) -> None:
        """Writes one line of JSON to its standard input. Raises: OSError when it has ended."""
        assert self.stdin is not None
        line = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
        self.stdin.write(line.replace(b"\n", b" ") + b"\n")  # a fragment that was encoded elsewhere may have lines of its own
        self.stdin.flush()

    def answers(self) -> Iterator[Any]:
        """The JSON lines of its standard output, to its end."""
        assert self.stdout is not None
        return map(orjson.loads, self.stdout)

    def kill(self) -> None:
        """SIGKILL to the process and to what it started in its group; nothing when it has ended."""
        if self.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                super().kill()  # it has not made its group yet

    def end(self, *, after_s: float = 0.0) -> int:
        """Kills the process unless it ends by itself within `after_s`; its exit code."""
        try:
            return self.wait(after_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.wait()

    def last_error(self) -> str:
        """The exception that ended it, in one line, beside the traceback on its standard error; "" if there was none."""
        return os.pread(self._error_fd, ERROR_BYTES_MAX, 0).decode("utf-8", "replace")

    def close(self) -> None:
        """Kills the process if it runs, waits for its end, and closes what leads to it. Idempotent."""
        self.end()
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what it was still to be sent
                    stream.close()
        self._let_go()

    def _let_go(self) -> None:
        life, self._life = self._life, -1
        error_fd, self._error_fd = self._error_fd, -1
        for descriptor in (life, error_fd):
            if descriptor >= 0:
                os.close(descriptor)

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()


def describe_end(code: int) -> str:
    """How a process with this exit code ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"killed by signal {-code}"


def hint_at_end(code: int) -> str:
    """What to do about such an end; "" where the end says nothing about it."""
    if code == 1:  # an exception, and before there is any code of ours an import
        return library_hint()
    return KILLED_HINT if code == -signal.SIGKILL else ""


def without_settings() -> dict[str, str]:
    """Our environment without settings of a node: a server that is started with it has the defaults."""
    return {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}


def last_answer(output: bytes) -> dict[str, Any] | None:
    """The last line of a process's output; None when that is no JSON object."""
    try:
        said = orjson.loads(output.splitlines()[-1])
    except (IndexError, orjson.JSONDecodeError):
        return None
    return said if isinstance(said, dict) else None
