"""The files of a copy, held at the source as long as the copy is under way.

One rule: retention never waits for a copy, and a copy never sees what retention does. Each file gets a second name in a temporary
folder of `snapshots/`: files of snapshots are written once, and their removal cuts nothing off a file that has another name
(`snapshot.background_io.remove_file`). What a crash leaves is removed at the next start (`snapshot.catalog.clean`).

The log after the snapshots of a copy is held, too, until the recipient has caught up. A copy never makes a log full: where the
log is short of room, the anchors of copies are released, and the recipient may have to copy again.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import google_crc32c

from cmdlog.cluster.copying.copy_values import CopyFile
from snapshot.background_io import remove_tree
from snapshot.catalog import Snapshot, data_path, temporary_path
from snapshot.manifest import MANIFEST_NAME, size_and_crc

CATCH_UP_S: Final = 600.0  # from the last file until the recipient has what the log holds: it restores, starts, and reads


class HeldLog:
    """By recipient the anchors that are set for it. Not thread-safe."""

    def __init__(self, hold: Callable[[str, int], None], let_go: Callable[[str], None]) -> None:
        """`hold` sets an anchor of that name at a block, `let_go` removes it."""
        self._hold, self._let_go = hold, let_go
        self._names: dict[int, list[str]] = {}  # node -> anchors
        self._until_s: dict[int, float] = {}  # of those whose copy is done

    def hold_partition(self, node: int, partition: int, block: int) -> None:
        """Everything from that block on is kept for the node."""
        name = f"copy-{node}-{partition}"
        self._hold(name, block)
        self._names.setdefault(node, []).append(name)
        self._until_s.pop(node, None)

    def keep_for_catch_up(self, node: int, now_s: float) -> None:
        """Its copy is done: it is let go of when the node has caught up, or after `CATCH_UP_S`."""
        if node in self._names:
            self._until_s[node] = now_s + CATCH_UP_S

    def release_node(self, node: int) -> None:
        """Nothing is kept for it any more. Idempotent."""
        self._until_s.pop(node, None)
        for name in self._names.pop(node, ()):
            self._let_go(name)

    def release_done(self, now_s: float, is_waiting: Callable[[int], bool]) -> None:
        """Lets go of what is kept for nodes that have caught up, or that took too long. `is_waiting`: it has not caught up."""
        for node in [node for node, until_s in self._until_s.items() if until_s < now_s or not is_waiting(node)]:
            self.release_node(node)

    @property
    def nodes(self) -> list[int]:
        """For whom something is kept."""
        return sorted(self._names)


SHORT: Final = "the file is shorter than its snapshot says"


class FileLost(Exception):
    """A file of a snapshot cannot be had, or is not what its manifest says."""


@dataclass(frozen=True, slots=True)
class HeldFile:
    """A file with a name of its own."""

    path: str
    about: CopyFile


class OpenFile:
    """The file that a connection reads at present: it stays open, so that the kernel reads ahead. One thread."""

    def __init__(self) -> None:
        self._held: HeldFile | None = None
        self._descriptor = -1

    def read(self, held: HeldFile, offset: int, length: int) -> tuple[bytes, int]:
        """The bytes [offset, offset + length), which lie in the file, and their CRC32C. Raises: FileLost."""
        try:
            if held is not self._held:
                self.close()
                self._descriptor = os.open(held.path, os.O_RDONLY | os.O_CLOEXEC)
                self._held = held
            content = os.pread(self._descriptor, length, offset)
        except OSError as error:
            raise FileLost(f"{held.about.name}: {error.strerror or error}") from error
        if len(content) != length:
            raise FileLost(f"{held.about.name}: {SHORT}")
        return content, google_crc32c.value(content)

    def close(self) -> None:
        """Idempotent."""
        if self._held is not None:
            self._held = None
            os.close(self._descriptor)


class HeldFiles:
    """The files of the snapshots of one copy. One thread at a time."""

    def __init__(self, directory: str) -> None:
        """`directory` is the node's."""
        self._directory = directory
        self._folders: list[str] = []
        self.files: list[HeldFile] = []

    def hold_snapshot(self, snapshot: Snapshot) -> None:
        """Adds the snapshot and all that it depends on, newest first. Raises: FileLost; then call `release`."""
        try:
            for link in snapshot.chain:
                self._hold(link)
        except OSError as error:
            raise FileLost(f"{snapshot.name}: {error}") from error

    def release(self) -> None:
        """Lets go of all of them; a large file that no snapshot has any more is cut off in pieces, which takes its time."""
        folders, self._folders = self._folders, []
        for folder in folders:
            with contextlib.suppress(OSError):  # removed at the next start
                remove_tree(folder)

    def _hold(self, link: Snapshot) -> None:
        if link.manifest is None:
            raise FileLost(link.problem)
        folder = temporary_path(self._directory, link.partition)
        os.mkdir(folder, 0o750)
        self._folders.append(folder)
        stated, data = link.manifest.files[0], data_path(link)
        manifest = _second_name(os.path.join(link.path, MANIFEST_NAME), folder)
        self._add(manifest, link, *size_and_crc(manifest))
        held = _second_name(data, folder)
        if os.stat(held).st_size != stated.bytes:
            raise FileLost(f"{link.name}: {SHORT}")
        self._add(held, link, stated.bytes, stated.crc32c)

    def _add(self, path: str, link: Snapshot, size: int, crc32c: int) -> None:
        name = f"{link.name}/{os.path.basename(path)}"
        self.files.append(HeldFile(path, CopyFile(len(self.files), link.partition, name, size, crc32c)))


def _second_name(path: str, folder: str) -> str:
    """A hard link, or a copy: on another volume, where there are none, or of another user's file. Raises: OSError."""
    target = os.path.join(folder, os.path.basename(path))
    try:
        os.link(path, target)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copyfile(path, target)
    return target
