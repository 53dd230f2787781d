"""A node directory in an object store, or in HDFS, as a folder of this machine of which only what is read is there.

One rule: a byte is fetched when it is asked for, and once on each machine. A file is fetched in chunks, which every task of the
application on this machine shares; so a plan costs the heads of segments and the stretch of log that it looks through, a task
the stretch that it replays, and no process the whole directory.

A chunk's name holds size and time of its file: a replaced file has another name. What SQLite opens, the image that a state
begins with, is put together in the folder (`materialize`). Nothing is ever written to the store.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from cmdlog.file_lock import FOREVER, open_locked
from cmdlog.wal.files import File, Files, Lock, RealFiles
from replay.spark.base.filesystems import ArrowFile, ReadOnlyFile, filesystem_of, refuse_to_write
from replay.spark.base.options import BadOption
from replay.state.trust import STATE_FOLDER

if TYPE_CHECKING:
    from pyarrow.fs import FileInfo

CHUNK_BYTES: Final = 1 << 20  # what a scan reads at a time
LOCK: Final = "lock"


class Remote:
    """A node directory elsewhere. What is in it is asked for once."""

    def __init__(self, directory: str, uri: str, cache: str) -> None:
        """`directory` is what it is called here. Raises: BadOption when there is none."""
        from pyarrow import fs  # noqa: PLC0415 - only who reads elsewhere needs it

        self.directory, self.uri, self._cache = directory, uri, cache
        self._filesystem, inner = filesystem_of(uri)
        self._inner = inner.rstrip("/")
        try:
            found = self._filesystem.get_file_info(fs.FileSelector(self._inner, recursive=True))
        except FileNotFoundError:
            found = []
        if not found:
            raise BadOption(f"{uri} does not exist, or is empty")
        self._files = {self._relative(info): info for info in found if info.type == fs.FileType.File}
        self._folders = {self._relative(info) for info in found if info.type == fs.FileType.Directory} | {""}
        for name in self._files:
            while name := os.path.dirname(name):
                self._folders.add(name)

    def _relative(self, info: FileInfo) -> str:
        return str(info.path)[len(self._inner) :].lstrip("/")

    def exists(self, name: str) -> bool:
        return self._is_read(name) and (name in self._files or name in self._folders)

    def listdir(self, name: str) -> list[str]:
        """Raises: FileNotFoundError."""
        if not self._is_read(name) or name not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(self.directory, name))
        return sorted(
            os.path.basename(one)
            for one in {*self._files, *self._folders} - {""}
            if os.path.dirname(one) == name and self._is_read(one)
        )

    def open(self, name: str) -> FetchedFile:
        """Raises: FileNotFoundError."""
        path = os.path.join(self.directory, name)
        if not self._is_read(name) or name not in self._files:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        info = self._files[name]
        key = hashlib.sha256(f"{self.uri}\0{name}\0{info.size}\0{info.mtime_ns}".encode()).hexdigest()[:32]
        return FetchedFile(self._filesystem, info, path, os.path.join(self._cache, key))

    @staticmethod
    def _is_read(name: str) -> bool:
        """No job reads the states of the node."""
        return name.partition("/")[0] != STATE_FOLDER


class FetchedFile(ReadOnlyFile):
    """One of its files."""

    def __init__(self, filesystem: Any, info: FileInfo, path: str, chunks: str) -> None:
        self.path = path
        self._filesystem, self._info, self._chunks = filesystem, info, chunks

    @cached_property
    def _source(self) -> ArrowFile:
        return ArrowFile(self._filesystem.open_input_file(self._info.path), self.path)

    def size(self) -> int:
        return int(self._info.size)

    def pread(self, size: int, offset: int) -> bytes:
        end = min(offset + size, self.size())
        found = [self._chunk(number) for number in range(offset // CHUNK_BYTES, -(-end // CHUNK_BYTES))] if offset < end else []
        begin = offset % CHUNK_BYTES
        return b"".join(found)[begin : begin + max(0, end - offset)]

    def _chunk(self, number: int) -> bytes:
        path = os.path.join(self._chunks, str(number))
        try:
            return _read(path)
        except FileNotFoundError:
            os.makedirs(self._chunks, mode=0o750, exist_ok=True)
        with open_locked(os.path.join(self._chunks, LOCK), wait_s=FOREVER):  # what another task fetches is there a moment later
            if os.path.exists(path):
                return _read(path)
            wanted = min(CHUNK_BYTES, self.size() - number * CHUNK_BYTES)
            data = self._source.pread(wanted, number * CHUNK_BYTES)
            if len(data) != wanted:
                raise OSError(f"{self.path} gave {len(data)} bytes of {wanted} at {number * CHUNK_BYTES}")
            temporary = f"{path}.tmp"
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, path)
        return data

    def close(self) -> None:
        if "_source" in self.__dict__:
            self._source.close()


class FetchingFiles(Files):
    """This machine's files, and among them directories that are elsewhere."""

    def __init__(self, fetched: Mapping[str, str], cache: str) -> None:
        """`fetched`: what a directory is called here -> its URI. Raises: BadOption."""
        self._here = RealFiles()
        self._remotes = [Remote(directory, uri, cache) for directory, uri in fetched.items()]

    def _find(self, path: str) -> tuple[Remote, str] | None:
        for remote in self._remotes:
            if path == remote.directory or path.startswith(f"{remote.directory}/"):
                return remote, path[len(remote.directory) :].strip("/")
        return None

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> File:
        if (found := self._find(path)) is None:
            return self._here.open(path, create=create, exclusive=exclusive, read_only=read_only)
        if not read_only or create or exclusive:
            refuse_to_write(path)
        return found[0].open(found[1])

    def listdir(self, path: str) -> list[str]:
        found = self._find(path)
        return found[0].listdir(found[1]) if found is not None else self._here.listdir(path)

    def exists(self, path: str) -> bool:
        found = self._find(path)
        return found[0].exists(found[1]) if found is not None else self._here.exists(path)

    def materialize(self, path: str) -> None:
        """Copies a remote file to this machine, under its local name."""
        if (found := self._find(path)) is None or os.path.exists(path):
            return
        source = found[0].open(found[1])
        os.makedirs(os.path.dirname(path), mode=0o750, exist_ok=True)
        try:
            with open(f"{path}.tmp", "wb") as file:
                for offset in range(0, source.size(), CHUNK_BYTES):
                    file.write(source.pread(CHUNK_BYTES, offset))
        finally:
            source.close()
        os.replace(f"{path}.tmp", path)

    def mkdir(self, path: str) -> None:
        self._writable(path).mkdir(path)

    def rename(self, source: str, target: str) -> None:
        self._writable(target).rename(source, target)

    def unlink(self, path: str) -> None:
        self._writable(path).unlink(path)

    def fsync_dir(self, path: str) -> None:
        self._writable(path).fsync_dir(path)

    def lock(self, path: str) -> Lock:
        return self._writable(path).lock(path)

    def boot_id(self) -> str:
        return self._here.boot_id()

    def _writable(self, path: str) -> RealFiles:
        if self._find(path) is not None:
            refuse_to_write(path)
        return self._here


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
