"""What a node that is made again works with: its directory, who it is, and how it reaches the others.

One rule: clock, wire and report are given, so that a test decides what happens when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.copying.copy_client import CopyClient
from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.cluster.copying.copy_values import (
    CopyEnding,
    CopyFile,
    CopyManifest,
    CopyRequest,
    CopyStanding,
    CopyWait,
)
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.member.member_ground import MemberGround
from cmdlog.wal.files import Files


class AskedSource(Protocol):
    """A connection to a node that may have what is lacking: see `CopyClient`, which is the one."""

    def ask(self, wish: CopyWish) -> CopyStanding: ...

    def begin_copy(self, request: CopyRequest) -> CopyManifest | CopyWait: ...

    def read_chunks(self, copy: bytes, file: CopyFile, offset: int = 0) -> Any: ...

    def end(self, copy: bytes, ending: CopyEnding, why: str = "") -> None: ...


Connect = Callable[[bytes, MemberAddress], AbstractContextManager[AskedSource]]
"""Connects to a node as the given incarnation of this one, on entry. Raises: SourceLost."""


def connect_by(member: MemberGround) -> Connect:
    """Real connections."""

    def connect(incarnation: bytes, address: MemberAddress) -> CopyClient:
        ours = copy_credentials(member.cluster.cluster_id, member.node, incarnation, member.secret)
        return CopyClient(ours, address.node, address.peer, tls=member.tls)

    return connect


@dataclass(frozen=True, slots=True)
class RejoinGround:
    """See the module."""

    files: Files
    directory: str
    member: MemberGround
    connect: Connect
    progress: Callable[[Mapping[str, Any]], None]  # may raise, and that ends the start; what was copied stays
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic

    @property
    def node(self) -> int:
        return self.member.node

    @property
    def address(self) -> MemberAddress:
        """Where this node is reached. Raises: BadClusterFile."""
        return self.member.cluster.member(self.member.node)
