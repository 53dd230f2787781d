"""The node directories of a job, if they are in an object store or in HDFS rather than in folders that all machines see.

One rule: such a directory has a name on this machine, which plans and tasks use like any other, and what they read of it is
fetched when they read it (`replay.spark.base.fetching`); messages about it name the original. What tasks of an application have
fetched stays with Spark's scratch files of the machine, for the next one.
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

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files, RealFiles
from replay.errors import ReplayError
from replay.plan.node_plan import Plan
from replay.spark.base.fetching import FetchingFiles
from replay.spark.base.filesystems import open_place, scheme_of
from replay.spark.base.options import BadOption
from replay.spark.base.scratch import local_folder, make_scratch
from snapshot.catalog import data_path, list_archived, list_snapshots
from snapshot.errors import SnapshotError

CACHE: Final = "cmdlog-fetched"
FETCHED: Final = "fetched"  # of an order: directory in its plans -> URI


@dataclass(frozen=True, slots=True)
class Inputs:
    """The directories of a job, as the driver reads them."""

    directories: list[str]
    fetched: Mapping[str, str]  # directory -> URI, of those that are elsewhere
    files: Files  # that show all of them

    def stamp(self, orders: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Adds to the orders where tasks read from."""
        return [{**self._notes_of(order), FETCHED: self.fetched} for order in orders]

    def _notes_of(self, order: dict[str, Any]) -> dict[str, Any]:
        """Replaces local names in a note by the originals."""
        for point in order.get("points", ()) if self.fetched else ():
            point["notes"] = [_of_originals(note, self.fetched) for note in point["notes"]]
        return order


def input_names(paths: str | Sequence[str]) -> list[str]:
    """The names of a job's inputs: absolute paths, and URIs. Raises: BadOption."""
    return [_name(path) for path in ([paths] if isinstance(paths, str) else paths)]


@contextlib.contextmanager
def inputs(names: Sequence[str]) -> Iterator[Inputs]:
    """The directories for a plan, until its end. Raises: BadOption; OSError of the disk or the store."""
    directories, fetched = list(names), dict[str, str]()
    remote = [(number, name) for number, name in enumerate(names) if not name.startswith("/")]
    with contextlib.ExitStack() as stack:
        scratch = make_scratch() if remote else ""
        if scratch:
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        for number, name in remote:
            directories[number] = os.path.join(scratch, str(number))
            fetched[directories[number]] = name
        with _naming(fetched):
            yield Inputs(directories, fetched, _files(fetched, scratch))


@contextlib.contextmanager
def at_hand(order: Mapping[str, Any], scratch: str) -> Iterator[tuple[Mapping[str, Any], Files]]:
    """The order with local names of its directories, and the file system that serves them."""
    fetched = order.get(FETCHED) or {}
    here = {directory: os.path.join(scratch, "inputs", str(number)) for number, directory in enumerate(fetched)}
    names = {here[directory]: uri for directory, uri in fetched.items()}
    with _naming(names):
        yield ({key: _moved(value, here) for key, value in order.items()} if here else order), _files(names, scratch)


def bring_images(files: Files, legs: Iterable[Plan]) -> None:
    """Copies the images that the legs restore to this machine: SQLite reads only local files. Raises: WalError; OSError."""
    if not isinstance(files, FetchingFiles):
        return
    for leg in legs:
        for part in (part for part in leg.partitions if part.source == "snapshot"):
            origin = leg.origins.get(part.partition, leg.directory)
            identity = load_instance(files, origin).identity
            known = [*list_archived(files, origin, identity), *list_snapshots(files, origin, identity)]
            for snapshot in (one for one in known if one.name == part.name):
                for link in snapshot.chain:
                    files.materialize(data_path(link))


def _files(fetched: Mapping[str, str], scratch: str) -> Files:
    return FetchingFiles(fetched, os.path.join(local_folder() or scratch, CACHE)) if fetched else RealFiles()


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
            f"{told} contains a secret, which would be written to the output; pass it through the environment "
            f"(AWS_ACCESS_KEY_ID, …)"
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
    """Makes an error name the original, not the copy."""
    try:
        yield
    except (ReplayError, WalError, SnapshotError) as error:
        error.args = tuple(_of_originals(part, fetched) if isinstance(part, str) else part for part in error.args)
        raise


def _of_originals(text: str, fetched: Mapping[str, str]) -> str:
    for directory, uri in fetched.items():
        text = text.replace(directory, uri)
    return text
