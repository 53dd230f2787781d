"""`log/hardstate`: the second home of term and vote, and of the few facts that segments cannot prove about themselves.

One rule: two copies, each checksummed and synced before the other is touched; the valid one with the higher revision counts. A
bad copy is healed by the other: it was either torn in a crash, and then nobody relied on it, or it has rotted. Two are damage.

`save` brings both up to date. `save_votes` writes the older one alone, one sync: for votes, which stand in the log too. Should
the newer copy rot before `save` follows, the older one lacks votes alone, and the log has them.

Beside term and vote of every group it notes the oldest and newest segment, so that a missing file at either end of the log is
seen, and a block known durable at an orderly close. FORMAT.md "Hard state file".
"""

from __future__ import annotations

import enum
import os
from dataclasses import dataclass, field
from typing import Final

import google_crc32c
import orjson

from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import File, Files
from cmdlog.wal.format.struct_layout import Layout

HARDSTATE_NAME: Final = "hardstate"
MAGIC: Final = b"CLHS"
VERSION: Final = 1
HARDSTATE: Final = Layout(
    "Hard state copy",
    ("magic", "4s"),
    ("version", "H"),
    ("reserved", "2s"),
    ("revision", "Q"),
    ("body_bytes", "I"),
    ("crc", "I"),
)
COPY_BYTES: Final = 64 << 10  # two numbers for each of PARTITIONS_MAX groups fit
FILE_BYTES: Final = 2 * COPY_BYTES


@dataclass(slots=True)
class HardStateValues:
    identity: str = ""  # hex of cluster, node and incarnation: a file from elsewhere is refused
    oldest: int = 1  # sequence of the oldest segment that the log needs
    newest: int = 1  # sequence of the newest segment that was put to use; a newer one may exist, an older one may not be the end
    durable: int = 0  # a block known durable
    votes: dict[int, tuple[int, int | None]] = field(default_factory=dict)  # group -> (term, vote)
    home: tuple[int, int, str] | None = None  # where the node last ran (`cmdlog.wal.opening.home`); None: not recorded yet


class HardStateFile:
    """The open file. Not thread-safe: the log's owner serialises the calls."""

    def __init__(self, file: File, state: HardStateValues, revision: int, *, older: int = 0) -> None:
        """`older`: the copy that is damaged, or has the lower revision: it is written first, so that one is always whole."""
        self._file, self.state, self._revision, self._older = file, state, revision, older
        self.behind = False  # one copy lacks what the other one says

    def save(self) -> None:
        """Writes `state` to both copies, one after the other; durable on return. Raises: WriteFailed, DiskFull."""
        self._revision += 1
        self._write_older()
        self._write_older()
        self.behind = False

    def save_votes(self) -> None:
        """Writes `state` to the older copy; durable on return. It may differ from what was saved last in votes alone.

        Raises: WriteFailed, DiskFull.
        """
        self._revision += 1
        self.behind = True
        self._write_older()

    def _write_older(self) -> None:
        self._file.pwrite(_encode(self.state, self._revision), self._older * COPY_BYTES)
        self._file.fdatasync()
        self._older = 1 - self._older

    def close(self) -> None:
        self._file.close()


def create_hardstate(files: Files, log_dir: str, state: HardStateValues) -> None:
    """Makes the file; content durable on return, the name after the caller's fsync_dir."""
    file = files.open(os.path.join(log_dir, HARDSTATE_NAME), create=True, exclusive=True)
    try:
        file.pwrite(bytes(FILE_BYTES), 0)
        file.fsync()
        HardStateFile(file, state, 0).save()
    finally:
        file.close()


class HardStateCopies(enum.Enum):
    """What the two copies are to each other."""

    EQUAL = "equal"
    BEHIND = "behind"  # one has a lower revision: a crash came before it was written
    DAMAGED = "damaged"  # one is not valid


def read_hardstate(files: Files, log_dir: str) -> tuple[HardStateValues, int, HardStateCopies]:
    """The state, its revision, and whether both copies say it.

    Raises: Corrupt when the file is missing or neither copy is valid.
    """
    state, revision, copies, _ = _read_copies(files, log_dir)
    return state, revision, copies


def _read_copies(files: Files, log_dir: str) -> tuple[HardStateValues, int, HardStateCopies, int]:
    """Last: the copy to write first."""
    path = os.path.join(log_dir, HARDSTATE_NAME)
    if not files.exists(path):
        raise Corrupt("hard state file is missing", path=path)
    data = files.read_file(path)
    first, second = _decode(data[:COPY_BYTES]), _decode(data[COPY_BYTES:])
    if first is None and second is None:
        raise Corrupt("both copies of the hard state are bad", path=path)
    if first is None or second is None:
        state, revision = first or second or (HardStateValues(), 0)
        return state, revision, HardStateCopies.DAMAGED, int(second is None)
    older = int(second[1] < first[1])
    state, revision = first if older else second
    return state, revision, HardStateCopies.EQUAL if first[1] == second[1] else HardStateCopies.BEHIND, older


def open_hardstate(files: Files, log_dir: str) -> HardStateFile:
    """Opens for writing; the next `save` heals a copy that is bad or behind."""
    state, revision, _, older = _read_copies(files, log_dir)
    return HardStateFile(files.open(os.path.join(log_dir, HARDSTATE_NAME)), state, revision, older=older)


def _encode(state: HardStateValues, revision: int) -> bytes:
    body = orjson.dumps(
        {
            "durable": state.durable,
            "identity": state.identity,
            "newest": state.newest,
            "oldest": state.oldest,
            **({"home": list(state.home)} if state.home is not None else {}),
            "votes": {str(group): list(vote) for group, vote in sorted(state.votes.items())},
        }
    )
    if len(body) > COPY_BYTES - HARDSTATE.bytes:
        raise ValueError(f"hard state of {len(state.votes)} groups has {len(body)} bytes")
    head = HARDSTATE.pack(MAGIC, VERSION, bytes(2), revision, len(body), 0)[:-4]
    crc: int = google_crc32c.extend(google_crc32c.value(head), body)
    return head + crc.to_bytes(4, "little") + body


def _decode(data: bytes) -> tuple[HardStateValues, int] | None:
    if len(data) < HARDSTATE.bytes:
        return None
    magic, version, reserved, revision, body_bytes, crc = HARDSTATE.unpack_from(data)
    body = data[HARDSTATE.bytes : HARDSTATE.bytes + body_bytes]
    actual = google_crc32c.extend(google_crc32c.value(data[: HARDSTATE.bytes - 4]), body)
    if (magic, version, reserved) != (MAGIC, VERSION, bytes(2)) or len(body) != body_bytes or actual != crc:
        return None
    value = orjson.loads(body)
    votes = {int(group): (vote[0], vote[1]) for group, vote in value["votes"].items()}
    home = tuple(value["home"]) if value.get("home") is not None else None
    return HardStateValues(value["identity"], value["oldest"], value["newest"], value["durable"], votes, home), revision
