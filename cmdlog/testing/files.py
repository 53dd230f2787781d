"""Disks for tests: one that is fast because it promises nothing, and one that fails when a test says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NoReturn

from cmdlog.wal.files import Data, RealFile, RealFiles
from cmdlog.wal.os_errors import raise_write_error, write_errors


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
