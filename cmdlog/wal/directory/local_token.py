"""What a server and the users of its machine have in common: loopback addresses, and the local token.

Without a token file any user of the machine reaches the server. What proves its owner is the local token: made at every start, in
a file of the node directory that its owner alone may read. Commands of the owner find it by themselves: the process that listens
at the address has files of the directory open, and Linux shows those to the owner of the process and to root alone.

One rule: the token goes to no process but the one that has shown it, whatever address is given.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import stat
from collections.abc import Collection, Iterator
from typing import Final
from urllib.parse import urlsplit

LOCAL_TOKEN_NAME: Final = "local-token"  # noqa: S105 - the name of a file
TOKEN: Final = re.compile(rb"cmdlog_[A-Za-z0-9_-]{43}\n")
TOKEN_BYTES_MAX: Final = 100  # what is longer is none
PORTS: Final = {"http": 80, "https": 443}
SOCKET_TABLES: Final = ("/proc/net/tcp", "/proc/net/tcp6")
LISTENING: Final = "0A"  # the state of a socket in these tables, which begin with the sockets that listen
SOCKET: Final = "socket:["


def is_loopback(host: str) -> bool:
    """Reachable from this machine alone. Host names other than localhost are not resolved: their meaning may change."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def shown_to_owner(directory: str, token: str) -> Iterator[None]:
    """For the block the token is in a file of the node directory, whose lock the caller has.

    The file is a new one: what stood there, or a link, is never written to. Raises: OSError, before the block.
    """
    path = os.path.join(directory, LOCAL_TOKEN_NAME)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def find_local_token(url: str) -> str:
    """The token of the server that listens at a loopback address, "" where there is none that this user may read.

    All that listens on the port has to be one user's: which of several a name such as localhost leads to is not known before.
    """
    address = urlsplit(url)
    if not is_loopback(address.hostname or ""):
        return ""
    listeners = _listeners(address.port or PORTS[address.scheme])
    owners = set(listeners.values())
    if len(owners) != 1:
        return ""
    (owner,) = owners
    return next(filter(None, (_token_in(folder, owner) for folder in _folders_of(listeners.keys(), owner))), "")


def _listeners(port: int) -> dict[str, int]:
    """Sockets that listen on this port, as links of /proc name them, and the user of each."""
    found = {}
    for table in SOCKET_TABLES:
        with contextlib.suppress(OSError), open(table, encoding="ascii") as lines:
            next(lines)
            for fields in map(str.split, lines):
                if fields[3] != LISTENING:
                    break
                if int(fields[1].rpartition(":")[2], 16) == port:
                    found[f"{SOCKET}{fields[9]}]"] = int(fields[7])
    return found


def _folders_of(sockets: Collection[str], owner: int) -> Iterator[str]:
    """Folders of what a process of this user has open beside one of these sockets."""
    for process in filter(str.isdigit, os.listdir("/proc")):
        opened = set()
        with contextlib.suppress(OSError):  # it has just ended, or nobody may look into it
            for name in os.listdir(f"/proc/{process}/fd") if os.stat(f"/proc/{process}").st_uid == owner else ():
                with contextlib.suppress(FileNotFoundError):
                    opened.add(os.readlink(f"/proc/{process}/fd/{name}"))
        if not opened.isdisjoint(sockets):
            yield from sorted({os.path.dirname(path) for path in opened if path.startswith("/")})


def _token_in(folder: str, owner: int) -> str:
    """Only what the socket's owner has written for himself alone: root must not show a file of its own to another's server."""
    try:
        descriptor = os.open(os.path.join(folder, LOCAL_TOKEN_NAME), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        private = stat.S_ISREG(found.st_mode) and found.st_uid == owner and not found.st_mode & (stat.S_IRWXG | stat.S_IRWXO)
        token = file.read(TOKEN_BYTES_MAX) if private else b""
    return token.decode().strip() if TOKEN.fullmatch(token) else ""
