"""Who a request comes from: the credentials of the token file, kept up to date while the server runs.

One rule: doubt keeps out. A token is compared with every credential in constant time; one that has expired stays expired,
whatever the clock does; a file that cannot be understood changes nothing, and an error says so.

Without a token file any user of the machine may read and call. What runs code as the server's user or changes members needs the
local token: made at every start, in a file of the node directory that its owner alone can read.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from hmac import compare_digest
from pathlib import Path
from typing import Any, Final

import structlog

from cmdlog.api.gate.problem import Problem, forbidden
from cmdlog.api.gate.route_table import LOCAL_ROLES, ROLES, Entry
from cmdlog.api.gate.token_file import (
    DEFAULT,
    BadTokenFile,
    Credential,
    TokenFile,
    digest_of,
    make_token,
    parse_file,
    read_file,
)
from cmdlog.node.settings import BadSetting
from cmdlog.wal.directory.local_token import LOCAL_TOKEN_NAME, shown_to_owner

RELOAD_S: Final = 1.0  # between looks at the file: a removed credential works that much longer at most
WANTED: Final = "send the header `Authorization: Bearer <token>` with a token of the server's token_file"
WANTED_HERE: Final = (
    f"without a token_file this needs the server's local token: commands of the server's user on its machine find it, "
    f"others read it from {LOCAL_TOKEN_NAME} in the node directory"
)

logger = structlog.get_logger("cmdlog.api")


def scope_of(credential: Credential) -> str:
    """The scope of a caller's idempotency keys: its name, so that a replaced token keeps them.

    Without a token file everybody is `default`, and its scope is the empty one: credentials that come later keep the keys.
    """
    return "" if credential.name == DEFAULT else credential.name


class LocalCallers:
    """No token file: any client that reaches the socket may read and call. `Settings` allows that on loopback alone.

    A bearer token that is not the local one counts for nothing: clients may hold one for another server.
    """

    required = False  # a request needs no credential
    _anonymous = Credential(DEFAULT, LOCAL_ROLES, b"")

    def __init__(self) -> None:
        self.token = make_token()
        self._owner = Credential(DEFAULT, frozenset(ROLES), digest_of(self.token.encode()))

    def describe(self) -> dict[str, Any]:
        return {}

    def authenticate(self, header: bytes | None) -> Credential:
        if header is None:
            return self._anonymous
        scheme, _, token = header.partition(b" ")
        known = compare_digest(self._owner.digest, digest_of(token.strip()))
        return self._owner if known and scheme.lower() == b"bearer" else self._anonymous

    def check(self, credential: Credential) -> None:
        return

    def refusal(self, entry: Entry) -> Problem:
        """A caller without a credential is asked for one: every other route is open to it."""
        return Problem("unauthenticated", WANTED_HERE)

    @contextmanager
    def shown_to_owner(self, directory: str) -> Iterator[None]:
        """For the block the owner of the node directory finds the token there. A full disk costs the token, not the start."""
        with ExitStack() as shown:
            try:
                shown.enter_context(shown_to_owner(directory, self.token))
            except OSError as error:
                hint = "no deploy and no change of members is possible"
                logger.warning("local_token_not_written", directory=directory, reason=error.strerror, hint=hint)
            yield


class ForwardClock:
    """Unix time that never goes back, and never slower than the machine runs: what has expired once has expired."""

    def __init__(self, wall: Callable[[], float] = time.time, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._wall, self._monotonic = wall, monotonic
        self._ahead = wall() - monotonic()  # greatest lead of the wall clock seen so far

    def now(self) -> float:
        """Seconds."""
        running = self._monotonic()
        self._ahead = max(self._ahead, self._wall() - running)
        return running + self._ahead


class Credentials:
    """The credentials of a token file. One thread: the event loop's."""

    required = True

    def __init__(self, path: Path, *, clock: ForwardClock | None = None, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Raises: BadSetting, when no client could be accepted."""
        self._path = path
        self._clock = clock or ForwardClock()
        self._monotonic = monotonic
        try:
            self._data: bytes | str = read_file(path)
            self._held = parse_file(self._data)
        except (OSError, BadTokenFile) as error:
            hint = f"`cmdlog token add {path} --name NAME` creates a token file, or adds a credential to one"
            raise BadSetting("token_file", _problem(path, error), hint=hint) from None
        if not self._held.credentials:
            raise BadSetting("token_file", f"{path} contains no credential; `cmdlog token add {path} --name NAME` adds one")
        self._looked = monotonic()
        self._refused = ""  # why the present file is not used
        self._warn()

    def describe(self) -> dict[str, Any]:
        """For the status: `problem` when the token file is invalid and the previous credentials stay in force.

        Any thread: as of the last request, and the caller has just made one.
        """
        told = {"path": str(self._path), "credentials": len(self._held.credentials)}
        return {**told, "problem": self._refused} if self._refused else told

    def authenticate(self, header: bytes | None) -> Credential:
        """The credential of an `Authorization` header. Raises: Problem (unauthenticated)."""
        self._reload()
        scheme, _, token = (header or b"").partition(b" ")
        if scheme.lower() != b"bearer":
            raise Problem("unauthenticated", WANTED)
        given = digest_of(token.strip())
        found = None
        for credential in self._held.credentials:  # all of them: how long it takes says nothing about which one fits
            if compare_digest(credential.digest, given):
                found = credential
        if found is None:
            raise Problem("unauthenticated", "the token is unknown; " + WANTED)
        self._check_expiry(found)
        return found

    def check(self, credential: Credential) -> None:
        """For requests that last: whether a credential that was accepted is still valid. Raises: Problem (unauthenticated)."""
        self._reload()
        for held in self._held.credentials:
            if held.digest == credential.digest and held.name == credential.name and held.roles >= credential.roles:
                self._check_expiry(held)
                return
        raise Problem("unauthenticated", "the credential was revoked")

    def refusal(self, entry: Entry) -> Problem:
        """The answer to a caller without the roles of this route."""
        return forbidden(*entry.needs)

    def shown_to_owner(self, directory: str) -> AbstractContextManager[None]:
        """Nothing is shown: an operator has tokens of the file, which are revoked and expire."""
        return nullcontext()

    def _check_expiry(self, credential: Credential) -> None:
        if credential.expires_s is not None and self._clock.now() >= credential.expires_s:
            raise Problem("unauthenticated", "the token has expired")

    def _reload(self) -> None:
        """Takes over what the file holds now. Its bytes are compared: times and sizes may be the same after a change."""
        now = self._monotonic()
        if now - self._looked < RELOAD_S:
            return
        self._looked = now
        try:
            data: bytes | str = read_file(self._path)
        except (OSError, BadTokenFile) as error:
            data = _problem(self._path, error)
        if data == self._data:
            return
        self._data = data
        try:
            self._held = _parsed(data)
        except BadTokenFile as error:
            self._refused = str(error)
            logger.error("token_file_refused", path=str(self._path), problem=str(error), kept=len(self._held.credentials))
            return
        self._refused = ""
        logger.info("token_file_reloaded", path=str(self._path), credentials=len(self._held.credentials))
        self._warn()

    def _warn(self) -> None:
        path = str(self._path)
        try:
            mode = os.stat(path).st_mode
        except OSError:
            return
        if mode & (stat.S_IRWXG | stat.S_IRWXO):
            logger.warning("token_file_open_to_others", path=path, mode=oct(stat.S_IMODE(mode)), hint=f"chmod 600 {path}")


Gatekeeper = LocalCallers | Credentials
"""What the gate asks."""


def make_gatekeeper(path: Path | None) -> Gatekeeper:
    """The gatekeeper for this setting. Raises: BadSetting."""
    return LocalCallers() if path is None else Credentials(path)


def _parsed(data: bytes | str) -> TokenFile:
    """Raises: BadTokenFile; a text says why the file could not be read."""
    if isinstance(data, str):
        raise BadTokenFile(data)
    return parse_file(data)


def _problem(path: Path, error: Exception) -> str:
    return f"{path} cannot be read: {error.strerror}" if isinstance(error, OSError) else f"{path}: {error}"
