"""Rows of the live run: what a state file or snapshot that it left says about them.

One rule: nothing of the node's directory is changed, not even by opening a file there. A state file with a write-ahead log beside
it is read in place only while a node has it open, else from a copy.

The live run logs digests, not rows. So a row is known only at the positions of complete states at hand; the nearest one at or
after the wanted position is used, and its index is returned with the row.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import apsw

from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import Files
from procedures.storage.state_file import connect
from replay.state.set_aside_state import kept_path
from replay.state.state_lock import is_locked
from replay.state.touched_rows import Key, Row, Tables
from replay.state.trust import Trust, state_path
from snapshot.catalog import Snapshot, list_snapshots, restore
from snapshot.errors import SnapshotError
from snapshot.table_digest import open_image

COPY_BYTES_MAX: Final = 4 << 30  # of a state file or snapshot that is copied to look at a few rows


@dataclass(frozen=True, slots=True)
class Found:
    """A row as the live run had it."""

    index: int  # the state is that after this entry
    rows: Mapping[Key, Row | None]


class LiveRows:
    """Reads rows of a node directory. `work` is where temporary copies are made."""

    def __init__(self, files: Files, directory: str, work: str) -> None:
        self._files, self._directory, self._work = files, directory, work

    @cached_property
    def _trust(self) -> Trust:
        """One for all rows: it may have to read the state files whole."""
        return Trust(self._files, self._directory)

    def read(self, partition: int, index: int, tables: Tables, keys: Sequence[Key]) -> Found | None:
        """The rows in the first state at or after the index; None when there is none that can be read."""
        if not keys:
            return None
        for at, source in sorted(self._sources(partition, index), key=lambda found: found[0]):
            try:
                with self._folder() as folder, self._open(source, folder) as live:
                    return Found(at, {key: tables.read(live, key) for key in keys})
            except (apsw.Error, OSError, SnapshotError):
                continue  # this report goes with what else there is
        return None

    def _sources(self, partition: int, index: int) -> Iterator[tuple[int, str | Snapshot]]:
        path = state_path(self._directory, partition)
        replayed = state_path(os.path.dirname(self._work), partition)
        yield from self._read_state(kept_path(self._directory, partition), index)
        same = os.path.exists(path) and os.path.exists(replayed) and os.path.samefile(path, replayed)
        if not same and not self._trust.doubt(partition):
            yield from self._read_state(path, index)
        with contextlib.suppress(OSError, WalError):
            for snapshot in list_snapshots(self._files, self._directory, load_instance(self._files, self._directory).identity):
                if snapshot.partition == partition and snapshot.manifest is not None and snapshot.index >= index:
                    yield snapshot.index, snapshot

    def _read_state(self, path: str, index: int) -> Iterator[tuple[int, str]]:
        """The state file, if it is at or after the index."""
        if not 0 < _size(path) <= COPY_BYTES_MAX:
            return
        with contextlib.suppress(OSError, apsw.Error, ValueError), self._folder() as folder, self._open(path, folder) as live:
            at = int(str(live.execute("SELECT idx FROM _cmdlog_meta").get))
            if at >= index:
                yield at, path

    def _folder(self) -> tempfile.TemporaryDirectory[str]:
        return tempfile.TemporaryDirectory(dir=self._work, prefix="tmp-live-")

    @contextlib.contextmanager
    def _open(self, source: str | Snapshot, folder: str) -> Iterator[apsw.Connection]:
        if isinstance(source, str):
            path = _readable(source, folder)
            live = connect(path) if _has_log(path) else open_image(path)
        else:
            path = os.path.join(folder, "state.sqlite")
            restore(source, path)
            live = open_image(path)
        try:
            yield live
        finally:
            live.close()


def _readable(path: str, folder: str) -> str:
    """Where the state file can be read without changing it: in place, or in a copy."""
    if not _has_log(path) or is_locked(path):
        return path
    copy = os.path.join(folder, "state.sqlite")
    for ending in ("", "-wal"):
        shutil.copyfile(path + ending, copy + ending)
    return copy


def _has_log(path: str) -> bool:
    return _size(f"{path}-wal") > 0


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
