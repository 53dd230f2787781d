"""The two files of which every node of a cluster gets a copy: which nodes make it and what it begins with, and its secret.

One rule: the cluster file holds no secret and nothing that changes. What changes later (members, code, tables) is in the log. Of
the secret doubt refuses: a file that others on the machine may read is no secret, so it is an error, not a warning: everyone who
holds it is a node of the cluster.
"""

from __future__ import annotations

import binascii
import contextlib
import ipaddress
import os
import secrets
import socket
import stat
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import urlsplit

import orjson

from cmdlog.operator_error import OperatorError
from cmdlog.raft.wire.secure_frames import SECRET_BYTES_MAX, SECRET_BYTES_MIN, Secret
from cmdlog.wal.format.json_reader import DOCUMENT_BYTES_MAX, read_document

FORMAT: Final = 1
NODES_MAX: Final = 9
BROADCAST: Final = ipaddress.IPv4Address("255.255.255.255")


class BadClusterFile(OperatorError):
    """The file is not one that `cmdlog cluster init` wrote, or does not fit this node."""

    kind = "BadClusterFile"
    exit_code = 2
    hint = "`cmdlog cluster init` makes the file, and `cmdlog cluster join` that of a node which joins later"


class PlaceTaken(ValueError):
    """Two listeners at one place."""


@dataclass(frozen=True, slots=True)
class MemberAddress:
    """Where one node is reached."""

    node: int
    peer: tuple[str, int]  # host and port for the other nodes
    client: str  # URL for clients


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """What every node of a new cluster knows."""

    cluster_id: bytes  # [16]
    database: str  # name of the application's `Database`
    members: tuple[MemberAddress, ...]  # ascending by node
    shape: Mapping[str, Any]  # partitions, slots, key_policy
    genesis: str  # digest of what every log begins with

    @property
    def nodes(self) -> tuple[int, ...]:
        return tuple(member.node for member in self.members)

    def member(self, node: int) -> MemberAddress:
        """Raises: BadClusterFile."""
        for member in self.members:
            if member.node == node:
                return member
        raise BadClusterFile(f"node {node} is not a member: the cluster file lists {', '.join(map(str, self.nodes))}")

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "cluster_id": str(uuid.UUID(bytes=self.cluster_id)),
            "database": self.database,
            "members": [
                {"node": member.node, "peer": f"{member.peer[0]}:{member.peer[1]}", "client": member.client}
                for member in self.members
            ],
            "shape": self.shape,
            "genesis": self.genesis,
        }

    def save(self, path: Path) -> None:
        """Writes a new file. Raises: FileExistsError, OSError."""
        data = orjson.dumps(self.to_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        with open(path, "xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Raises: BadClusterFile."""
        try:
            with path.open("rb") as file:
                value = read_document(file.read(DOCUMENT_BYTES_MAX + 1))
            if value["format"] != FORMAT:
                raise BadClusterFile(f"{path} has format {value['format']}, and this program reads {FORMAT}")
            members = [
                MemberAddress(int(member["node"]), parse_address(str(member["peer"])), str(member["client"]))
                for member in value["members"]
            ]
            check_members(members)
            if int(value["shape"]["partitions"]) < 1:
                raise ValueError(f"{value['shape']['partitions']} partitions")
            return cls(
                uuid.UUID(str(value["cluster_id"])).bytes,
                str(value["database"]),
                tuple(sorted(members, key=lambda member: member.node)),
                value["shape"],
                str(value["genesis"]),
            )
        except OSError as error:
            raise BadClusterFile(f"cannot read {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise BadClusterFile(f"{path} is no cluster file: {error!r}") from None


def check_members(members: Sequence[MemberAddress]) -> None:
    """Each node once, and no two at one address: they would count as two votes. Raises: ValueError."""
    numbers = [member.node for member in members]
    if not 1 <= len(numbers) <= NODES_MAX or min(numbers) < 1 or len(set(numbers)) != len(numbers):
        raise ValueError(f"the nodes are {numbers}: 1 to {NODES_MAX} different positive numbers are possible")
    for member, other in combinations(members, 2):
        if member.peer == other.peer:
            raise ValueError(f"nodes {member.node} and {other.node} have the same peer address {_text(member.peer)}")


def check_new_members(members: Sequence[MemberAddress]) -> None:
    """What cannot work once the nodes run. Raises: ValueError, which names the nodes."""
    check_members(members)
    for place, member in enumerate(members):
        check_addresses(member, members[:place])


def check_addresses(member: MemberAddress, others: Iterable[MemberAddress]) -> None:
    """An address that no other node or client can call, and two listeners at one place.

    Raises: PlaceTaken; ValueError, which names the node.
    """
    listeners: dict[tuple[str, int], str] = {}
    for of in others:
        with contextlib.suppress(ValueError):  # a cluster of before is not judged
            listeners |= {(_one_name(host), port): f"{what} of node {of.node}" for what, (host, port) in _places(of)}
    for what, place in _places(member):
        if why := _no_destination(*place):
            raise ValueError(f"node {member.node}: the {what} {_text(place)} {why}")
        mine = f"{what} of node {member.node}"
        if (other := listeners.setdefault((_one_name(place[0]), place[1]), mine)) != mine:
            raise PlaceTaken(f"the {mine} and the {other} are both {_text(place)}: each needs a port of its own")
    parts = urlsplit(member.client)
    if parts.username is not None or parts.query or parts.fragment:
        raise ValueError(f"node {member.node}: the URL {member.client!r} has more than scheme, host, port and path")


def _places(member: MemberAddress) -> list[tuple[str, tuple[str, int]]]:
    """Where it listens, and what for. Raises: ValueError."""
    return [("peer address", member.peer), ("URL", client_place(member.client))]


def client_place(url: str) -> tuple[str, int]:
    """Host and port of a URL for clients. Raises: ValueError."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError(f"{url!r} names no host")
    return parts.hostname, (443 if parts.scheme == "https" else 80) if parts.port is None else parts.port


def _no_destination(host: str, port: int) -> str:
    """Why nobody can connect to it; "" where it is not known."""
    address = _numbers(host)
    if address is not None and address.is_unspecified:
        return "is where a program listens, not where others reach it"
    if address is not None and (address.is_multicast or address == BROADCAST):
        return "is no address of one machine"
    if not all(character.isalnum() or character in "-._:%" for character in host):
        return "names no host"
    return "" if port else "is any free port, which others cannot know"


def _numbers(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a program connects to, also in its short forms: 0, 127.1. None for a name."""
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        return getattr(address, "ipv4_mapped", None) or address
    with contextlib.suppress(OSError):
        return ipaddress.IPv4Address(socket.inet_aton(host))
    return None


def _one_name(host: str) -> str:
    name = host.lower().removesuffix(".")
    return "127.0.0.1" if name in ("localhost", "::1") else str(_numbers(name) or name)


def _text(place: tuple[str, int]) -> str:
    return f"[{place[0]}]:{place[1]}" if ":" in place[0] else f"{place[0]}:{place[1]}"


def parse_address(text: str) -> tuple[str, int]:
    """host:port. Raises: ValueError."""
    bracketed, _, port = text.rpartition(":")
    host = bracketed.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is no host:port")
    return host, int(port)


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
