"""The exclusive right to a node directory: the lock, and a record of who has it.

One rule: the lock decides, the record explains. The record also binds what only holds while this machine stays up (boot id), so
that a warm restart can tell whether files written without a sync may be trusted.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import asdict, dataclass

import orjson

from cmdlog.wal.errors import WrongDirectory
from cmdlog.wal.files import Files, Lock
from cmdlog.wal.instance import CREATING_NAME, INSTANCE_NAME, LOCK_NAME, NO_CONTENT


@dataclass(frozen=True, slots=True)
class OwnerRecord:
    pid: int
    host: str
    boot_id: str
    started: str  # UTC, for the reader of an error message alone

    def encode(self) -> bytes:
        return orjson.dumps(asdict(self), option=orjson.OPT_APPEND_NEWLINE)


class Owner:
    """Holds the lock of a directory until `close`. `previous` is the last owner's record, None when unknown or torn."""

    def __init__(self, lock: Lock, record: OwnerRecord, previous: OwnerRecord | None) -> None:
        self._lock, self.record, self.previous = lock, record, previous

    @property
    def same_boot(self) -> bool:
        """Whether the machine has not been restarted since the previous owner: its page cache was not lost."""
        return self.previous is not None and self.record.boot_id != "" and self.previous.boot_id == self.record.boot_id

    def close(self) -> None:
        self._lock.close()


def take_ownership(files: Files, directory: str) -> Owner:
    """Locks the directory for this process and writes who we are.

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
        raise WrongDirectory(f"{directory} is neither empty nor a node: it holds {', '.join(strange[:5])}")
    lock = files.lock(os.path.join(directory, LOCK_NAME))
    try:
        previous = _decode(lock.owner())
        started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        record = OwnerRecord(os.getpid(), socket.gethostname(), files.boot_id(), started)
        lock.write_owner(record.encode())
    except BaseException:
        lock.close()
        raise
    return Owner(lock, record, previous)


def _decode(data: bytes) -> OwnerRecord | None:
    try:
        value = orjson.loads(data)
        return OwnerRecord(int(value["pid"]), str(value["host"]), str(value["boot_id"]), str(value["started"]))
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None  # torn by a power cut, or never written
