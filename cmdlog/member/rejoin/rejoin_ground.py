"""What a node that is made again works with: its directory, who it is, and how it reaches the others.

One rule: clock and report are given, so that a test decides what happens when.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cmdlog.cluster.cluster_file import MemberAddress
from cmdlog.cluster.copying.copy_client import CopyClient
from cmdlog.cluster.copying.copy_frames import copy_credentials
from cmdlog.member.member_ground import MemberGround
from cmdlog.wal.files import Files


@dataclass(frozen=True, slots=True)
class RejoinGround:
    """See the module."""

    files: Files
    directory: str
    member: MemberGround
    progress: Callable[[Mapping[str, Any]], None] | None = None  # may raise, and that ends the start; what was copied stays
    pause: Callable[[float], None] = time.sleep
    now: Callable[[], float] = time.monotonic

    @property
    def node(self) -> int:
        return self.member.node

    @property
    def address(self) -> MemberAddress:
        """Where this node is reached. Raises: BadClusterFile."""
        return self.member.cluster.member(self.member.node)

    def connect(self, incarnation: bytes, address: MemberAddress) -> CopyClient:
        """Connects to a node as the given incarnation of this one, on entry. Raises: SourceLost."""
        member = self.member
        ours = copy_credentials(member.cluster.cluster_id, member.node, incarnation, member.secret)
        return CopyClient(ours, address.node, address.peer, tls=member.tls)

    def report(self, said: Mapping[str, Any]) -> None:
        """How far the copy is. Raises: what `progress` raises."""
        if self.progress is not None:
            self.progress(said)
