"""Damage at rest: what disks and hands do to a directory of a node that is down.

One rule: every function does one thing to one file and says where; what must follow is the test's affair.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from pathlib import Path

from cmdlog.wal.fault_log import COPY_NAMES, FAULTS_FOLDER
from cmdlog.wal.format.block import SECTOR_BYTES
from cmdlog.wal.format.segment import segment_name, segment_sequence
from cmdlog.wal.hard_state import COPY_BYTES, HARDSTATE_NAME


def tree_hash(directory: str) -> str:
    """Of every name and byte below a directory."""
    digest = hashlib.sha256()
    for path in sorted(Path(directory).rglob("*")):
        digest.update(str(path.relative_to(directory)).encode() + b"\0")
        if path.is_file():
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def segments(directory: str) -> list[str]:
    """Paths of the log's segments, oldest first."""
    log = os.path.join(directory, "log")
    return [os.path.join(log, name) for name in sorted(os.listdir(log)) if segment_sequence(name) is not None]


def used_bytes(segment: str) -> int:
    """How far the segment is written, in whole sectors."""
    written = len(Path(segment).read_bytes().rstrip(b"\0"))
    return -(-written // SECTOR_BYTES) * SECTOR_BYTES


def overwrite(path: str, offset: int, data: bytes) -> None:
    """These bytes stand there now."""
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def flip(path: str, offset: int, mask: int = 0x40) -> None:
    """Some bits of one byte turn."""
    byte = Path(path).read_bytes()[offset]
    overwrite(path, offset, bytes([byte ^ mask]))


def zero_sector(path: str, offset: int) -> None:
    """The sector around the offset reads as zeros."""
    overwrite(path, offset // SECTOR_BYTES * SECTOR_BYTES, bytes(SECTOR_BYTES))


def truncate(path: str, size: int) -> None:
    """The file ends there."""
    os.truncate(path, size)


def delete(path: str) -> None:
    """The file is gone."""
    os.unlink(path)


def duplicate(segment: str, sequence: int) -> str:
    """The segment stands under another number, too."""
    target = os.path.join(os.path.dirname(segment), segment_name(sequence))
    shutil.copyfile(segment, target)
    return target


def swap(one: str, other: str) -> None:
    """Two files change places."""
    os.rename(one, f"{one}.swap")
    os.rename(other, one)
    os.rename(f"{one}.swap", other)


def damage_fault_log(directory: str, *copies: int) -> None:
    """These copies (0, 1) of the fault log are unreadable."""
    for copy in copies:
        flip(os.path.join(directory, FAULTS_FOLDER, COPY_NAMES[copy]), 20)


def damage_hard_state(directory: str, *copies: int) -> None:
    """These copies (0, 1) of the hard state are unreadable."""
    for copy in copies:
        flip(os.path.join(directory, "log", HARDSTATE_NAME), copy * COPY_BYTES + 40)


def spoil_segment(segment: str, rng: random.Random) -> str:
    """Some damage within what the segment holds; says what."""
    used = used_bytes(segment)
    offset = rng.randrange(used)
    kind = rng.choice(["flip", "zero", "0xff", "truncate", "delete"])
    if kind == "flip":
        flip(segment, offset, 1 << rng.randrange(8))
    elif kind == "zero":
        zero_sector(segment, offset)
    elif kind == "0xff":
        overwrite(segment, offset // SECTOR_BYTES * SECTOR_BYTES, b"\xff" * SECTOR_BYTES)
    elif kind == "truncate":
        truncate(segment, offset)
    else:
        delete(segment)
    return f"{kind} at {offset} of {used} of {segment}"
