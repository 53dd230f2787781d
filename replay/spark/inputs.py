"""The node directories of a job, where they are not folders that all machines see: copies in an object store, or in HDFS.

One rule: recovery reads files of a disk, so a directory elsewhere is copied first, by the driver for the plan and by each task
for its work; what is said of the copy names the original.

A task reads the whole log of its node in any case; the copy costs that once more, and room on the scratch disk. The state folder
is not copied: no job reads it.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from replay.errors import ReplayError
from replay.spark.options import BadOption
from replay.spark.places import filesystem_of, open_place, scheme_of
from replay.spark.scratch import make_scratch
from replay.trust import STATE_FOLDER
from snapshot.errors import SnapshotError

COPY_BYTES: Final = 1 << 20
FETCHED: Final = "fetched"  # of an order: directory in its plans -> URI


@dataclass(frozen=True, slots=True)
class Inputs:
    """The directories of a job, as the driver reads them."""

    directories: list[str]
    fetched: Mapping[str, str]  # directory -> URI, of those that are copies

    def stamp(self, orders: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Orders that tell tasks where to copy from."""
        return [{**self._told(order), FETCHED: self.fetched} for order in orders]

    def _told(self, order: dict[str, Any]) -> dict[str, Any]:
        """Notes are for people."""
        for point in order.get("points", ()) if self.fetched else ():
            point["notes"] = [_of_originals(note, self.fetched) for note in point["notes"]]
        return order


def input_names(paths: str | Sequence[str]) -> list[str]:
    """What a job's input is known by: absolute paths, and URIs. Raises: BadOption."""
    return [_name(path) for path in ([paths] if isinstance(paths, str) else paths)]


@contextlib.contextmanager
def inputs(names: Sequence[str]) -> Iterator[Inputs]:
    """The directories for a plan; copies last until the end. Raises: BadOption; OSError of the disk or the store."""
    directories, fetched = list(names), dict[str, str]()
    remote = [(number, name) for number, name in enumerate(names) if not name.startswith("/")]
    with contextlib.ExitStack() as stack:
        scratch = make_scratch() if remote else ""
        if scratch:
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        for number, name in remote:
            directories[number] = os.path.join(scratch, str(number))
            fetched[directories[number]] = name
            fetch(name, directories[number])
        with _naming(fetched):
            yield Inputs(directories, fetched)


@contextlib.contextmanager
def at_hand(order: Mapping[str, Any], scratch: str) -> Iterator[Mapping[str, Any]]:
    """The order with directories that this machine has."""
    fetched = order.get(FETCHED) or {}
    here = {directory: os.path.join(scratch, "inputs", str(number)) for number, directory in enumerate(fetched)}
    for directory, uri in fetched.items():
        fetch(uri, here[directory])
    with _naming({here[directory]: uri for directory, uri in fetched.items()}):
        yield {key: _moved(value, here) for key, value in order.items()} if here else order


def fetch(uri: str, folder: str) -> None:
    """Copies a node directory. Raises: BadOption when there is none; OSError."""
    from pyarrow import fs  # noqa: PLC0415 - only who reads elsewhere needs it

    filesystem, inner = filesystem_of(uri)
    inner = inner.rstrip("/")
    try:
        found = filesystem.get_file_info(fs.FileSelector(inner, recursive=True))
    except FileNotFoundError:
        found = []
    if not found:
        raise BadOption(f"{uri} is not there, or holds nothing")
    os.makedirs(folder)
    for info in found:
        relative = info.path[len(inner) :].lstrip("/")
        if relative.partition("/")[0] == STATE_FOLDER:
            continue
        target = os.path.join(folder, relative)
        if info.type == fs.FileType.Directory:
            os.makedirs(target, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(target), exist_ok=True)
        with filesystem.open_input_stream(info.path) as source, open(target, "wb") as file:
            shutil.copyfileobj(source, file, COPY_BYTES)
        if os.path.getsize(target) != info.size:
            raise OSError(f"{uri}/{relative} gave {os.path.getsize(target)} bytes of {info.size}")


def output_path(path: str) -> str:
    """A folder for an output. Raises: BadOption for one in an object store, which has no rename."""
    files, inner = open_place(path) if scheme_of(path) in ("", "file") else (None, "")
    if not isinstance(files, RealFiles):
        raise BadOption(
            f"{path} cannot be an output: an output appears by renaming its folder, so it must be a path (or file: URI) that "
            "the driver and all executors see; copy it from there when it is finished"
        )
    return inner


def _name(path: str) -> str:
    if scheme_of(path) in ("", "file"):
        return open_place(path)[1]
    uri = re.sub(r"^([^:/]+):/+", r"\1://", path).rstrip("/")  # a `pathlib.Path` takes one slash away
    if urlsplit(uri).password is not None:
        told = f"{uri.partition('://')[0]}://…@{uri.rpartition('@')[2]}"
        raise BadOption(
            f"{told} holds a secret, which would stand in the output; name it by the environment (AWS_ACCESS_KEY_ID, …)"
        )
    return uri


def _moved(value: Any, here: Mapping[str, str]) -> Any:
    """The same with other directories."""
    if isinstance(value, str):
        return here.get(value, value)
    if isinstance(value, list):
        return [_moved(part, here) for part in value]
    if isinstance(value, Mapping):
        return {key: _moved(part, here) for key, part in value.items()}
    return value


@contextlib.contextmanager
def _naming(fetched: Mapping[str, str]) -> Iterator[None]:
    """An error speaks of the original, not of the copy."""
    try:
        yield
    except (ReplayError, WalError, SnapshotError) as error:
        error.args = tuple(_of_originals(part, fetched) if isinstance(part, str) else part for part in error.args)
        raise


def _of_originals(text: str, fetched: Mapping[str, str]) -> str:
    for directory, uri in fetched.items():
        text = text.replace(directory, uri)
    return text
