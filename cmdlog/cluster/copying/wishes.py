"""A disk's wish to be filled by a copy, and its state: values of ASK and STANDING.

One rule: no answer here admits anybody. A disk is admitted by a MEMBER entry of the cluster group alone; the answer repeats what
that entry says, and the disk asks again.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any, Self

from cmdlog.wal.format.cluster_record import ClusterMember
from cmdlog.wal.format.json_reader import whole_number


class WishRefusal(enum.Enum):
    """Why a disk is not filled as things are. It may ask again; what an operator has to do first, the sentence beside it says."""

    NOT_EXPECTED = "not_expected"  # the node is not of the cluster: an operator adds it
    REMOVED = "deleted"  # the node was removed for good: an operator adds it under another disk
    STALE_INCARNATION = "stale_incarnation"  # this life of the disk is over, and never comes back
    REPLACE_NEEDED = "replace_needed"  # another disk holds this node's place, and the asking one does not show that it was that
    QUORUM_AT_RISK = "quorum_at_risk"  # the live voters without it are no majority
    LAST_COPY = "last_copy"  # no live voter but it is known to hold everything
    OPERATION_UNDER_WAY = "operation_under_way"  # another node's change comes first; ask again
    NOT_LEADING = "not_leading"  # this node cannot decide it; ask the leader
    BUSY = "busy"  # an entry is on its way; ask again


@dataclass(frozen=True, slots=True)
class CopyWish:
    """ASK: what a disk says of itself."""

    node: int
    incarnation: bytes  # [8] of the life that it begins; drawn before it asks, and durable there
    former: bytes  # [8] of the life that it gives up; empty where it is not known
    reason: str  # why it is to be filled: for people
    peer: str  # host:port where it is to be reached; the cluster's own record counts
    client: str

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> Self:
        """Raises: KeyError, TypeError, ValueError."""
        incarnation, former = bytes.fromhex(value["incarnation"]), bytes.fromhex(value["former"])
        if len(incarnation) != 8 or len(former) not in (0, 8):
            raise ValueError(f"an incarnation has 8 bytes, not {len(incarnation)} and {len(former)}")
        texts = (str(value[name]) for name in ("reason", "peer", "client"))
        return cls(whole_number(value["node"]), incarnation, former, *texts)

    def to_json(self) -> dict[str, Any]:
        """The body of ASK."""
        lives = {"incarnation": self.incarnation.hex(), "former": self.former.hex()}
        return {"node": self.node, **lives, "reason": self.reason, "peer": self.peer, "client": self.client}


@dataclass(frozen=True, slots=True)
class WishStanding:
    """The state of a wish at the asked node. The copy begins when `member` is admitted with the asking incarnation."""

    member: ClusterMember | None  # as the cluster has committed it; None: it knows no such node
    refusal: WishRefusal | None = None
    why: str = ""  # for people, with what is to be done
