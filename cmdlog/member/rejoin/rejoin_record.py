"""`cluster/rejoin.json`: that this node is to be made again from a copy, why, and how far that is.

One rule: it is durable before the step that it names is taken, and removed last. So a crash after any step is rolled forward:

    WANTED       something is missing or damaged; nothing has been given up yet
    COPYING      the new incarnation is drawn: the cluster is asked to admit it, files arrive in `copying/`
    FETCHED      all of the copy is here and verified; no other node is needed any more
    QUARANTINED  the old files are out of the way in `quarantine/`; the directory is made of the copy
    MADE         the directory is a node; what is left of the copy goes

`cluster/tombstone.json`: this node was removed from its cluster, and what it had then. Written before the node ends, and never
removed by the program: what a removed node votes or serves would count for nothing, so a later start is refused by name.

A file that cannot be read keeps the node from starting: the directory may be half of one node and half of another.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from cmdlog.cluster.cluster_file import MemberAddress, parse_address
from cmdlog.operator_error import OperatorError
from cmdlog.wal.directory.instance import CLUSTER_FOLDER
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.checked_json import read_checked, remove_checked, write_checked

REJOIN_NAME: Final = "rejoin.json"
TOMBSTONE_NAME: Final = "tombstone.json"

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


class MemberRemoved(OperatorError):
    """The cluster has removed this node."""

    exit_code = 11
    hint = (
        "it serves nothing any more; to have it again: `cmdlog cluster add NODE` on a node of the cluster, then start it with an "
        "empty directory. What this directory holds can still be read by `cmdlog recover DIR... --plan`"
    )


@dataclass(frozen=True, slots=True)
class MemberTombstone:
    """What is known of a member that is none any more."""

    node: int
    incarnation: bytes  # [8] whose data the directory holds
    ended: Mapping[int, tuple[int, int]]  # group -> term, index: the last entry of each group when it left

    def error(self, directory: str) -> MemberRemoved:
        """What a start of this directory ends with."""
        last = ", ".join(f"{group}: {term}.{index}" for group, (term, index) in sorted(self.ended.items()))
        where = f"; last entries by group (term.index): {last}" if last else ""
        return MemberRemoved(f"node {self.node} was removed from its cluster; its directory is {directory}{where}")


def read_tombstone(files: Files, directory: str) -> MemberTombstone | None:
    """None: the node was not removed, as far as it knows. Raises: Corrupt."""
    path = os.path.join(directory, CLUSTER_FOLDER, TOMBSTONE_NAME)
    value = read_checked(files, path)
    if value is None:
        return None
    try:
        ended = {int(group): (int(term), int(index)) for group, (term, index) in value["ended"].items()}
        return MemberTombstone(int(value["node"]), bytes.fromhex(value["incarnation"]), ended)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise Corrupt(f"the file names no removed node ({error!r})", path=path) from error


def write_tombstone(files: Files, directory: str, tombstone: MemberTombstone) -> None:
    """Durable on return. Raises: DiskFull, WriteFailed."""
    value: dict[str, Any] = {
        "node": tombstone.node,
        "incarnation": tombstone.incarnation.hex(),
        "ended": {str(group): list(place) for group, place in sorted(tombstone.ended.items())},
    }
    write_checked(files, os.path.join(directory, CLUSTER_FOLDER, TOMBSTONE_NAME), value)
