"""Counts what a process does between two moments: Python functions entered, by thread, and locks taken.

One rule: this file stands alone. A process under watch runs it as its `sitecustomize`, before anything of the product; then a
thread of its own looks for the file `watch` in the folder PATH_OUT: it counts while the file is there, and writes what it
counted as PID.json when it is gone. Steps in C are not seen, neither are locks that C takes.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

LOOK_EVERY_S = 0.02


class Watch:
    """Counts by thread from `begin` to `end`. Threads that were there before `install` are not seen."""

    def __init__(self) -> None:
        self._counting = False
        self._functions: dict[int, Counter[CodeType]] = {}
        self._locks: Counter[int] = Counter()

    def install(self) -> None:
        """From here on new threads, and this one, are under watch. Locks that are made from here on are counted."""
        self._makers = threading.Lock, threading.RLock
        threading.Lock = _counted(threading.Lock, self._take)  # type: ignore[assignment]
        threading.RLock = _counted(threading.RLock, self._take)  # type: ignore[assignment]
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)

    def uninstall(self) -> None:
        """Undoes it for this thread, and for locks and threads that are made from here on."""
        sys.setprofile(None)
        threading.setprofile(None)
        threading.Lock, threading.RLock = self._makers

    def begin(self) -> None:
        self._functions, self._locks = {}, Counter()
        self._counting = True

    def end(self) -> dict[str, Any]:
        """By the name of the thread: `functions`, file and qualified name -> entered; `locks`: taken."""
        self._counting = False
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        found: dict[str, Any] = {}
        for ident, functions in list(self._functions.items()):
            of_thread = found.setdefault(names.get(ident, "ended"), {"functions": {}, "locks": 0})
            of_thread["locks"] += self._locks[ident]
            for code, count in functions.items():
                name = f"{code.co_filename} {code.co_qualname}"
                of_thread["functions"][name] = of_thread["functions"].get(name, 0) + count
        return found

    def _enter(self, frame: FrameType, event: str, _: object) -> None:
        if self._counting and event == "call" and frame.f_code.co_filename != __file__:
            ident = threading.get_ident()
            functions = self._functions.get(ident)
            if functions is None:
                functions = self._functions[ident] = Counter()
            functions[frame.f_code] += 1

    def _take(self) -> None:
        if self._counting:
            self._locks[threading.get_ident()] += 1


def _counted(make: Callable[[], Any], take: Callable[[], None]) -> Callable[[], Any]:
    """Makes locks as `make` does, which call `take` as they are taken."""

    class CountedLock:
        def __init__(self) -> None:
            self._lock = make()
            self.release = self._lock.release
            if hasattr(self._lock, "_release_save"):  # what Condition asks of an RLock
                for name in ("_release_save", "_acquire_restore", "_is_owned"):
                    setattr(self, name, getattr(self._lock, name))
            else:
                self.locked = self._lock.locked

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            take()
            return bool(self._lock.acquire(blocking, timeout))

        def __enter__(self) -> bool:
            take()
            return bool(self._lock.acquire())

        def __exit__(self, *_: object) -> None:
            self._lock.release()

        def _at_fork_reinit(self) -> None:
            self._lock._at_fork_reinit()  # noqa: SLF001 -- as the one that it stands for

    return CountedLock


def follow(folder: Path) -> None:
    """Counts while the file `watch` is in the folder, over and over."""
    watch = Watch()
    watch.install()

    def look() -> None:
        sys.setprofile(None)
        while True:
            _wait_until((folder / "watch").exists)
            watch.begin()
            (folder / f"{os.getpid()}.on").touch()
            _wait_until(lambda: not (folder / "watch").exists())
            written = folder / f"{os.getpid()}.new"
            written.write_text(json.dumps(watch.end()))
            written.rename(folder / f"{os.getpid()}.json")

    threading.Thread(target=look, name="watch", daemon=True).start()


def _wait_until(condition: Callable[[], bool]) -> None:
    while not condition():
        time.sleep(LOOK_EVERY_S)


if "PATH_OUT" in os.environ:
    follow(Path(os.environ["PATH_OUT"]))
