"""`log/hardstate`: the second home of term and vote, and of the few facts that segments cannot prove about themselves.

One rule: two equal copies, each checksummed and synced before the other is touched. So one bad copy is healed by the other: it
was either torn in a crash, and then nobody relied on it, or it has rotted, and then the other says the same. Two are damage.

Beside term and vote of every group it notes the oldest and newest segment, so that a missing file at either end of the log is
seen, and a block known durable at an orderly close. FORMAT.md "Hard state file".
"""

from __future__ import annotations

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

    def __init__(self, file: File, state: HardStateValues, revision: int) -> None:
        self._file, self.state, self._revision = file, state, revision

    def save(self) -> None:
        """Writes `state` to both copies, one after the other; durable on return. Raises: WriteFailed, DiskFull."""
        self._revision += 1
        data = _encode(self.state, self._revision)
        for offset in (0, COPY_BYTES):
            self._file.pwrite(data, offset)
            self._file.fdatasync()

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


def read_hardstate(files: Files, log_dir: str) -> tuple[HardStateValues, int, bool]:
    """The state, its revision, and whether both copies agree.

    Raises: Corrupt when the file is missing or neither copy is valid.
    """
    path = os.path.join(log_dir, HARDSTATE_NAME)
    if not files.exists(path):
        raise Corrupt("hard state file is missing", path=path)
    data = files.read_file(path)
    copies = [copy for copy in (_decode(data[:COPY_BYTES]), _decode(data[COPY_BYTES:])) if copy is not None]
    if not copies:
        raise Corrupt("both copies of the hard state are bad", path=path)
    state, revision = max(copies, key=lambda copy: copy[1])
    return state, revision, len(copies) == 2 and copies[0][1] == copies[1][1]


def open_hardstate(files: Files, log_dir: str) -> tuple[HardStateFile, bool]:
    """Opens for writing; the flag says that a copy was bad or behind, which the next `save` heals."""
    state, revision, whole = read_hardstate(files, log_dir)
    return HardStateFile(files.open(os.path.join(log_dir, HARDSTATE_NAME)), state, revision), not whole


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
