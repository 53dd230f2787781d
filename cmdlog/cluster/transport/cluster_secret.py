"""The cluster's secret as a file: what every node of one cluster holds, and nobody else.

One rule: doubt refuses. A file that others on the machine may read is no secret, so it is an error, not a warning: everyone who
holds it is a node of the cluster.
"""

from __future__ import annotations

import binascii
import os
import secrets
import stat
from pathlib import Path
from typing import Final

from cmdlog.operator_error import OperatorError
from cmdlog.raft.wire.secure_frames import SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret

SECRET_BYTES: Final = 32  # of a new one
FILE_BYTES_MAX: Final = 2 * SECRET_BYTES_MAX + 2  # hexadecimal, and a line end
HEX_DIGITS: Final = frozenset(b"0123456789abcdefABCDEF")


class BadSecret(OperatorError):
    """The file of the cluster's secret cannot be used."""

    exit_code = 2
    hint = "make one with `openssl rand -hex 32`, give it mode 600, and copy the same file to every node"


def new_secret_text() -> str:
    """A secret as a file holds it: hexadecimal digits and a line end."""
    return secrets.token_hex(SECRET_BYTES) + "\n"


def read_secret(path: Path) -> Secret:
    """The secret of a file: hexadecimal, or 16 to 64 raw bytes; a line end after it does not count.

    Raises: BadSecret when it cannot be read, others may read it, or it is too short or too long.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            raw = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSecret(f"the cluster's secret {path} cannot be read: {error.strerror}") from None
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        shown = f"{stat.S_IMODE(mode):03o}"
        raise BadSecret(f"{path} has mode {shown}: others may use the cluster's secret", hint=f"chmod 600 {path}")
    return Secret(_key(path, raw))


def _key(path: Path, raw: bytes) -> bytes:
    text = raw.removesuffix(b"\n").removesuffix(b"\r")
    # 32 or more hexadecimal digits are meant as such: raw bytes look like them by chance once in 2^128 times.
    key = binascii.unhexlify(text) if _is_hex(text) else text
    if not SECRET_BYTES_MIN <= len(key) <= SECRET_BYTES_MAX:
        size = f"{len(key)} bytes" if len(raw) <= FILE_BYTES_MAX else f"more than {SECRET_BYTES_MAX} bytes"
        raise BadSecret(f"{path} has {size}, but a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX}")
    return key


def _is_hex(text: bytes) -> bool:
    return len(text) >= 2 * SECRET_BYTES_MIN and len(text) % 2 == 0 and HEX_DIGITS.issuperset(text)
