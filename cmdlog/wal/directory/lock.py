"""The exclusive right to a node directory: the lock, and a record of who has it.

One rule: the lock decides, the record explains. Whether a state file may be trusted is not decided here but by
`replay.state.trust`, which must not forget it before the file is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import orjson

from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME, LOCK_NAME, NO_CONTENT, load_instance
from cmdlog.wal.errors import DiskFull, NotEmpty, WrongDirectory
from cmdlog.wal.files import Files, Lock, parent


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    pid: int
    host: str
    boot_id: str
    started: str  # UTC, for the reader of an error message alone

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE)


class DirectoryLock:
    """Holds the lock of a directory until `close`."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock

    def close(self) -> None:
        self._lock.close()


def make_folder(files: Files, directory: str) -> None:
    """Makes the folder of a node. Durable on return. Raises: WrongDirectory, DiskFull, WriteFailed."""
    above = parent(directory)
    try:
        files.mkdir(directory)
    except OSError as error:
        if isinstance(error, FileExistsError):
            why = "it is a dangling symbolic link"  # what it leads to is not there, or nobody would make it
        elif isinstance(error, FileNotFoundError) and not files.exists(above):
            why = f"there is no folder {above}"
        else:
            why = error.strerror or str(error)
        raise WrongDirectory(f"{directory} cannot be created: {why}") from None
    files.fsync_dir(above)


def refuse_link(path: str) -> None:
    """For the folder of an output. Raises: WrongDirectory, where the path is a symbolic link: it is made where the path says."""
    if os.path.islink(os.path.normpath(path)):
        raise WrongDirectory(f"{path} is a symbolic link", hint="give the path that it leads to")


def take_ownership(files: Files, directory: str) -> DirectoryLock:
    """Locks the directory for this process and writes who we are, for the error of the next process.

    Raises: Locked naming the owner, WrongDirectory when there is no such directory.
    """
    if not files.exists(directory):
        raise WrongDirectory(f"{directory} does not exist")
    try:
        names = files.listdir(directory)
    except NotADirectoryError:
        raise WrongDirectory(f"{directory} is a file") from None
    strange = [name for name in names if name not in NO_CONTENT]
    if strange and not {LOCK_NAME, INSTANCE_NAME, CREATING_NAME}.intersection(names):
        raise NotEmpty(f"{directory} is neither empty nor a node: it holds {', '.join(strange[:5])}")
    lock = files.lock(os.path.join(directory, LOCK_NAME))
    try:
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record = OwnerRecord(os.getpid(), socket.gethostname(), files.boot_id(), started)
        try:
            lock.write_owner(record.encode())
        except DiskFull:  # a node starts on a full disk; without the record an error does not name us
            lock.write_owner(b"")
    except BaseException:
        lock.close()
        raise
    return DirectoryLock(lock)


@contextlib.contextmanager
def new_folder(files: Files, directory: str) -> Iterator[DirectoryLock]:
    """Makes the folder of a node, where there is none, and has it for the block. Raises: as `make_folder`, `take_ownership`."""
    if not files.exists(directory):
        make_folder(files, directory)
    own = take_ownership(files, directory)
    try:
        yield own
    finally:
        own.close()


def take_node(files: Files, directory: str) -> DirectoryLock:
    """`take_ownership` of a directory that holds a node. Any other is left as it is, without a file for the lock.

    Raises: also what `load_instance` does.
    """
    if not files.exists(os.path.join(directory, LOCK_NAME)):
        load_instance(files, directory)
    return take_ownership(files, directory)
