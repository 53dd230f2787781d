"""Whether this node's directory is older than what a peer has met of its life: an image was put back, or it is a copy.

One rule: such a disk may have forgotten votes, and entries that it acknowledged. So the node neither votes nor campaigns until
that peer takes it, and leads nothing. It still takes entries of a leader: what it says to have, it has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Final

import structlog

from cmdlog.cluster.group_transfer import set_franchise
from cmdlog.cluster.replication import Replication
from cmdlog.cluster.transport.peer_transport import LinkStatus
from cmdlog.raft import Franchise

log = structlog.get_logger("cmdlog.cluster")

REMEDY: Final = (
    'stop this node, keep a copy of its directory (CLUSTER.md, "A disk that went back"); then `cmdlog cluster replace {node}`, '
    "and start it with an empty directory: it copies what it lacks"
)


class DirectoryLineage:
    """Of one member. Any thread."""

    def __init__(self, node: int, driver: Replication, peers: Callable[[], Collection[LinkStatus]]) -> None:
        self._node, self._driver, self._peers = node, driver, peers
        self.met_later: frozenset[int] = frozenset()  # peers that have met a later start

    @property
    def is_asked_for(self) -> bool:
        """Whether some peer has not said yet what it has met: it is being called for the first time."""
        return not all(peer.was_called for peer in self._peers())

    def look_at_peers(self) -> bool:
        """What the peers have said until now; whether that is new."""
        met = frozenset(int(peer.node) for peer in self._peers() if peer.met_later)
        with self._driver.lock:
            if met == self.met_later:
                return False
            self.met_later = met
            self._driver.ask_groups(partial(set_franchise, franchise=Franchise.NO_WORD if met else Franchise.FULL))
        if met:
            log.error(
                "directory_went_back", met_by=sorted(met), remedy=REMEDY.format(node=self._node),
                reason="its directory is older than what these nodes have met of it, or a copy of it runs",
            )  # fmt: skip
        else:
            log.warning("directory_is_current", reason="the nodes that refused it take it now")
        return True
