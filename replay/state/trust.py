"""Which state files a warm restart may trust: those that this boot of the machine wrote, and that are still the files it made.

One rule: trust is recorded when a file is made, and never repaired. State files are not synced (the log is the truth), so after a
loss of power they may hold anything; after the death of only a process they are intact. So `state/trust.json` names the boot
and, per file, device, inode and birth: a restored copy, another mount or another boot does not match, and the partition is
rebuilt from snapshot and log. (The birth because a copy may get the inode of the file that it replaces.) The record needs no
sync: torn by a power cut, it names another boot or nothing.

A file that no process writes to, after a clean shutdown or at a recovery's end, is *sealed*: the record also states its
size and CRC-32C, and from then on it is trusted only while these match. A SQLite write-ahead log next to the file is checkpointed
first; one that is not empty afterwards, or later, means that the file is still changing. A writer removes the seals first. A
killed node leaves none: its files changed to the end, and a flipped bit cannot be distinguished from a write. CRC-32C takes some
0.4 s per GB and finds every single flipped bit; it holds Python's lock, so that threads would gain nothing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import apsw
import orjson

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from cmdlog.wal.format.json_reader import load_document
from cmdlog.wal.system.machine import birth_ns
from procedures.storage.state import FORMAT, Position
from procedures.storage.state_file import connect
from snapshot.catalog import remove_state
from snapshot.manifest import Hurried, content_of

TRUST_NAME: Final = "trust.json"
STATE_FOLDER: Final = "state"

Content = tuple[int, int]  # bytes, CRC-32C


def state_path(directory: str, partition: int) -> str:
    """Path of a partition's state file."""
    return os.path.join(directory, STATE_FOLDER, f"p{partition:04d}.sqlite")


class Trust:
    """The trust record of a directory. One writer: the holder of the directory's lock."""

    def __init__(self, files: Files, directory: str) -> None:
        self._directory = directory
        self._path = os.path.join(directory, STATE_FOLDER, TRUST_NAME)
        self._boot_id = files.boot_id()
        self._files: dict[str, list[int]] = {}
        self._seals: dict[str, Content] = {}  # of those of `_files` that no one writes to
        self._whole: set[str] = set()  # sealed files that were found to hold what they should: they are read once
        with contextlib.suppress(OSError, WalError, KeyError, TypeError, ValueError, AttributeError):
            value = load_document(files, self._path)
            if self._boot_id and value["boot_id"] == self._boot_id:
                seals = {str(name): (int(size), int(crc)) for name, (size, crc) in value.get("seals", {}).items()}
                self._files = {str(name): list(where) for name, where in value["files"].items()}
                self._seals = seals

    def doubt(self, partition: int) -> str:
        """Why the partition's state file is not trusted; "" when it is. Reads a sealed file to its end, some 0.5 s per GB."""
        path = state_path(self._directory, partition)
        try:
            found = _which(path)
        except FileNotFoundError:
            return "there is no state file"
        except OSError as error:
            return f"the state file cannot be read: {error.strerror}"
        stated = self._files.get(os.path.basename(path))
        if stated is None:
            return "the state file was not written since this machine was started"
        if stated != found:
            return "the state file is a copy, or on another mount"
        return self._change(path)

    def position(self, partition: int) -> Position | str:
        """The position of the partition's state file; or why that is not trusted, or not a state."""
        return self.doubt(partition) or read_position(state_path(self._directory, partition), partition)

    def is_sealed(self, partition: int) -> bool:
        """Whether the file's content is recorded; after a kill it is not."""
        return os.path.basename(state_path(self._directory, partition)) in self._seals

    def _change(self, path: str) -> str:
        """How a sealed file has changed."""
        name = os.path.basename(path)
        if name not in self._seals or name in self._whole:
            return ""
        try:
            why = _difference(path, self._seals[name])
        except OSError as error:
            return f"the state file cannot be read: {error.strerror}"
        if why:
            return f"the state file does not hold what the stop wrote: {why}"
        self._whole.add(name)
        return ""

    def seal(self, partitions: Iterable[int], hurried: Callable[[], bool] = lambda: False) -> None:
        """Seals the trusted files of these partitions; none may be written to until the next `unseal` or `grant`.

        A file that cannot be sealed is trusted as before, so nothing is raised. `hurried` is asked after each chunk; once it
        returns True, no further file is sealed.
        """
        for path in (state_path(self._directory, partition) for partition in partitions):
            name = os.path.basename(path)
            with contextlib.suppress(OSError):
                if name in self._seals or self._files.get(name) != _which(path) or not _bring_in(path):
                    continue
                try:
                    self._seals[name] = content_of(path, hurried)
                except Hurried:
                    break
        with contextlib.suppress(OSError):
            self._save()

    def unseal(self) -> None:
        """Removes the seals, before the files are written to."""
        if self._seals:
            self._seals = {}
            self._save()

    def grant(self, partition: int) -> None:
        """Trusts the partition's state file, which this process has just made or put in place."""
        path = state_path(self._directory, partition)
        self._files[os.path.basename(path)] = _which(path)
        self._seals.pop(os.path.basename(path), None)
        self._save()

    def revoke(self, partition: int) -> None:
        """Ends the trust in a file that is about to be replaced."""
        name = os.path.basename(state_path(self._directory, partition))
        self._seals.pop(name, None)
        if self._files.pop(name, None) is not None:
            self._save()

    def discard(self, partition: int) -> None:
        """Removes the state file; the record first, so that nothing that is left is trusted."""
        self.revoke(partition)
        remove_state(state_path(self._directory, partition))

    def _save(self) -> None:
        temporary = f"{self._path}.tmp"
        value = {"boot_id": self._boot_id, "files": self._files, "seals": self._seals}
        Path(temporary).unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # "x" follows no link that someone has put there
            file.write(orjson.dumps(value, option=orjson.OPT_SORT_KEYS))
        os.rename(temporary, self._path)


def read_position(path: str, partition: int) -> Position | str:
    """The position of a state file, or why it is not one. The file is not changed, and may be in use."""
    try:
        connection = connect(path)
        try:
            connection.set_busy_timeout(5000)
            rows = connection.execute("SELECT format, partition, idx, term, checksum, txn_id FROM _cmdlog_meta").fetchall()
        finally:
            connection.close()
    except apsw.Error as error:
        return f"the state file is unreadable: {error}"
    if len(rows) != 1:
        return f"the state file holds {len(rows)} positions"
    found_format, found_partition, index, term, checksum, txn_id = (int(str(value)) for value in rows[0])
    if found_format != FORMAT:
        return f"the state file has format {found_format}, this version reads {FORMAT}"
    if found_partition != partition:
        return f"the state file is of partition {found_partition}"
    return Position(index, term, checksum, txn_id)


def _which(path: str) -> list[int]:
    """Identifies a file, also against another one that takes its place."""
    found = os.stat(path)
    return [found.st_dev, found.st_ino, birth_ns(path)]


def _bring_in(path: str) -> bool:
    """Checkpoints the write-ahead log next to a state file into the file; whether nothing is left there."""
    if _has_log(path):
        try:
            connection = connect(path, apsw.SQLITE_OPEN_READWRITE)
            try:
                connection.execute("SELECT 1 FROM sqlite_master").fetchall()  # before it has read, a connection knows of no log
                connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
            finally:
                connection.close()
        except apsw.Error:  # a process reads it, or the disk is full: it is not changed, and is not a file at rest
            return False
    return not _has_log(path)


def _has_log(path: str) -> bool:
    """Whether a part of the state is in a write-ahead log next to the file."""
    try:
        return os.stat(f"{path}-wal").st_size > 0
    except FileNotFoundError:
        return False


def _difference(path: str, stated: Content) -> str:
    """How the file differs from what was recorded; "" when it does not. Raises: OSError."""
    if _has_log(path):
        return "it has been written to since"
    if (size := os.stat(path).st_size) != stated[0]:
        return f"{size} bytes instead of {stated[0]}"
    found = content_of(path)
    return "" if found == stated else f"CRC-32C {found[1]:08x} instead of {stated[1]:08x}"
