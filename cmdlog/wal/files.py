"""The only door to the operating system for the log, the fault log, snapshots and instance files.

One rule: nothing is hidden. A write is whole or raises, a failed sync is never retried here, and every method says what is
durable when it returns. What POSIX leaves open decides how the callers must use this door:

- `pwrite` returning means the bytes are in the page cache: they survive a kill of the process, not a power cut.
- After a failed sync the kernel marks the dirty pages clean (Rebello et al., "Can Applications Recover from fsync Failures?",
  ATC 2020): a second sync succeeds and lies. So the file is lost to its writer at the first failure; reopening reads the cache.
- A new, renamed or removed *name* is durable only after `fsync_dir` of its folder, whatever was synced of the file itself.

What an error means is said by `cmdlog.wal.os_errors`; a file descriptor is waited for first. EINTR is retried by Python.
`SimFiles` in `simfiles.py` is the same door over a simulated disk; tests/wal/test_files.py holds both to one contract.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Protocol

from cmdlog.file_lock import LockHeld, lock
from cmdlog.wal.errors import Corrupt, DiskFull, ShortWrite, WriteFailed
from cmdlog.wal.os_errors import locked, raise_read_error, raise_write_error, write_errors
from cmdlog.wal.process_limits import await_descriptor
from cmdlog.wal.system.machine import birth_ns, read_boot_id, read_machine_id
from cmdlog.wal.system.write_thread import DirectWriter, open_write_thread

Data = bytes | bytearray | memoryview

TEMP_SUFFIX = ".tmp"
FILE_BYTES_MAX = 256 << 20  # read at once: the largest segment
OWNER_BYTES_MAX = 4096  # of the lock file's owner record; one page holds pid, host, boot id and inode many times over

_NEW_FILE_MODE = 0o640
_NEW_DIR_MODE = 0o750
_CLOSED = 0x7FFF_FFFF  # no descriptor is so high: the kernel answers EBADF, while Python makes a ValueError of a negative one


class File(Protocol):
    """An open file. Positions are explicit, so threads may share it; closing it is the owner's business alone."""

    path: str

    def pread(self, size: int, offset: int) -> bytes:
        """Bytes at `offset`; fewer than `size` only where the file ends. Holes read as zeros. Raises: Corrupt."""
        ...

    def pwrite(self, data: Data, offset: int) -> None:
        """Puts all of `data` into the page cache, not on disk. Raises: ShortWrite, DiskFull, WriteFailed; part may be written."""
        ...

    def fdatasync(self) -> None:
        """Makes content and size durable. Raises: WriteFailed, DiskFull; after that nothing unsynced ever counts as durable."""
        ...

    def fsync(self) -> None:
        """`fdatasync` plus times and permissions; needed once for a new file. Raises like it."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None:
        """Cuts, or extends with a hole; durable after the next sync."""
        ...

    def allocate(self, size: int) -> None:
        """Takes space for the first `size` bytes, which no other file gets; where nothing was written they read as zeros.

        Extends a shorter file; durable after the next sync. On file systems that copy on write it promises nothing.
        Raises: DiskFull.
        """
        ...

    def close(self) -> None:
        """Says nothing about durability. Closing twice does nothing."""
        ...


class Lock(Protocol):
    """The exclusive right to a directory, held until `close` or the end of the process."""

    path: str

    def owner(self) -> bytes:
        """The present owner record: the last holder's until this one writes its own. A power cut may have torn it."""
        ...

    def write_owner(self, record: bytes) -> None:
        """Replaces the owner record in place; durable on return, not atomic: check it when you read it."""
        ...

    def close(self) -> None: ...


class Files(Protocol):
    """A file system. Implementations provide the primitives; what is composed of them is written once, at the end."""

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        """Opens for reading and writing. `create` makes a missing file, `exclusive` insists on it. The name is not durable."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in the folder, ascending."""
        ...

    def mkdir(self, path: str) -> None:
        """Makes one folder, readable by owner and group. The name is not durable."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Moves a file, replacing a target in one step. Durable after `fsync_dir` of both folders."""
        ...

    def unlink(self, path: str) -> None:
        """Removes a file's name. Durable after `fsync_dir`."""
        ...

    def exists(self, path: str) -> bool:
        """False only where nothing is there: an unreadable folder raises, so that it never looks like an empty one."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Makes all creations, renames and removals in this folder durable. Raises: WriteFailed."""
        ...

    def lock(self, path: str) -> Lock:
        """Takes the lock file, making it if needed. Raises: Locked, with the owner record that is in it."""
        ...

    def boot_id(self) -> str:
        """Changes with every boot of the machine; "" where that cannot be known, which equals no earlier boot."""
        ...

    def identify(self, path: str) -> tuple[int, int]:
        """Inode and birth (ns since 1970) of a file: what its copy does not have. 0 where that is unknown."""
        return 0, 0

    def links(self, path: str) -> int:
        """How many names a file has."""
        return 1

    def machine_id(self) -> str:
        """Tells machines apart, over boots; "" where that is unknown."""
        return ""

    def open_direct_writer(self) -> DirectWriter | None:
        """None where there is no such thing."""
        return None

    def read_file(self, path: str, *, bytes_max: int = FILE_BYTES_MAX) -> bytes:
        """The whole file. Raises: FileNotFoundError; Corrupt, also when it is longer."""
        file = self.open(path, read_only=True)
        try:
            if (size := file.size()) > bytes_max:
                raise Corrupt(f"{size} bytes, at most {bytes_max} are read at once", path=path)
            return file.pread(size, 0)
        finally:
            file.close()

    def write_file_atomic(self, path: str, data: Data) -> None:
        """Makes or replaces a small file; on return content and name are durable. One writer per path at a time.

        A crash on the way leaves the old or the new whole file, and perhaps `path` + TEMP_SUFFIX, which the next call replaces.
        An error before the rename leaves the old file alone; one after it (the folder's sync) leaves the new one, durable or not.
        """
        temporary = path + TEMP_SUFFIX
        if self.exists(temporary):
            self.unlink(temporary)
        try:
            self._write_new(temporary, data)
            self.rename(temporary, path)
        except Exception:
            self._discard(temporary)
            raise
        self.fsync_dir(parent(path))

    def quarantine(self, path: str, data: Data) -> str:
        """Keeps evidence: writes `data` to `path`, or to `path`.1, .2 … if that is taken; durable on return with its name.

        Returns the path. It never replaces a file, so that looking twice at the same damage loses nothing of the first look.
        """
        chosen, attempt = path, 0
        while self.exists(chosen):
            attempt += 1
            chosen = f"{path}.{attempt}"
        try:
            self._write_new(chosen, data)
        except Exception:
            self._discard(chosen)
            raise
        self.fsync_dir(parent(chosen))
        return chosen

    def clear_temporaries(self, path: str, *, kept: Collection[str] = ()) -> list[str]:
        """Removes what broken-off `write_file_atomic` calls left in this folder, but for `kept`; the names. Durable on return."""
        names = [name for name in self.listdir(path) if name.endswith(TEMP_SUFFIX) and os.path.join(path, name) not in kept]
        for name in names:
            self.unlink(os.path.join(path, name))
        if names:
            self.fsync_dir(path)
        return names

    def _write_new(self, path: str, data: Data) -> None:
        file = self.open(path, create=True, exclusive=True)
        try:
            file.pwrite(data, 0)
            file.fsync()
        finally:
            file.close()

    def _discard(self, path: str) -> None:
        """Removes a half-made file on the way out of an error; a second error must not hide the first."""
        try:
            self.unlink(path)
        except (OSError, DiskFull, WriteFailed):
            return


class RealFile:
    """A file descriptor and its path."""

    __slots__ = ("fd", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd, self.path = fd, path

    def pread(self, size: int, offset: int) -> bytes:
        try:
            data = os.pread(self.fd, size, offset)
            if len(data) == size or not data:
                return data
            return self._read_rest(data, size, offset)
        except OSError as error:
            raise_read_error(error, self.path, offset)

    def _read_rest(self, head: bytes, size: int, offset: int) -> bytes:
        """Reads on until the file ends: Linux returns at most 2 GiB at once, which is not an end."""
        parts, done = [head], len(head)
        while done < size and (part := os.pread(self.fd, size - done, offset + done)):
            parts.append(part)
            done += len(part)
        return b"".join(parts)

    def pwrite(self, data: Data, offset: int) -> None:
        try:
            written = os.pwrite(self.fd, data, offset)
        except OSError as error:
            raise_write_error(error, f"write at offset {offset} of", self.path)
        if written != (wanted := memoryview(data).nbytes):
            raise ShortWrite(f"write at offset {offset} of {self.path} took {written} of {wanted} bytes")

    def fdatasync(self) -> None:
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise_write_error(error, "fdatasync of", self.path)

    def fsync(self) -> None:
        try:
            os.fsync(self.fd)
        except OSError as error:
            raise_write_error(error, "fsync of", self.path)

    def size(self) -> int:
        try:
            return os.fstat(self.fd).st_size
        except OSError as error:
            raise_read_error(error, self.path, 0)

    def truncate(self, size: int) -> None:
        with write_errors(f"truncation to {size} bytes of", self.path):
            os.ftruncate(self.fd, size)

    def allocate(self, size: int) -> None:
        with write_errors(f"allocation of {size} bytes for", self.path):
            os.posix_fallocate(self.fd, 0, size)

    def close(self) -> None:
        # The number is forgotten first: after an error of close(2) the kernel may have given it to somebody else's file.
        fd, self.fd = self.fd, _CLOSED
        if fd == _CLOSED:
            return
        with write_errors("close of", self.path):
            os.close(fd)


class RealLock:
    """An flock on an open file; it ends with the file descriptor, so a killed owner leaves no lock."""

    __slots__ = ("_file", "path")

    def __init__(self, file: RealFile) -> None:
        self._file, self.path = file, file.path

    def owner(self) -> bytes:
        return self._file.pread(OWNER_BYTES_MAX, 0)

    def write_owner(self, record: bytes) -> None:
        write_owner(self._file, record)

    def close(self) -> None:
        self._file.close()


class RealFiles(Files):
    """The operating system. It has no state, so every thread may use one instance."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> RealFile:
        flags = os.O_CLOEXEC | (os.O_RDONLY | os.O_NONBLOCK if read_only else os.O_RDWR)  # a pipe in its place holds nobody up
        if create or exclusive:
            flags |= os.O_CREAT | os.O_NOFOLLOW | (os.O_EXCL if exclusive else 0)  # a link would choose another file to write to
        try:
            return RealFile(await_descriptor(lambda: os.open(path, flags, _NEW_FILE_MODE)), path)
        except OSError as error:
            raise_write_error(error, "open of", path)

    def listdir(self, path: str) -> list[str]:
        return sorted(await_descriptor(lambda: os.listdir(path)))

    def mkdir(self, path: str) -> None:
        with write_errors("creation of folder", path):
            os.mkdir(path, _NEW_DIR_MODE)

    def rename(self, source: str, target: str) -> None:
        with write_errors(f"rename to {target} of", source):
            os.rename(source, target)

    def unlink(self, path: str) -> None:
        with write_errors("removal of", path):
            os.unlink(path)

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def fsync_dir(self, path: str) -> None:
        with write_errors("fsync of folder", path):
            fd = await_descriptor(lambda: os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
            try:
                os.fsync(fd)
            finally:
                os.close(fd)

    def lock(self, path: str) -> RealLock:
        file = self.open(path, create=True)
        try:
            lock(file.fd)
        except LockHeld as error:
            owner = file.pread(OWNER_BYTES_MAX, 0)
            file.close()
            raise locked(path, owner) from error
        except OSError as error:
            file.close()
            raise_write_error(error, "lock of", path)
        return RealLock(file)

    def identify(self, path: str) -> tuple[int, int]:
        return os.stat(path).st_ino, birth_ns(path)

    def links(self, path: str) -> int:
        return os.stat(path).st_nlink

    def open_direct_writer(self) -> DirectWriter | None:
        return open_write_thread() if type(self) is RealFiles else None  # who changes `open` changes that alone

    def boot_id(self) -> str:
        return read_boot_id()

    def machine_id(self) -> str:
        return read_machine_id()


def parent(path: str) -> str:
    """The folder that holds the name `path`."""
    return os.path.dirname(path) or "."


def sync_file(files: Files, path: str) -> None:
    """Content and size are durable on return; the name needs its folder's sync."""
    file = files.open(path)
    try:
        file.fsync()
    finally:
        file.close()


def write_owner(file: File, record: bytes) -> None:
    """Replaces the record of a lock file in place: another name would be another lock. Durable on return, not atomic."""
    if len(record) > OWNER_BYTES_MAX:
        raise ValueError(f"an owner record has at most {OWNER_BYTES_MAX} bytes, this one {len(record)}")
    file.pwrite(record, 0)
    file.truncate(len(record))
    file.fsync()
