"""A disk in memory that fails on request and loses power: the same door as `RealFiles`, for tests.

One rule: everything that happens follows from the seed and the calls; no clock, no operating system.

A file is two contents. *Cached* is what every read sees, *disk* is what a power cut leaves. A write changes the cached bytes
and leaves one *image* per touched 512-byte sector; a sync moves the images that existed when it began to the disk. A power
cut keeps, for each sector by itself, the disk's bytes or any later image: writes are torn and reordered, within a file and
between files, but no sector ever holds what it never held. Sizes and names work alike: truncation and growth are events of
the file; creations, renames and removals are events of the folder, durable after its sync, and a power cut keeps a prefix of
each folder's events, as a journal does. Killing the process loses nothing and makes nothing durable: `kill`.

A failed sync drops its images: cached bytes stay, the disk never gets them, and a second sync succeeds and lies (ATC 2020,
see files.py). Every change of state is an `Operation` with a number; `fail_at` and `crash_at` say which go wrong, and the hook
`before` sees each before it takes effect, outside the lock: a test can hold a sync open and watch others overtake it, or take
a `power_cut` there and then, since the original goes on undisturbed.

Simpler than a disk: space is counted by file sizes, holes included; a full disk takes no part of a write; no permissions.
"""

from __future__ import annotations

import errno
import random
import threading
import zlib
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import Literal, NamedTuple, get_args

from cmdlog.wal.errors import ShortWrite, WalError
from cmdlog.wal.files import OWNER_BYTES_MAX, Data, Files, write_owner
from cmdlog.wal.os_errors import locked, raise_read_error, raise_write_error
from tests.wal.sim.simdisk import Disk, Entry, Folder, Inode, Keep, os_error, sectors_of

Kind = Literal["create", "pwrite", "truncate", "allocate", "fdatasync", "fsync", "mkdir", "rename", "unlink", "fsync_dir"]
Repeat = Literal["once", "forever"]


class SimCrash(BaseException):
    """The simulated process is dead. Not an `Exception`: no handler of the code under test may outlive it."""


class Fault(Enum):
    """What goes wrong with an operation."""

    IO_ERROR = "EIO"
    NO_SPACE = "ENOSPC"  # of a sync too: some file systems find their space late
    SHORT_WRITE = "a part is written, and the caller is told"
    LOST_WRITE = "cached and reported as done, but the disk never gets it"
    MISDIRECTED_WRITE = "cached in place, but the disk puts it one sector further"
    CRASH = "the process ends; of a write, some first sectors may be in the cache"


_ALL_KINDS: frozenset[Kind] = frozenset(get_args(Kind))
_WRITES: frozenset[Kind] = frozenset({"pwrite"})
_KINDS: dict[Fault, frozenset[Kind]] = {
    Fault.IO_ERROR: _ALL_KINDS,
    Fault.NO_SPACE: _ALL_KINDS - {"unlink"},
    Fault.SHORT_WRITE: _WRITES,
    Fault.LOST_WRITE: _WRITES,
    Fault.MISDIRECTED_WRITE: _WRITES,
    Fault.CRASH: _ALL_KINDS,
}
_ERRNO = {Fault.IO_ERROR: errno.EIO, Fault.NO_SPACE: errno.ENOSPC}


class Operation(NamedTuple):
    """One change of state, as it was asked for."""

    number: int  # from 1
    kind: Kind
    path: str
    offset: int = 0
    size: int = 0  # of a pwrite's data; the new one of a truncate; what an allocate asks for
    crc: int = 0  # CRC-32 of a pwrite's data
    target: str = ""  # of a rename


class Hit(NamedTuple):
    """A planned fault that took place."""

    operation: Operation
    fault: Fault


class Begun(NamedTuple):
    stamp: int  # effects with a stamp up to this one were there when the operation began
    fault: Fault | None


class _Plan:
    """A fault that waits for its operation."""

    __slots__ = ("fault", "kinds", "left", "repeat")

    def __init__(self, fault: Fault, kinds: frozenset[Kind], left: int, repeat: Repeat) -> None:
        self.fault, self.kinds, self.left, self.repeat = fault, kinds, left, repeat

    def meets(self, kind: Kind) -> bool:
        if kind not in self.kinds:
            return False
        self.left -= 1
        return self.left == 0 or (self.left < 0 and self.repeat == "forever")


class SimFile:
    """A handle; `SimFiles.open` makes it."""

    __slots__ = ("_files", "_writable", "inode", "path")

    def __init__(self, files: SimFiles, inode: Inode, path: str, *, writable: bool) -> None:
        self._files, self.path, self._writable = files, path, writable
        self.inode: Inode | None = inode  # None when closed

    def pread(self, size: int, offset: int) -> bytes:
        with self._files.living():
            inode = self._opened()
            end = min(offset + size, len(inode.cached))
            if not inode.unreadable.isdisjoint(sectors_of(offset, end)):
                raise_read_error(os_error(errno.EIO), self.path, offset)
            return bytes(inode.cached[offset:end])

    def pwrite(self, data: Data, offset: int) -> None:
        action = f"write at offset {offset} of"
        self._files.write(self._writable_for(action), self.path, bytes(data), offset, action)

    def fdatasync(self) -> None:
        self._files.sync(self._opened_for("fdatasync of"), self.path, "fdatasync")

    def fsync(self) -> None:
        self._files.sync(self._opened_for("fsync of"), self.path, "fsync")

    def size(self) -> int:
        with self._files.living():
            return len(self._opened().cached)

    def truncate(self, size: int) -> None:
        action = f"truncation to {size} bytes of"
        inode = self._writable_for(action)
        with self._files.effect(action, "truncate", self.path, size=size) as stamp:
            inode.resize(size, stamp)

    def allocate(self, size: int) -> None:
        action = f"allocation of {size} bytes for"
        inode = self._writable_for(action)
        with self._files.effect(action, "allocate", self.path, size=size) as stamp:
            growth = max(0, size - len(inode.cached))
            if self._files.disk.used_bytes() + growth > self._files.capacity_bytes:
                raise_write_error(os_error(errno.ENOSPC), action, self.path)
            if growth:
                inode.resize(size, stamp)

    def close(self) -> None:
        self.inode = None

    def _opened(self) -> Inode:
        if self.inode is None:
            raise os_error(errno.EBADF, self.path)
        return self.inode

    def _opened_for(self, action: str) -> Inode:
        if self.inode is None:
            raise_write_error(os_error(errno.EBADF), action, self.path)
        return self.inode

    def _writable_for(self, action: str) -> Inode:
        if not self._writable:
            raise_write_error(os_error(errno.EBADF), action, self.path)
        return self._opened_for(action)


class SimLock:
    """A lock that `SimFiles.lock` gave; the end of the simulated process ends it too."""

    __slots__ = ("_file", "_holders", "path")

    def __init__(self, file: SimFile, holders: set[Inode]) -> None:
        self._file, self._holders, self.path = file, holders, file.path

    def owner(self) -> bytes:
        return self._file.pread(OWNER_BYTES_MAX, 0)

    def write_owner(self, record: bytes) -> None:
        write_owner(self._file, record)

    def close(self) -> None:
        if self._file.inode is not None:
            self._holders.discard(self._file.inode)
        self._file.close()


class SimDirectWriter:
    """Writes when it begins and syncs when it finishes, as two operations; a write that fails says so at the end."""

    def __init__(self, files: SimFiles) -> None:
        self._files = files
        self._file: SimFile | None = None
        self._failure: WalError | OSError | None = None
        self._sectors: set[int] = set()

    def start(self, path: str, data: bytes, offset: int) -> bool:
        if self._file is None or self._file.path != path:
            self._file = self._files.open(path)
        self._failure, self._sectors = None, set(sectors_of(offset, offset + len(data)))
        try:
            self._file.pwrite(data, offset)
        except (WalError, OSError) as error:
            self._failure = error
        return True

    def finish(self) -> bool:
        if self._failure is not None:
            raise self._failure
        if self._file is not None and self._file.inode is not None:
            self._files.sync(self._file.inode, self._file.path, "fdatasync", self._sectors)
        return True

    def close(self) -> None:
        self._file = None


class SimFiles(Files):
    """A simulated machine with one file system, that holds the folder "/"; any thread may use it."""

    def __init__(
        self, seed: int = 0, *, capacity_bytes: int = 1 << 30, before: Callable[[Operation], None] | None = None
    ) -> None:
        self.capacity_bytes = capacity_bytes  # may be changed at any time: a disk fills up, space returns
        self.before = before
        self.trace: list[Operation] = []
        self.hits: list[Hit] = []
        self.boot = 1
        self.disk = Disk()
        self._seed = seed
        self._rng = random.Random(seed)
        self._guard = threading.RLock()
        self._plans: list[_Plan] = []
        self._dead = False
        self._locked: set[Inode] = set()

    # The door, as `Files` describes it

    def open(self, path: str, *, create: bool = False, exclusive: bool = False, read_only: bool = False) -> SimFile:
        with self.living():
            node = self.disk.find(path)
        if node is None and (create or exclusive):
            node = self._create(path)
        elif node is not None and exclusive:
            raise os_error(errno.EEXIST, path)
        if not isinstance(node, Inode):
            raise os_error(errno.ENOENT if node is None else errno.EISDIR, path)
        return SimFile(self, node, path, writable=not read_only)

    def listdir(self, path: str) -> list[str]:
        with self.living():
            return sorted(self.disk.folder(path).names)

    def mkdir(self, path: str) -> None:
        with self.effect("creation of folder", "mkdir", path) as stamp:
            folder, name = self.disk.parent(path)
            if name in folder.names:
                raise os_error(errno.EEXIST, path)
            self.disk.change(stamp, Entry(folder, name, Folder()))

    def rename(self, source: str, target: str) -> None:
        with self.effect(f"rename to {target} of", "rename", source, target=target) as stamp:
            node, replaced = self.disk.find(source), self.disk.find(target)
            if node is None:
                raise os_error(errno.ENOENT, source)
            if replaced is not None and type(node) is not type(replaced):
                raise os_error(errno.EISDIR if isinstance(replaced, Folder) else errno.ENOTDIR, target)
            if isinstance(replaced, Folder) and replaced.names:
                raise os_error(errno.ENOTEMPTY, target)
            gone, come = self.disk.parent(source), self.disk.parent(target)
            self.disk.change(stamp, Entry(*gone, None), Entry(*come, node))

    def unlink(self, path: str) -> None:
        with self.effect("removal of", "unlink", path) as stamp:
            self.disk.file(path)
            self.disk.change(stamp, Entry(*self.disk.parent(path), None))

    def exists(self, path: str) -> bool:
        with self.living():
            try:
                return self.disk.find(path) is not None
            except (FileNotFoundError, NotADirectoryError):
                return False

    def fsync_dir(self, path: str) -> None:
        begun = self._begin("fsync_dir", path)
        with self.living():
            self.disk.settle(self.disk.folder(path), begun.stamp, lost=begun.fault is not None)
            _refuse(begun.fault, "fsync of folder", path)

    def lock(self, path: str) -> SimLock:
        file = self.open(path, create=True)
        with self.living():
            inode = self.disk.file(path)
            if inode in self._locked:
                raise locked(path, file.pread(OWNER_BYTES_MAX, 0))
            self._locked.add(inode)
            return SimLock(file, self._locked)

    def open_direct_writer(self) -> SimDirectWriter:
        return SimDirectWriter(self)

    def boot_id(self) -> str:
        return f"simulated boot {self.boot}"

    # Faults to come, and the disk that they leave to the next process

    def fail_at(self, number: int, fault: Fault, *, repeat: Repeat = "once", kinds: frozenset[Kind] | None = None) -> None:
        """Makes the `number`-th operation from now on fail, counted from 1 among `kinds` (default: all that can fail so)."""
        suited = _KINDS[fault] if kinds is None else _KINDS[fault] & kinds
        if number < 1 or not suited:
            raise ValueError(f"{fault} cannot happen at operation {number} of {sorted(kinds or suited)}")
        with self._guard:
            self._plans.append(_Plan(fault, suited, number, repeat))

    def crash_at(self, number: int) -> None:
        """Ends the process at the `number`-th operation from now on: that and every later call raise SimCrash."""
        self.fail_at(number, Fault.CRASH)

    def heal(self) -> None:
        """Takes back all planned faults; a dead process stays dead."""
        with self._guard:
            self._plans.clear()

    def kill(self) -> SimFiles:
        """What the next process finds after a kill of this one: all that was cached, nothing of it more durable than before."""
        with self._guard:
            return self._next(self.disk.twin(), seed=self._seed + len(self.trace), boot=self.boot)

    def power_cut(self, rng: random.Random, keep: Keep = "random") -> SimFiles:
        """What may be found after a loss of power now; `keep` is what of the unsynced changes."""
        with self._guard:
            return self._next(self.disk.after_power_cut(rng, keep), seed=rng.getrandbits(32), boot=self.boot + 1)

    # Damage at rest, which a process meets that starts on a cold cache; no operation, and nothing is counted

    def flip_bit(self, path: str, bit: int) -> None:
        """Inverts one bit of the file; bit 0 is the lowest of byte 0."""
        with self._guard:
            inode = self.disk.file(path)
            inode.damage(bit // 8, bytes((inode.cached[bit // 8] ^ 1 << bit % 8,)))

    def overwrite(self, path: str, offset: int, data: bytes) -> None:
        """Puts other bytes within the file."""
        with self._guard:
            self.disk.file(path).damage(offset, data)

    def make_unreadable(self, path: str, offset: int) -> None:
        """Makes every read of the sector at `offset` fail until it is written again."""
        with self._guard:
            self.disk.file(path).unreadable.update(sectors_of(offset, offset + 1))

    def swap(self, first: str, second: str) -> None:
        """Exchanges two files under their names, durably."""
        with self._guard:
            one, two = self.disk.file(first), self.disk.file(second)
            for path, inode in ((first, two), (second, one)):
                folder, name = self.disk.parent(path)
                folder.names[name] = folder.disk[name] = inode

    # For the handles

    @contextmanager
    def living(self) -> Iterator[None]:
        """Holds the machine still for one step of a living process."""
        with self._guard:
            if self._dead:
                raise SimCrash("the simulated process is dead")
            yield

    @contextmanager
    def effect(self, action: str, kind: Kind, path: str, *, size: int = 0, target: str = "") -> Iterator[int]:
        """Runs an operation whose effect is whole or nothing; gives its stamp."""
        begun = self._begin(kind, path, size=size, target=target)
        with self.living():
            _refuse(begun.fault, action, path)
            yield self.disk.next_stamp()

    def write(self, inode: Inode, path: str, data: bytes, offset: int, action: str) -> None:
        """Runs a pwrite, of which a crash or a short write leave some part."""
        begun = self._begin("pwrite", path, offset=offset, size=len(data), crc=zlib.crc32(data))
        dying = begun.fault is Fault.CRASH
        with self._guard if dying else self.living():
            if not dying:
                _refuse(begun.fault, action, path)
            growth = max(0, offset + len(data) - len(inode.cached))
            if growth and not dying and self.disk.used_bytes() + growth > self.capacity_bytes:
                raise_write_error(os_error(errno.ENOSPC), action, path)
            cut = begun.fault in {Fault.SHORT_WRITE, Fault.CRASH} and len(data) > 0
            done = self._rng.randrange(len(data)) if cut else len(data)
            stamp = self.disk.next_stamp()
            touched = inode.write(data[:done], offset, stamp) if done else range(0)
            if begun.fault is not Fault.LOST_WRITE:
                inode.dirty(touched, stamp, shift=1 if begun.fault is Fault.MISDIRECTED_WRITE else 0)
            _refuse(begun.fault, action, path)
        if done < len(data):
            raise ShortWrite(f"{action} {path} took {done} of {len(data)} bytes")

    def sync(self, inode: Inode, path: str, kind: Kind, sectors: Container[int] | None = None) -> None:
        """Runs a sync of what was there when it began; the hook may hold it, and other calls go on meanwhile."""
        begun = self._begin(kind, path)
        with self.living():
            inode.settle(begun.stamp, lost=begun.fault is not None, sectors=sectors)
            _refuse(begun.fault, f"{kind} of", path)

    def _begin(self, kind: Kind, path: str, *, offset: int = 0, size: int = 0, crc: int = 0, target: str = "") -> Begun:
        """Numbers the operation and finds its fault; then the hook sees it."""
        with self.living():
            operation = Operation(len(self.trace) + 1, kind, path, offset, size, crc, target)
            self.trace.append(operation)
            faults = [plan.fault for plan in self._plans if plan.meets(kind)]
            begun = Begun(self.disk.stamp, faults[0] if faults else None)
            if begun.fault is not None:
                self.hits.append(Hit(operation, begun.fault))
            self._dead = begun.fault is Fault.CRASH
        if self.before is not None and not self._dead:
            self.before(operation)
        return begun

    def _create(self, path: str) -> Inode:
        with self.effect("creation of", "create", path) as stamp:
            folder, name = self.disk.parent(path)
            inode = Inode()
            self.disk.change(stamp, Entry(folder, name, inode))
            return inode

    def _next(self, disk: Disk, *, seed: int, boot: int) -> SimFiles:
        files = SimFiles(seed, capacity_bytes=self.capacity_bytes)
        files.disk, files.boot = disk, boot
        return files


def _refuse(fault: Fault | None, action: str, path: str) -> None:
    if fault is Fault.CRASH:
        raise SimCrash(f"the simulated process died in the {action} {path}")
    if fault in _ERRNO:
        raise_write_error(os_error(_ERRNO[fault]), action, path)
