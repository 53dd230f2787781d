"""`cluster/rejoin.json`: that this node is to be made again from a copy, why, and how far that is.

One rule: it is durable before the step that it names is taken, and removed last. So a crash after any step is rolled forward:

    WANTED       something is missing or damaged; nothing has been given up yet
    COPYING      the new incarnation is drawn: the cluster is asked to admit it, files arrive in `copying/`
    FETCHED      all of the copy is here and verified; no other node is needed any more
    QUARANTINED  the old files are out of the way in `quarantine/`; the directory is made of the copy
    MADE         the directory is a node; what is left of the copy goes

A file that cannot be read keeps the node from starting: the directory may be half of one node and half of another.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from cmdlog.cluster.cluster_file import MemberAddress, parse_address
from cmdlog.wal.directory.instance import CLUSTER_FOLDER
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import read_checked, remove_checked, write_checked

REJOIN_NAME: Final = "rejoin.json"

Vote = tuple[int, int | None]  # term, and the node that got it; None: nobody
Votes = Mapping[int, Vote]  # by group


class RejoinState(enum.Enum):
    """How far a node is."""

    WANTED = "wanted"
    COPYING = "copying"
    FETCHED = "fetched"
    QUARANTINED = "quarantined"
    MADE = "made"


class RejoinReason(enum.Enum):
    """Why a node needs a copy."""

    EMPTY = "empty"  # there is no directory, or nothing in it, and the cluster has begun
    DAMAGED = "damaged"
    TOO_FAR_BACK = "too_far_back"  # no log holds what it lacks
    REPLACED = "replaced"  # the cluster knows another life of this node's disk


@dataclass(frozen=True, slots=True)
class RejoinRecord:
    """What the file says."""

    state: RejoinState
    reason: RejoinReason
    why: str  # for people
    former: bytes = b""  # [8] the incarnation that is over; empty: unknown
    incarnation: bytes = b""  # [8] the new one; empty while `WANTED`
    votes: Votes | None = None  # of the old directory, as far as they can be read; None: not looked for yet
    members: tuple[MemberAddress, ...] = ()  # where the other nodes were, as this one knew it last
    quarantine: str = ""  # name of the folder that gets the old files

    def to_json(self) -> dict[str, Any]:
        return {
            "state": self.state.value,
            "reason": self.reason.value,
            "why": self.why,
            "former": self.former.hex(),
            "incarnation": self.incarnation.hex(),
            "votes": None if self.votes is None else {str(group): list(vote) for group, vote in sorted(self.votes.items())},
            "members": [[of.node, f"{of.peer[0]}:{of.peer[1]}", of.client] for of in self.members],
            "quarantine": self.quarantine,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: KeyError, ValueError, TypeError."""
        votes = value["votes"]
        return cls(
            RejoinState(value["state"]),
            RejoinReason(value["reason"]),
            str(value["why"]),
            bytes.fromhex(value["former"]),
            bytes.fromhex(value["incarnation"]),
            None if votes is None else {int(group): (term, vote) for group, (term, vote) in votes.items()},
            tuple(MemberAddress(int(node), parse_address(peer), str(client)) for node, peer, client in value["members"]),
            str(value["quarantine"]),
        )

    def drawn(self, incarnation: bytes, votes: Votes) -> Self:
        """The same with what the next life begins with."""
        return replace(self, state=RejoinState.COPYING, incarnation=incarnation, votes=votes)


class RejoinFile:
    """One thread at a time."""

    def __init__(self, files: Files, directory: str) -> None:
        self._files, self.path = files, os.path.join(directory, CLUSTER_FOLDER, REJOIN_NAME)

    def read_record(self) -> RejoinRecord | None:
        """None: no copy is wanted. Raises: Corrupt."""
        value = read_checked(self._files, self.path)
        if value is None:
            return None
        try:
            return RejoinRecord.from_json(value)
        except (KeyError, ValueError, TypeError) as error:
            raise Corrupt(f"the file names no copy ({error!r})", path=self.path) from error

    def write_record(self, record: RejoinRecord) -> None:
        """Durable on return. Raises: DiskFull, WriteFailed."""
        write_checked(self._files, self.path, record.to_json())

    def remove_record(self) -> None:
        """The copy is complete; durable on return."""
        remove_checked(self._files, self.path)
