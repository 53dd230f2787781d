"""What a simulated disk holds, and what of it survives: files as sectors, folders as events, no faults and no threads.

One rule: it does what it is told; which operation fails is the business of `simfiles.py`, which also tells the theory.
Every change carries a *stamp* that only grows, so that a sync covers exactly what was there when it began.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Container, Iterable
from typing import Literal, NamedTuple, TypeVar

SECTOR = 512  # bytes that a disk writes whole or not at all

Keep = Literal["none", "all", "random"]
_T = TypeVar("_T")
_NEWEST_SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)  # one is drawn per file or journal: nothing, half and everything are all likely


class Image(NamedTuple):
    stamp: int
    data: bytes  # one sector
    cut: bool  # made by a truncation


class Inode:
    """A file without its name: `cached` is what reads see, `disk` what is durable, images and sizes what is between."""

    __slots__ = ("cached", "disk", "disk_size", "images", "sizes", "unreadable")

    def __init__(self, content: bytes = b"") -> None:
        self.cached, self.disk, self.disk_size = bytearray(content), bytearray(content), len(content)
        self.images: dict[int, list[Image]] = {}  # by sector, ascending stamps
        self.sizes: list[tuple[int, int]] = []  # (stamp, size), ascending stamps
        self.unreadable: set[int] = set()  # sectors

    def twin(self) -> Inode:
        twin = Inode()
        twin.cached, twin.disk, twin.disk_size = bytearray(self.cached), bytearray(self.disk), self.disk_size
        twin.images = {sector: list(images) for sector, images in self.images.items()}
        twin.sizes, twin.unreadable = list(self.sizes), set(self.unreadable)
        return twin

    def write(self, data: bytes, offset: int, stamp: int) -> range:
        """Changes the cached bytes; returns the sectors touched, which the caller makes `dirty`."""
        end = offset + len(data)
        if end > len(self.cached):
            self.resize(end, stamp)
        self.cached[offset:end] = data
        touched = sectors_of(offset, end)
        self.unreadable.difference_update(touched)
        return touched

    def dirty(self, sectors: Iterable[int], stamp: int, *, shift: int = 0, cut: bool = False) -> None:
        """Leaves an image of each sector as it is cached, to land `shift` sectors further on the disk."""
        for sector in sectors:
            self.images.setdefault(sector + shift, []).append(Image(stamp, self._sector(self.cached, sector), cut))

    def resize(self, size: int, stamp: int) -> None:
        old = len(self.cached)
        self.sizes.append((stamp, size))
        if size >= old:
            self.cached.extend(bytes(size - old))
            return
        del self.cached[size:]
        self.dirty(sectors_of(size, old), stamp, cut=True)

    def settle(self, upto: int, *, lost: bool, sectors: Container[int] | None = None) -> None:
        """Ends a sync: what has a stamp up to `upto` is pending no longer; it is on the disk, or nowhere if `lost`.

        `sectors`: of a write that is durable itself, and brings nothing else to the disk.
        """
        pending: dict[int, list[Image]] = {}
        for sector, images in self.images.items():
            if sectors is not None and sector not in sectors:
                pending[sector] = images
                continue
            settled = [image for image in images if image.stamp <= upto]
            if settled and not lost:
                _put(self.disk, sector, settled[-1].data)
            if rest := images[len(settled) :]:
                pending[sector] = rest
        self.images = pending
        if sectors is not None:
            return
        sizes = [size for stamp, size in self.sizes if stamp <= upto]
        if sizes and not lost:
            self.disk_size = sizes[-1]
        self.sizes = self.sizes[len(sizes) :]

    def damage(self, offset: int, data: bytes) -> None:
        """Changes bytes at rest: in the cache, on the disk and in what is on the way to it."""
        if offset + len(data) > len(self.cached):
            raise ValueError(f"the damage ends at {offset + len(data)}, the file at {len(self.cached)}")
        self.cached[offset : offset + len(data)] = data
        for sector in sectors_of(offset, offset + len(data)):
            now = self._sector(self.cached, sector)
            if sector in self.images:
                self.images[sector] = [image._replace(data=now) for image in self.images[sector]]
            _put(self.disk, sector, now)

    def after_power_cut(self, rng: random.Random, keep: Keep) -> Inode:
        pick = _chooser(rng, keep)
        size_stamp, size = pick([(0, self.disk_size), *self.sizes])
        disk = bytearray(self.disk)
        for sector, images in self.images.items():
            _put(disk, sector, pick(self._candidates(sector, images, size_stamp)))
        left = Inode(bytes(disk[:size].ljust(size, b"\0")))
        left.unreadable = set(self.unreadable)
        return left

    def _candidates(self, sector: int, images: list[Image], size_stamp: int) -> list[bytes]:
        """What the sector may hold. A truncation is one event: its zeros are there if and only if its size is."""
        found = [self._sector(self.disk, sector)]
        for image in images:
            if image.cut and image.stamp > size_stamp:
                break
            found = [image.data] if image.cut else [*found, image.data]
        return found

    @staticmethod
    def _sector(content: bytearray, sector: int) -> bytes:
        return bytes(content[sector * SECTOR : (sector + 1) * SECTOR]).ljust(SECTOR, b"\0")


class Folder:
    """Names as seen, and as durable."""

    __slots__ = ("disk", "names")

    def __init__(self) -> None:
        self.names: dict[str, Node] = {}
        self.disk: dict[str, Node] = {}

    def after_power_cut(self, rng: random.Random, keep: Keep) -> Folder:
        """What is left of this folder and all below: the durable names, and of each file what is left of it."""
        left = Folder()
        left.names = {name: node.after_power_cut(rng, keep) for name, node in self.disk.items()}
        left.disk = dict(left.names)
        return left


Node = Inode | Folder


class Entry(NamedTuple):
    """What a name is to mean from now on."""

    folder: Folder
    name: str
    node: Node | None  # None removes the name


class Event(NamedTuple):
    """Changes of names that become durable together: a rename between two folders is one event of both."""

    stamp: int
    entries: tuple[Entry, ...]

    def touches(self, folders: set[Folder]) -> bool:
        return any(entry.folder in folders for entry in self.entries)

    def folders(self) -> set[Folder]:
        return {entry.folder for entry in self.entries}

    def apply(self) -> None:
        for folder, name, node in self.entries:
            _set(folder.disk, name, node)


class Disk:
    """The tree of names from "/" and the journal of its changes."""

    def __init__(self) -> None:
        self.root = Folder()
        self.stamp = 0  # of the last effect
        self.events: list[Event] = []  # not yet durable, ascending stamps

    def next_stamp(self) -> int:
        self.stamp += 1
        return self.stamp

    def find(self, path: str) -> Node | None:
        """The node of this name, None where only the last part is missing. Raises: FileNotFoundError, NotADirectoryError."""
        node: Node | None = self.root
        for part in filter(None, os.path.normpath(path).split("/")):
            if not isinstance(node, Folder):
                raise os_error(errno.ENOENT if node is None else errno.ENOTDIR, path)
            node = node.names.get(part)
        return node

    def folder(self, path: str) -> Folder:
        node = self.find(path)
        if not isinstance(node, Folder):
            raise os_error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def file(self, path: str) -> Inode:
        node = self.find(path)
        if not isinstance(node, Inode):
            raise os_error(errno.ENOENT if node is None else errno.EISDIR, path)
        return node

    def parent(self, path: str) -> tuple[Folder, str]:
        above, name = os.path.split(os.path.normpath(path))
        return self.folder(above), name

    def used_bytes(self) -> int:
        folders, used = [self.root], 0
        while folders:
            for node in folders.pop().names.values():
                if isinstance(node, Folder):
                    folders.append(node)
                else:
                    used += len(node.cached)
        return used

    def change(self, stamp: int, *entries: Entry) -> None:
        """Changes names as seen, in one event."""
        for folder, name, node in entries:
            _set(folder.names, name, node)
        self.events.append(Event(stamp, entries))

    def settle(self, folder: Folder, upto: int, *, lost: bool) -> None:
        """Ends a folder's sync, like `Inode.settle`. An event of two folders drags the other's earlier ones along."""
        reached, settled = {folder}, []
        for event in reversed(self.events):
            if event.stamp <= upto and event.touches(reached):
                reached |= event.folders()
                settled.append(event)
        gone = {event.stamp for event in settled}
        self.events = [event for event in self.events if event.stamp not in gone]
        for event in () if lost else reversed(settled):
            event.apply()

    def twin(self) -> Disk:
        """A deep copy in which a file with several names, or none any more but an event, is still one file."""
        twin, twins = Disk(), dict[Node, Node]()
        twin.stamp = self.stamp
        twin.root = _twin_folder(self.root, twins)
        for event in self.events:
            entries = (Entry(_twin_folder(e.folder, twins), e.name, e.node and _twin(e.node, twins)) for e in event.entries)
            twin.events.append(Event(event.stamp, tuple(entries)))
        return twin

    def after_power_cut(self, rng: random.Random, keep: Keep) -> Disk:
        """What may be left: a prefix of each folder's events, and of each file what `Inode.after_power_cut` says."""
        copy, left = self.twin(), Disk()
        pick, closed = _chooser(rng, keep), set[Folder]()
        for event in copy.events:
            if event.touches(closed) or not pick([False, True]):
                closed |= event.folders()
            else:
                event.apply()
        left.root = copy.root.after_power_cut(rng, keep)
        return left


def sectors_of(begin: int, end: int) -> range:
    """The sectors that the bytes [begin, end) touch."""
    return range(begin // SECTOR, -(-end // SECTOR))


def os_error(number: int, path: str | None = None) -> OSError:
    """What the operating system would raise."""
    return OSError(number, os.strerror(number), path)


def _put(disk: bytearray, sector: int, data: bytes) -> None:
    begin, end = sector * SECTOR, (sector + 1) * SECTOR
    if len(disk) < end:
        disk.extend(bytes(end - len(disk)))
    disk[begin:end] = data


def _set(names: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        names.pop(name, None)
    else:
        names[name] = node


def _chooser(rng: random.Random, keep: Keep) -> Callable[[list[_T]], _T]:
    """Picks between what the disk had (first) and the newest (last)."""
    if keep != "random":
        return lambda candidates: candidates[0 if keep == "none" else -1]
    share = rng.choice(_NEWEST_SHARES)
    return lambda candidates: candidates[-1] if rng.random() < share else rng.choice(candidates[:-1] or candidates)


def _twin(node: Node, twins: dict[Node, Node]) -> Node:
    if node in twins:
        return twins[node]
    if isinstance(node, Inode):
        twins[node] = node.twin()
        return twins[node]
    twin = twins[node] = Folder()
    twin.names = {name: _twin(child, twins) for name, child in node.names.items()}
    twin.disk = {name: _twin(child, twins) for name, child in node.disk.items()}
    return twin


def _twin_folder(folder: Folder, twins: dict[Node, Node]) -> Folder:
    twin = _twin(folder, twins)
    assert isinstance(twin, Folder)
    return twin
