"""Where a path leads: a folder of this machine, or one of a file system that pyarrow knows (S3, HDFS, …), read-only.

One rule: a path is text until it is opened, so that a task can carry it to another machine and open it there.
"""

from __future__ import annotations

import errno
import os
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NoReturn
from urllib.parse import unquote, urlsplit

from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME, LOG_FOLDER
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Data, Files, Lock, RealFiles
from replay.spark.base.options import BadOption

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

_LOCAL: Final = RealFiles()
HADOOP: Final = ("hdfs", "viewfs")  # schemes
HADOOP_NEEDS: Final = (
    "libhdfs.so of a Hadoop client, or a Java (17 or newer) for it, was not found; install both on the driver and on every "
    "executor and set HADOOP_HOME, JAVA_HOME and CLASSPATH=$(hadoop classpath --glob), or copy the directory with "
    "`hdfs dfs -get` and give that path"
)
INSTEAD: Final = {"s3a": "s3", "s3n": "s3", "wasb": "abfs", "wasbs": "abfss"}  # Hadoop's names of stores -> pyarrow's
_HOSTS: Final = ("", "localhost")


def open_place(path: str) -> tuple[Files, str]:
    """(the file system, the path in it). Raises: BadOption for what no file system is known for."""
    scheme = scheme_of(path)
    if not scheme:
        return _LOCAL, os.path.abspath(path)
    if scheme == "file":
        parts = urlsplit(path)
        if parts.netloc not in _HOSTS:
            raise BadOption(f"{path} is on another machine; write file:///path")
        return _LOCAL, os.path.abspath(unquote(parts.path))
    filesystem, inner = filesystem_of(path)
    return ArrowFiles(filesystem), inner.rstrip("/")


def check_node(path: str, files: Files, directory: str) -> None:
    """Checks that there is at least a damaged node. Raises: BadOption."""
    if not files.exists(directory):
        raise BadOption(f"{path} does not exist")
    if not any(files.exists(os.path.join(directory, name)) for name in (INSTANCE_NAME, CREATING_NAME, LOG_FOLDER)):
        raise BadOption(f"{path} is not a node directory ({INSTANCE_NAME} is missing)")


def scheme_of(path: str) -> str:
    """That of a URI; "" of a path."""
    return "" if path.startswith("/") else urlsplit(path).scheme


@lru_cache(maxsize=64)
def filesystem_of(uri: str) -> tuple[FileSystem, str]:
    """pyarrow's file system for this URI; its settings (region, credentials) come from the environment. Raises: BadOption."""
    from pyarrow import fs  # noqa: PLC0415 - only who reads elsewhere needs it

    scheme = scheme_of(uri)
    if scheme in HADOOP and not _have_libhdfs():
        raise BadOption(f"{uri} cannot be opened: {HADOOP_NEEDS}")
    try:
        filesystem, inner = fs.FileSystem.from_uri(uri)
    except (ValueError, NotImplementedError, OSError) as error:
        instead = f"; write {INSTEAD[scheme]}://" if scheme in INSTEAD else ""
        raise BadOption(f"{uri} cannot be opened: {str(error).partition(chr(10))[0]}{instead}") from error
    return filesystem, inner


def _have_libhdfs() -> bool:
    """Whether Hadoop's library and a Java for it are found. Each attempt after the first one fails without a reason."""
    from pyarrow.lib import have_libhdfs  # noqa: PLC0415 - as above

    return bool(have_libhdfs())


class ReadOnlyFile:
    """The half of an open file that refuses: a file elsewhere is never written."""

    path: str

    def pwrite(self, data: Data, offset: int) -> NoReturn:
        refuse_to_write(self.path)

    def fdatasync(self) -> NoReturn:
        refuse_to_write(self.path)

    def fsync(self) -> NoReturn:
        refuse_to_write(self.path)

    def truncate(self, size: int) -> NoReturn:
        refuse_to_write(self.path)

    def allocate(self, size: int) -> NoReturn:
        refuse_to_write(self.path)


class ArrowFile(ReadOnlyFile):
    """An open file of pyarrow."""

    def __init__(self, file: Any, path: str) -> None:
        self._file, self.path = file, path

    def pread(self, size: int, offset: int) -> bytes:
        try:
            data: bytes = self._file.read_at(size, offset)
        except OSError as error:
            if error.errno in (None, errno.EIO):
                raise Corrupt(f"unreadable ({error})", path=self.path, offset=offset) from error
            raise
        return data

    def size(self) -> int:
        size: int = self._file.size()
        return size

    def close(self) -> None:
        self._file.close()


class ArrowFiles(Files):
    """Reads through pyarrow and refuses to write."""

    __slots__ = ("_fs",)

    def __init__(self, filesystem: FileSystem) -> None:
        self._fs = filesystem

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> ArrowFile:
        if not read_only or create or exclusive:
            refuse_to_write(path)
        if not self.exists(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return ArrowFile(self._fs.open_input_file(path), path)

    def listdir(self, path: str) -> list[str]:
        from pyarrow import fs  # noqa: PLC0415

        try:
            return sorted(info.base_name for info in self._fs.get_file_info(fs.FileSelector(path)))
        except FileNotFoundError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def exists(self, path: str) -> bool:
        from pyarrow import fs  # noqa: PLC0415

        return bool(self._fs.get_file_info(path).type != fs.FileType.NotFound)

    def mkdir(self, path: str) -> NoReturn:
        refuse_to_write(path)

    def rename(self, source: str, target: str) -> NoReturn:
        refuse_to_write(target)

    def unlink(self, path: str) -> NoReturn:
        refuse_to_write(path)

    def fsync_dir(self, path: str) -> NoReturn:
        refuse_to_write(path)

    def lock(self, path: str) -> Lock:
        refuse_to_write(path)

    def boot_id(self) -> str:
        return ""


def refuse_to_write(path: str) -> NoReturn:
    """Raises: OSError."""
    raise OSError(errno.EROFS, "cmdlog reads here and never writes", path)
