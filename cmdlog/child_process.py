"""Processes that this program starts for itself: how they are started, get an order, and end.

One rule: a child never outlives its parent, however that ends. The parent keeps the writing end of a pipe, the child has the
other end; the kernel signals the child's whole group when nothing holds the writing end any more (`cmdlog.die_with_parent`).
Neither needs to run a single line for that: a killed parent does not, nor does a child inside a regular expression or a call of
the disk. A child that is still importing is ended as well.

An order has any size. What is known before the start lies in memory that is the child's standard input, whole before its first
line runs: nobody writes while somebody reads, and a child that is slow to start holds nothing up. `finish` waits for the answer
and the end, `ask` for the answer to one more line. Both have a patience, and can be given up: the child is dead then.

Each child leads a process group: Ctrl-C reaches the terminal's group, and the parent alone decides when its children end.

The module lies beside the packages because `procedures`, `snapshot`, `replay` and the node start processes, and no package is
below all of them.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final

import orjson

from cmdlog.hidden_packages import library_hint
from cmdlog.work_progress import ERROR_BYTES_MAX, Followed, read_progress

PIPE: Final = subprocess.PIPE
DEVNULL: Final = subprocess.DEVNULL
LOOK_EVERY_S: Final = 0.25  # at whether a child is to be given up
READ_BYTES: Final = 1 << 16
KILLED_HINT: Final = (
    "the kernel kills a process when memory runs out, and `dmesg` then says so: give it more memory or let fewer processes run, "
    "and start again; what is durable is complete"
)


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How a child ended, and what it said on the streams that are pipes."""

    code: int
    output: bytes
    errors: bytes


def _never() -> bool:
    return False


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
        stdin: int | bytes = DEVNULL,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        cwd: Path | None = None,
    ) -> None:
        """`parent_ended` is the signal that it gets then: one that has to remove files asks for SIGTERM. Raises: OSError.

        `stdin` is a stream's number, or all that the child reads there.
        """
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
            with _input_of(stdin) as given:
                super().__init__(
                    [*start, module, *arguments], env=variables, pass_fds=(watched, self._error_fd, *pass_fds), process_group=0,
                    stdin=given, stdout=stdout, stderr=stderr, cwd=cwd,
                )  # fmt: skip
        except BaseException:
            self._let_go()
            raise
        finally:
            os.close(watched)

    def finish(self, *, patience_s: float = math.inf, given_up: Callable[[], bool] = _never) -> ChildEnd | None:
        """Waits for its end, and reads what it says until then. None: it was given up, or not ready in time, and was killed."""
        until = time.monotonic() + patience_s

        def is_over() -> bool:
            return given_up() or time.monotonic() > until

        code = None
        said = self._exchange(b"", lambda _output: False, is_over)
        while said is not None and (code := self.end_within(LOOK_EVERY_S)) is None:
            if is_over():
                said = None
        if said is None or code is None:
            self.end()
            return None
        return ChildEnd(code, *said)

    def ask(self, value: Any, *, given_up: Callable[[], bool] = _never) -> bytes | None:
        """One more line of JSON to its standard input, and the line that answers. None: it was given up, and was killed.

        Raises: OSError or EOFError, when it has ended.
        """
        said = self._exchange(encode_order(value), lambda output: output.endswith(b"\n"), given_up)
        if said is None:
            self.end()
            return None
        if not said[0].endswith(b"\n"):
            raise EOFError("it has ended")
        return said[0]

    def _exchange(
        self, line: bytes, is_whole: Callable[[bytearray], bool], given_up: Callable[[], bool]
    ) -> tuple[bytes, bytes] | None:
        """Writes the line and reads until it is answered, or the streams or the child have ended; None: given up."""
        output, errors, rest = bytearray(), bytearray(), memoryview(line)
        followed = Followed(self.progress)
        with selectors.DefaultSelector() as selector:
            for stream, held in ((self.stdout, output), (self.stderr, errors)):
                if stream is not None and not stream.closed:
                    selector.register(stream, selectors.EVENT_READ, held)
            if line and self.stdin is not None:
                selector.register(self.stdin, selectors.EVENT_WRITE)
            while selector.get_map() and not is_whole(output):
                followed.follow()
                if given_up():
                    return None
                ended = self.poll() is not None  # before the look: what it has said by then is all
                ready = selector.select(0 if ended else LOOK_EVERY_S)
                if not ready and ended:
                    break  # what it has started may hold the pipe for ever
                for key, _ in ready:
                    if key.fileobj is self.stdin:
                        rest = rest[os.write(key.fd, rest[: select.PIPE_BUF]) :]
                        is_done = not rest
                    else:
                        data = os.read(key.fd, READ_BYTES)
                        key.data.extend(data)
                        is_done = not data
                    if is_done:
                        selector.unregister(key.fileobj)
        return bytes(output), bytes(errors)

    def answers(self) -> Iterator[Any]:
        """The JSON lines of its standard output, to its end; meanwhile its progress is that of this thread."""
        assert self.stdout is not None
        followed, rest = Followed(self.progress), b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.stdout, selectors.EVENT_READ)
            while True:
                followed.follow()
                if not selector.select(LOOK_EVERY_S):
                    continue
                if not (data := os.read(self.stdout.fileno(), READ_BYTES)):
                    return
                *lines, rest = (rest + data).split(b"\n")
                yield from map(orjson.loads, lines)

    def kill(self) -> None:
        """SIGKILL to the process and to what it started in its group; nothing when it has ended."""
        if self.poll() is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                super().kill()  # it has not made its group yet

    def end_within(self, patience_s: float) -> int | None:
        """Its exit code; None when it has not ended by then."""
        try:
            return self.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def end(self, *, after_s: float = 0.0) -> int:
        """Kills the process unless it ends by itself within `after_s`; its exit code."""
        if (code := self.end_within(after_s)) is not None:
            return code
        self.kill()
        return self.wait()

    def progress(self) -> int:
        """A number that changes as it gets on (`cmdlog.work_progress`)."""
        return read_progress(self._error_fd)

    def last_error(self) -> str:
        """The exception that ended it, in one line, beside the traceback on its standard error; "" if there was none."""
        return os.pread(self._error_fd, ERROR_BYTES_MAX, 0).rstrip(b"\0").decode("utf-8", "replace")

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


def encode_order(value: Any) -> bytes:
    """One line of JSON. A fragment that was encoded elsewhere may have lines of its own."""
    return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS).replace(b"\n", b" ") + b"\n"


@contextlib.contextmanager
def _input_of(stdin: int | bytes) -> Iterator[int]:
    """What a child gets as its standard input: memory that holds the order, if there is one."""
    if isinstance(stdin, int):
        yield stdin
        return
    with open(os.memfd_create("cmdlog-child-order"), "wb", buffering=0) as held:
        rest = memoryview(stdin)
        while rest:
            rest = rest[held.write(rest) :]
        held.seek(0)
        yield held.fileno()


def describe_end(code: int) -> str:
    """How a process with this exit code ended, for people."""
    if code >= 0:
        return f"exit code {code}"
    with contextlib.suppress(ValueError):  # a real-time signal has no name
        return f"killed by signal {-code} ({signal.Signals(-code).name})"
    return f"killed by signal {-code}"


def describe_late_start(seconds: float) -> str:
    """What to look at when a process is not ready in time, for people: the machine, before the application."""
    return (
        f"it is not ready after {seconds:g} s: look at the load of the machine and at its disk, then at what the application "
        "does when it is imported; start_timeout_s is the limit"
    )


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
