"""The token file: who may come in. One credential a line; what is kept of a token is its hash.

    # name   roles         SHA-256 of the token                     expires (optional, RFC 3339)
    ci       invoke,read   sha256:9f86d081884c7d659a2feaa0c55ad0…   2027-01-31T00:00:00Z

One rule: a line that is not understood is an error with its number; no one is accepted or rejected by a guess. A line feed alone
ends a line, the last one too, so that a file that was cut is refused: without its fourth word, a credential would be valid for
ever. Characters at which some programs break lines, and others do not, are refused.

A token is 256 bits of chance, so it cannot be guessed, and a plain fast hash is right: a slow, salted one protects secrets
that people choose, and would cost every request what it costs an attacker. Lines of the same name are several tokens of one
credential: that is how a token is replaced without a gap. A token itself is never in the file.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cmdlog.api.gate.route_table import ADMIN, ROLES

DEFAULT: Final = "default"  # the name of every caller without a token file
PREFIX: Final = "cmdlog_"  # of a token: lets scanners of repositories and logs know a leaked one
TOKEN_BYTES: Final = 32  # of chance
FILE_BYTES_MAX: Final = 1 << 16
CREDENTIALS_MAX: Final = 256  # a request is compared with all of them, in about 0.2 us each
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,62}")
DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
HEAD: Final = "# name  roles  SHA-256 of the token  expires (optional)"
STRANGE: Final = re.compile(rb"[^\t\n\x20-\x7e]")
ID_CHARS: Final = 8  # of the hash: enough to tell the tokens of one name apart


@dataclass(frozen=True, slots=True)
class Credential:
    """One token of one name: what it may do, and until when."""

    name: str
    roles: frozenset[str]  # `admin` stands for all of them and brings them along
    digest: bytes
    expires_s: float | None = None  # Unix time

    @property
    def id(self) -> str:
        """Tells the tokens of one name apart, and nothing about the token."""
        return self.digest.hex()[:ID_CHARS]

    @property
    def stated_roles(self) -> tuple[str, ...]:
        """The roles as a file states them."""
        return (ADMIN,) if ADMIN in self.roles else tuple(role for role in ROLES if role in self.roles)


@dataclass(frozen=True, slots=True)
class TokenFile:
    """What a token file holds."""

    credentials: tuple[Credential, ...]


class BadTokenFile(ValueError):
    """The file cannot be understood. `line` counts from 1; 0 is the file as a whole."""

    def __init__(self, problem: str, line: int = 0) -> None:
        super().__init__(f"line {line}: {problem}" if line else problem)
        self.line = line


def digest_of(token: bytes) -> bytes:
    """What is kept of a token."""
    return hashlib.sha256(token).digest()


def make_token() -> str:
    """A new token: `cmdlog_` and 256 bits of chance."""
    return PREFIX + secrets.token_urlsafe(TOKEN_BYTES)


def read_roles(text: str) -> frozenset[str]:
    """Roles as a file or an option names them. Raises: ValueError."""
    given = set(text.split(","))
    if unknown := sorted(given - set(ROLES)):
        raise ValueError(f"no such role: {', '.join(map(repr, unknown))}; there are {', '.join(ROLES)}")
    return frozenset(ROLES if ADMIN in given else given)


def read_time(text: str) -> float:
    """An RFC 3339 time as Unix time. Raises: ValueError; OverflowError, before the year 1 or after 9999 in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or "T" not in text.upper():
        raise ValueError(f"{text!r} is not a time with an offset, such as 2027-01-31T00:00:00Z")
    return moment.astimezone(UTC).timestamp()


def write_time(seconds: float) -> str:
    """Unix time as RFC 3339, to the second."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_file(path: Path) -> bytes:
    """What the file holds, cut a byte after its limit. Raises: OSError; BadTokenFile, where others may write it."""
    with path.open("rb") as file:
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        if mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise BadTokenFile(f"has mode {mode:04o}: other users may write to it; check its credentials, then `chmod 600`")
        return file.read(FILE_BYTES_MAX + 1)


def parse_file(data: bytes) -> TokenFile:
    """The credentials of a token file. Raises: BadTokenFile.

    A file of comments alone admits nobody; an empty one is an error, because it may be half written.
    """
    lines = _text_of(data).split("\n")
    if not any(map(str.strip, lines)):
        raise BadTokenFile("is empty")
    if lines[-1]:
        raise BadTokenFile("has no line end: the file may have been cut; add one if the line is complete", len(lines))
    stated = [(number, words) for number, line in enumerate(lines, 1) if (words := line.split()) and not words[0].startswith("#")]
    if len(stated) > CREDENTIALS_MAX:
        raise BadTokenFile(f"holds more than {CREDENTIALS_MAX} tokens")
    seen: dict[bytes, int] = {}
    credentials = []
    for number, words in stated:
        credential = _credential(words, number)
        if credential.digest in seen:
            raise BadTokenFile(f"the same token is in line {seen[credential.digest]}", number)
        seen[credential.digest] = number
        credentials.append(credential)
    return TokenFile(tuple(credentials))


def _text_of(data: bytes) -> str:
    if len(data) > FILE_BYTES_MAX:
        raise BadTokenFile(f"has more than {FILE_BYTES_MAX} bytes")
    if (strange := STRANGE.search(data)) is not None:
        raise BadTokenFile(
            "contains a byte that is neither visible ASCII nor white space", data[: strange.start()].count(b"\n") + 1
        )
    return data.decode("ascii")


def _credential(words: list[str], number: int) -> Credential:
    """The errors show no word of the line: any of them may be a token that is in the wrong place."""
    if len(words) not in (3, 4):
        raise BadTokenFile(f"has {len(words)} words; a credential is: name roles sha256:<64 hex digits> [expires]", number)
    if not NAME.fullmatch(words[0]):
        raise BadTokenFile("the name must have 1 to 63 letters, digits and . _ @ -, a letter or digit first", number)
    digest = DIGEST.fullmatch(words[2])
    if digest is None:
        raise BadTokenFile("the third word must be sha256: and the 64 lower-case hex digits of a token's SHA-256", number)
    try:
        roles = read_roles(words[1])
    except ValueError:
        raise BadTokenFile(f"the second word must be roles joined by commas: {', '.join(ROLES)}", number) from None
    try:
        expires_s = read_time(words[3]) if len(words) == 4 else None
    except (ValueError, OverflowError):
        raise BadTokenFile("the fourth word must be a time with an offset, such as 2027-01-31T00:00:00Z", number) from None
    return Credential(words[0], roles, bytes.fromhex(digest[1]), expires_s)


def write_line(credential: Credential) -> str:
    """The line of a credential."""
    words = [credential.name, ",".join(credential.stated_roles), f"sha256:{credential.digest.hex()}"]
    if credential.expires_s is not None:
        words.append(write_time(credential.expires_s))
    return "  ".join(words)
