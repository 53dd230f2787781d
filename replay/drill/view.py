"""What a restore drill reads: the node's files as they were at one moment, in a folder that does not change while the node
continues.

One rule: the node never waits for a drill. Its ring recycles segments and retention removes snapshots at any time, so a
drill that read them in place would race against every call.

    snapshots         hard links; copies where the folder is on another volume. Files of snapshots are written once, and their
                      removal cuts nothing off a file that has another name (`snapshot.background_io.remove_file`)
    log               copies, the oldest segment first; a large log is copied in pieces, each of which yields
    archive, faults,  links to the node's own: the archive loses files only by its own rules, rows are looked up in the states
    state

Snapshots come first, so the log never ends before them. A segment that was recycled while it was copied has lost its name by
then, and its first block shows what the log no longer reaches: then the listing is repeated. When nothing changes between
listings there is no race, and the drill reports what is wrong.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from typing import Final

from cmdlog.wal.directory.instance import INSTANCE_NAME, LOG_FOLDER, load_instance
from cmdlog.wal.errors import Corrupt, WalError
from cmdlog.wal.fault_log import FAULTS_FOLDER
from cmdlog.wal.files import File, Files
from cmdlog.wal.format.segment import segment_sequence
from cmdlog.wal.hard_state import HARDSTATE_NAME
from replay.errors import ReplayError
from replay.log.source import open_source
from replay.state.trust import STATE_FOLDER
from snapshot.archive_layout import ARCHIVE
from snapshot.background_io import remove_tree
from snapshot.catalog import FOLDER as SNAPSHOTS
from snapshot.catalog import list_snapshots
from snapshot.manifest import parse_name
from snapshot.recovery_points import FOLDER as POINTS
from snapshot.retention import fallback

LOOKS_MAX: Final = 50  # a look at a small log takes milliseconds, and a large log turns around in minutes
SAME_LOOKS: Final = 3  # as many in a row that fail alike are no race
QUICK_BYTES: Final = 32 << 20  # of log that are copied at once; more would fill the queue that the log's syncs wait in
PIECE_BYTES: Final = 1 << 20


class DrillNotRun(ReplayError):
    """The drill found no moment at which it could read what it needs; nothing is said about the snapshots."""

    hint = "run it again when the node is less busy, or give the log more or larger segments (`cmdlog recover DIR --to OUT`)"


class ViewChanged(Exception):
    """The node replaced files while they were being read."""


def take_view(files: Files, directory: str, folder: str) -> int:
    """Makes `folder` a view of the node; returns how many listings it took.

    A damaged log is copied as well: the proofs name the damage. Raises: DrillNotRun; WalError, OSError.
    """
    looks: list[tuple[list[str], list[str]]] = []  # names of snapshots, of segments
    while len(looks) < LOOKS_MAX:
        look = _snapshot_names(files, directory), _segment_names(files, directory)
        looks.append(look)
        try:
            _fill(files, directory, folder, *look)
            _check(files, folder)
        except (ViewChanged, FileNotFoundError, Corrupt) as error:
            if looks[-SAME_LOOKS:] == [look] * SAME_LOOKS:
                if isinstance(error, ViewChanged):  # it is whole as far as it can be
                    return len(looks)
                raise
            if os.path.exists(folder):
                remove_tree(folder)
        else:
            return len(looks)
    raise DrillNotRun(f"{directory} replaced snapshots or log files while they were being read, {LOOKS_MAX} times")


def log_bytes(files: Files, directory: str) -> int:
    """How much of the log a view copies."""
    return len(_segment_names(files, directory)) * load_instance(files, directory).segment_bytes


def name_own_paths(error: Exception, folder: str, directory: str) -> None:
    """Gives the error the node's own paths instead of those of the view."""
    error.args = tuple(arg.replace(folder, directory) if isinstance(arg, str) else arg for arg in error.args)
    for name in ("path", "filename"):
        if isinstance(path := getattr(error, name, None), str):
            setattr(error, name, path.replace(folder, directory))


def _fill(files: Files, directory: str, folder: str, snapshots: Sequence[str], segments: Sequence[str]) -> None:
    for path in (folder, os.path.join(folder, LOG_FOLDER), os.path.join(folder, SNAPSHOTS)):
        os.mkdir(path, 0o750)
    for name in snapshots:
        _hold(os.path.join(directory, SNAPSHOTS, name), os.path.join(folder, SNAPSHOTS, name))
    for name in (ARCHIVE, FAULTS_FOLDER, STATE_FOLDER, os.path.join(SNAPSHOTS, POINTS)):
        if files.exists(kept := os.path.join(directory, name)):
            os.symlink(kept, os.path.join(folder, name))
    _copy(files, directory, folder, [INSTANCE_NAME, os.path.join(LOG_FOLDER, HARDSTATE_NAME)], quiet=False)
    paths = [os.path.join(LOG_FOLDER, name) for name in segments]
    _copy(files, directory, folder, paths, quiet=log_bytes(files, directory) > QUICK_BYTES)
    if set(segments) - set(_segment_names(files, directory)):
        raise ViewChanged  # recycled, and perhaps written to while it was read


def _check(files: Files, folder: str) -> None:
    """The log reaches back to where recovery may have to begin. Raises: ViewChanged, Corrupt."""
    identity = load_instance(files, folder).identity
    try:
        first = int(open_source(files, folder).first_blocks[0])
    except Corrupt:
        raise
    except WalError as error:
        raise ViewChanged from error
    snapshots = list_snapshots(files, folder, identity)
    for partition in {snapshot.partition for snapshot in snapshots}:
        second = fallback([snapshot for snapshot in snapshots if snapshot.partition == partition])
        if second is not None and second.manifest is not None and second.manifest.log_block < first:
            raise ViewChanged


def _snapshot_names(files: Files, directory: str) -> list[str]:
    folder = os.path.join(directory, SNAPSHOTS)
    return [name for name in files.listdir(folder) if parse_name(name) is not None] if files.exists(folder) else []


def _segment_names(files: Files, directory: str) -> list[str]:
    """The oldest first."""
    return [name for name in files.listdir(os.path.join(directory, LOG_FOLDER)) if segment_sequence(name) is not None]


def _hold(snapshot: str, held: str) -> None:
    """Links the files of a snapshot under another name. Raises: ViewChanged when it was removed meanwhile."""
    os.mkdir(held, 0o750)
    try:
        for name in sorted(os.listdir(snapshot)):
            source, target = os.path.join(snapshot, name), os.path.join(held, name)
            try:
                os.link(source, target)
            except FileNotFoundError:
                raise
            except OSError:  # another volume, one without hard links, or another user's files
                shutil.copyfile(source, target)
    except FileNotFoundError as error:
        raise ViewChanged from error
    if not os.path.exists(snapshot):
        raise ViewChanged  # a copy may have been cut short by the removal


def _copy(files: Files, directory: str, folder: str, names: Sequence[str], *, quiet: bool) -> None:
    for name in names:
        file = files.open(os.path.join(directory, name), read_only=True)
        try:
            _copy_file(file, os.path.join(folder, name), quiet=quiet)
        finally:
            file.close()


def _copy_file(file: File, target: str, *, quiet: bool) -> None:
    """`quiet`: each piece is on the disk before the next is read, and the disk rests as long as it took."""
    descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    try:
        at = 0
        while piece := file.pread(PIECE_BYTES, at):
            began = time.monotonic()
            at += os.pwritev(descriptor, [piece], at, os.RWF_DSYNC if quiet else 0)
            if quiet:
                time.sleep(time.monotonic() - began)
    finally:
        os.close(descriptor)
