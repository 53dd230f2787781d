"""`cmdlog serve APP --reload`: a server that starts again when a Python file of the application changes. For development.

One rule: this process holds no module of the application. Each server is a process of its own, `cmdlog serve` without `--reload`,
which prints what it always prints; another one names the folders to watch (`source_files`). A change ends the server as SIGTERM
does, and the next one starts in the same directory at the same address. One that does not start has printed why; then the next
change is waited for.

No change is lost: folders are watched first, then their files are noted, and then a server imports them.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, Final

from cmdlog.child_process import DEVNULL, PIPE, ChildProcess, last_answer
from cmdlog.cli.output import out
from cmdlog.signal_handlers import handled, stop_signals
from procedures.execution.hash_seed import PINNED

WATCH_MS: Final = 100  # between two looks of the watch at whether it shall end
Files = Mapping[str, tuple[int, int]]  # path -> time of the last change in nanoseconds, bytes


@dataclass(frozen=True, slots=True, eq=False)
class _ProcessEnd:
    """The event that a process has ended."""

    process: ChildProcess
    output: bytes  # where it was asked for


_STOP: Final = "stop"
_CHANGED: Final = "changed"


def serve_reloading(app: str, data: Path, settings: Mapping[str, Any], given: Sequence[str]) -> int:
    """Serves until SIGTERM or Ctrl-C; the exit code.

    Args:
        settings: those of the command line, by name, and a port other than 0.
        given: its other options.
    """
    options = [word for name, value in settings.items() if value is not None for word in ("--" + name.replace("_", "-"), value)]
    options += [*given, *(["--json"] if out.json else [])]
    reloader = Reloader(app, ["serve", app, "--data", str(data), *options])
    with handled(reloader.stop, *stop_signals()):
        return reloader.run()


def reserve_port(host: str, port: int) -> str:
    """The port of all servers to come: a free one where 0 is asked for. Raises: BadSetting where it cannot be had."""
    from cmdlog.api.connections.http_server import listen

    with listen(host, port, silence_max_s=1) as listener:
        return str(listener.getsockname()[1])


class Reloader:
    """Servers, one after the other. Owned by the main thread, which other threads and signals reach by events."""

    def __init__(self, app: str, arguments: Sequence[str]) -> None:
        """`arguments` are those of a server."""
        self._app = app
        self._arguments = arguments
        self._events: SimpleQueue[_ProcessEnd | str] = SimpleQueue()
        self._folders: list[str] = []

    def stop(self) -> None:
        """From a handler of a signal: everything ends in order; the second time, at once."""
        self._events.put(_STOP)

    def run(self) -> int:
        """Until it is stopped, or a server is; the exit code."""
        code = None
        while code is None:
            if not self._find_folders():
                return 0
            with _watched(self._folders, lambda: self._events.put(_CHANGED)):
                code = self._serve_until_change()
        return code

    def _find_folders(self) -> bool:
        """Learns where the program's modules are; earlier folders stay, since a repair may come there. False: stopped."""
        finder = ChildProcess(
            "cmdlog.cli.server.source_files",
            self._app,
            environment=_environment(),
            hash_seed=PINNED,
            stdout=PIPE,
            stderr=DEVNULL,
        )
        with finder:
            self._report_end(finder)
            is_stopped = False
            while not (isinstance(event := self._events.get(), _ProcessEnd) and event.process is finder):
                if event == _STOP:
                    is_stopped = True
                    finder.kill()
        found = last_answer(event.output) or {}
        self._folders = list(dict.fromkeys([*found.get("folders", [os.getcwd()]), *self._folders]))
        return not is_stopped

    def _serve_until_change(self) -> int | None:
        """The exit code when everything is to end; None after a change."""
        before = _files_in(self._folders)
        environment = _environment()
        with ChildProcess(
            "cmdlog.cli", *self._arguments, environment=environment, hash_seed=PINNED, parent_ended=signal.SIGTERM
        ) as server:
            self._report_end(server)
            while True:
                event = self._events.get()
                if event == _STOP:
                    self._end_in_order(server)
                    return 0
                if event == _CHANGED and (changed := _difference(before, _files_in(self._folders))):
                    out.print_note(f"{changed} changed: the server starts again")
                    return None if self._end_in_order(server) else 0
                if isinstance(event, _ProcessEnd) and event.process is server:
                    if server.returncode == 0:
                        return 0
                    out.print_note(f"the server ended with {server.returncode}: it starts again when a file changes")

    def _end_in_order(self, server: ChildProcess) -> bool:
        """As SIGTERM does; a stop that comes meanwhile kills it. False: it came."""
        if server.poll() is None:
            server.send_signal(signal.SIGTERM)
        is_stopped = False
        while server.poll() is None:
            event = self._events.get()
            if event == _STOP:
                is_stopped = True
                server.kill()
        return not is_stopped

    def _report_end(self, process: ChildProcess) -> None:
        def wait() -> None:
            output = b"" if process.stdout is None else process.stdout.read()
            process.wait()
            self._events.put(_ProcessEnd(process, output))

        Thread(target=wait, name="cmdlog-reload-wait", daemon=True).start()


def _environment() -> dict[str, str]:
    """Python knows compiled code by seconds and bytes of its source: a second change within one second would be missed."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


@contextlib.contextmanager
def _watched(folders: Sequence[str], changed: Callable[[], None]) -> Iterator[None]:
    """Within it, `changed` is called in another thread after each change of a Python file in one of the folders."""
    from watchfiles import PythonFilter, watch

    ending = Event()
    stream = watch(
        *(folder for folder in folders if os.path.isdir(folder)), watch_filter=PythonFilter(), recursive=False, stop_event=ending,
        rust_timeout=WATCH_MS, yield_on_timeout=True, raise_interrupt=False,
    )  # fmt: skip
    next(stream)  # from now on the kernel reports

    def follow() -> None:
        for changes in stream:
            if changes:
                changed()

    thread = Thread(target=follow, name="cmdlog-reload-watch", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def _files_in(folders: Sequence[str]) -> Files:
    """The Python files of the folders, without those below them."""
    found: dict[str, tuple[int, int]] = {}
    for folder in folders:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    with contextlib.suppress(FileNotFoundError):
                        status = entry.stat()
                        found[entry.path] = status.st_mtime_ns, status.st_size
    return found


def _difference(before: Files, after: Files) -> str:
    """Names of the files that changed, came or went; "" if none did."""
    return ", ".join(sorted({os.path.relpath(path) for path, _ in set(before.items()) ^ set(after.items())}))
