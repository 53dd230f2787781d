"""Which node of which cluster this is, and what it is at a moment: values."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog

from cmdlog.cluster.cluster_file import ClusterFile, client_place
from cmdlog.cluster.transport.peer_transport import PeerTls
from cmdlog.node.settings import Settings
from cmdlog.raft import RaftSettings
from cmdlog.raft.wire.secure_frames import Secret
from cmdlog.wal.directory.local_token import is_loopback

TICK_S: Final = 0.1  # nobody sees less than this: heartbeats, time-outs, looks of the parts that time brings
MEMBER_RAFT: Final = RaftSettings(heartbeat_ticks=2)
"""Five heartbeats in an election time-out: four may be late, and a node with many quiet groups pays half. A commit that no
message has brought to the followers does not wait for them (`cmdlog.raft.roles.leader`)."""

OPEN_TO: Final = "what the nodes say to each other travels unencrypted: give every node --peer-cert-file and --peer-ca-file"

log = structlog.get_logger("cmdlog.cluster")


class MemberState(enum.Enum):
    """Kudu's words for the life of a replica's node."""

    BOOTSTRAPPING = "bootstrapping"
    CONFIGURING = "configuring"
    RUNNING = "running"
    DIVERGED = "diverged"  # what it holds is not what the leader has, or its directory is older than what a peer has met of it


@dataclass(frozen=True, slots=True)
class MemberGround:
    """Which node of which cluster."""

    cluster: ClusterFile
    node: int
    secret: Secret
    listen: tuple[str, int] | None = None  # for peers; None: as the cluster file says
    raft: RaftSettings | None = None  # None: as the settings say
    tls: PeerTls | None = None  # of all that nodes say to each other; None: by the secret alone

    @property
    def tick_s(self) -> float:
        """Seconds of a tick."""
        return TICK_S

    def listening(self) -> dict[str, Any]:
        """Settings that the cluster file has: a member listens for clients at the port of its URL, and at its host on
        loopback alone, since any other address needs a credential."""
        host, port = client_place(self.cluster.member(self.node).client)
        return {"port": port, "host": host} if is_loopback(host) else {"port": port}

    def warn_unencrypted(self) -> None:
        """Logs, as the server does for its clients, that peers speak beyond loopback without TLS."""
        places = [self.listen, *(member.peer for member in self.cluster.members)]
        hosts = [host for host, _ in filter(None, places) if not is_loopback(host)]
        if self.tls is None and hosts:
            log.warning("not_encrypted", host=hosts[0], hint=OPEN_TO)

    def consensus(self, settings: Settings) -> RaftSettings:
        """Times and limits of this node's groups."""
        ticks = round(settings.election_timeout_ms / 1000 / TICK_S)
        return self.raft or replace(MEMBER_RAFT, election_ticks=ticks)
