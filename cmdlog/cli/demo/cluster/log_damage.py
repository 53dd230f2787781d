"""A disk that gives a byte of the log back wrong.

One rule: it is damage and no torn end. The byte is in the middle of what the fullest segment holds, and whole blocks follow it.
"""

from __future__ import annotations

from pathlib import Path

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.wal.format.block import SECTOR_BYTES

CHANGED_BIT = 0x10


def flip_byte(directory: Path) -> Path:
    """Changes a byte of the log in a directory that no process has open; which file that is. Raises: CommandFailed, OSError."""
    segments = {path: path.read_bytes().rstrip(b"\0") for path in sorted((directory / "log").glob("seg-*.log"))}
    path = max(segments, key=lambda name: len(segments[name]), default=None)
    if path is None or len(segments[path]) <= 4 * SECTOR_BYTES:
        raise CommandFailed(f"{directory} holds no log that could be damaged")
    held = segments[path]
    at = len(held) // 2
    while not held[at]:  # padding between blocks holds nothing
        at -= 1
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(bytes([held[at] ^ CHANGED_BIT]))
    return path
