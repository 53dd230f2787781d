"""The machine of a test: a clock that it sets and advances, also for servers in processes of their own; a disk that is fast
because it promises nothing, and one that fails when the test says so.

One rule: the clock is one word of shared memory. Each process that maps it sees a new time at once.

The word holds microseconds, shifted left by one; the lowest bit says what they are: 0, an offset to real time, which runs on;
1, a moment since 1970, at which time has stopped.
"""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, NoReturn

from cmdlog.node.clock import TimeSource
from cmdlog.wal.files import Data, RealFile, RealFiles
from cmdlog.wal.os_errors import raise_write_error, write_errors

WORD_BYTES: Final = 8
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)


class SharedWord:
    """A signed 64-bit number that several processes see; 0 at first."""

    def __init__(self, fd: int | None = None) -> None:
        """`fd` of a word that another process made; None: a new one."""
        self.fd = os.memfd_create("cmdlog-testing") if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, WORD_BYTES)
        self._map = mmap.mmap(self.fd, WORD_BYTES)
        self._word = memoryview(self._map).cast("q")

    @property
    def value(self) -> int:
        return self._word[0]

    @value.setter
    def value(self, value: int) -> None:
        self._word[0] = value  # one aligned store: no reader sees half of it

    def close(self) -> None:
        """Ends this process's view. Idempotent."""
        if not self._map.closed:
            self._word.release()
            self._map.close()
            os.close(self.fd)


class SettableClock:
    """The time of a test's databases: `tx.now`, and how old idempotency keys and sessions are.

    It runs with real time until `set` stops it; from then on it moves by `set` and `advance` alone.
    """

    def __init__(self, word: SharedWord | None = None) -> None:
        self.word = word or SharedWord()
        self._used = False

    def now(self) -> datetime:
        """The present moment, in UTC."""
        return _EPOCH + self._micros() * _MICROSECOND

    def set(self, moment: datetime) -> None:
        """Stops time at this moment, which has an offset.

        Raises: ValueError, when a database of the test has already seen a later one: transaction ids only grow.
        """
        if moment.tzinfo is None:
            raise ValueError("the moment has no offset; give one, such as tzinfo=UTC")
        if self._used and moment < self.now():
            raise ValueError(f"{moment} is before {self.now()}, which a database has seen; set the clock before you open it")
        self.word.value = (moment - _EPOCH) // _MICROSECOND << 1 | 1

    def advance(self, step: timedelta = timedelta(), /, **units: float) -> None:
        """Moves time on: `advance(hours=2)`, or by a timedelta. Raises: ValueError for a step back."""
        micros = (step + timedelta(**units)) // _MICROSECOND
        if micros < 0:
            raise ValueError(f"{step + timedelta(**units)} is a step back; transaction ids only grow")
        self.word.value += micros << 1

    def source(self) -> TimeSource:
        """What a node is opened with: both of its clocks are this one, so that a step is no jump of one of them."""
        self._used = True
        return TimeSource(self._seconds, self._seconds)

    def share(self) -> int:
        """The descriptor that another process makes its view of, by `SettableClock(SharedWord(fd))`."""
        self._used = True
        return self.word.fd

    def _micros(self) -> int:
        word = self.word.value
        return word >> 1 if word & 1 else time.time_ns() // 1000 + (word >> 1)

    def _seconds(self) -> float:
        return self._micros() / 1e6


class UnsyncedFiles(RealFiles):
    """The operating system without its syncs: a directory that a test throws away survives no power cut.

    What is written is in the page cache all the same, and another process, or a later open, reads it.
    """

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> RealFile:
        return _UnsyncedFile(super().open(path, create=create, exclusive=exclusive, read_only=read_only))

    def fsync_dir(self, path: str) -> None:
        pass


class BreakableFiles(RealFiles):
    """The operating system, until `broken()`: from then on every write and sync fails as on a dead device (EIO)."""

    __slots__ = ("_broken",)

    def __init__(self, broken: Callable[[], object]) -> None:
        self._broken = broken

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> RealFile:
        return _BreakableFile(super().open(path, create=create, exclusive=exclusive, read_only=read_only), self._broken)

    def fsync_dir(self, path: str) -> None:
        with write_errors("fsync of folder", path):
            if self._broken():
                raise _dead_device()
        super().fsync_dir(path)


class _UnsyncedFile(RealFile):
    __slots__ = ()

    def __init__(self, file: RealFile) -> None:
        super().__init__(file.fd, file.path)

    def fdatasync(self) -> None:
        pass

    def fsync(self) -> None:
        pass


class _BreakableFile(RealFile):
    __slots__ = ("_broken",)

    def __init__(self, file: RealFile, broken: Callable[[], object]) -> None:
        super().__init__(file.fd, file.path)
        self._broken = broken

    def pwrite(self, data: Data, offset: int) -> None:
        if self._broken():
            self._fail(f"write at offset {offset} of")
        super().pwrite(data, offset)

    def fdatasync(self) -> None:
        if self._broken():
            self._fail("fdatasync of")
        super().fdatasync()

    def fsync(self) -> None:
        if self._broken():
            self._fail("fsync of")
        super().fsync()

    def _fail(self, action: str) -> NoReturn:
        raise_write_error(_dead_device(), action, self.path)


def _dead_device() -> OSError:
    return OSError(errno.EIO, os.strerror(errno.EIO))
