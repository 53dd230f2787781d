"""MEMBER and FAULTS: who belongs to a cluster, and who has failed, as its cluster group states it. FORMAT.md "Record".

One rule: each entry states the whole of what it is about, so the newest one alone says how things stand. What a member once was
(`former`, `forced`, `ended`) stays in every later entry of it, for ever.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from cmdlog.wal.format.control_record import naming_record
from cmdlog.wal.format.record import Record

Places = Mapping[int, tuple[int, int]]
"""By group the term and index of an entry."""


class MemberStage(enum.Enum):
    """How far a node has come into the cluster, or out of it."""

    MEMBER = "member"  # it votes in every group, or its failure is declared
    EXPECTED = "expected"  # its address is known; its disk has not asked yet
    LEAVING_OLD = "leaving_old"  # its disk is replaced: the old one leaves every group
    JOINING = "joining"  # its disk is known, and is added to every group
    ADMITTED = "admitted"  # it is a learner of every group, and may copy
    LEAVING = "leaving"  # it leaves every group for good
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class ClusterMember:
    """MEMBER: which life of a node's disk belongs to the cluster, where the node is reached, and how far it has come."""

    node: int
    incarnation: bytes  # [8]; empty while it is not known
    peer: str  # host:port for the other nodes
    client: str  # URL for clients
    stage: MemberStage = MemberStage.MEMBER
    admitted: Places = field(default_factory=dict)  # entries that made this life a learner
    former: tuple[bytes, ...] = ()  # lives of its disk that are over, oldest first
    forced: bool = False  # an operator has overruled a check once
    ended: Places = field(default_factory=dict)  # last entries of each group when it left

    @classmethod
    def from_record(cls, record: Record) -> Self:
        with naming_record(record):
            return cls.from_json(record.json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: KeyError, TypeError, ValueError."""
        return cls(
            int(value["node"]),
            bytes.fromhex(value["incarnation"]),
            str(value["peer"]),
            str(value["client"]),
            MemberStage(value.get("state", MemberStage.MEMBER.value)),
            _places(value.get("admitted", {})),
            tuple(bytes.fromhex(incarnation) for incarnation in value.get("former", ())),
            bool(value.get("forced", False)),
            _places(value.get("ended", {})),
        )

    def to_json(self) -> dict[str, Any]:
        """The payload; what holds of most members is left out."""
        said = {
            "state": "" if self.stage is MemberStage.MEMBER else self.stage.value,
            "admitted": _places_text(self.admitted),
            "former": [incarnation.hex() for incarnation in self.former],
            "forced": self.forced,
            "ended": _places_text(self.ended),
        }
        where = {"node": self.node, "incarnation": self.incarnation.hex(), "peer": self.peer, "client": self.client}
        return where | {name: value for name, value in said.items() if value}


@dataclass(frozen=True, slots=True)
class FaultSet:
    """FAULTS: the entire failure set under its sequence number; every node writes it to its fault log as one record."""

    sequence: int
    failed: tuple[int, ...]  # ascending
    epoch: int  # generation of the cluster's configuration
    term: int
    author: int  # the node that led
    demotions: tuple[tuple[int, int, int], ...] = ()  # group, index, term of the entries that took its vote
    reason: str = ""

    @classmethod
    def from_record(cls, record: Record) -> Self:
        with naming_record(record):
            return cls.from_json(record.json())

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: KeyError, TypeError, ValueError."""
        epoch, term, author = (int(value[name]) for name in ("epoch", "term", "author"))
        demotions = tuple((int(group), int(index), int(term)) for group, index, term in value["demotions"])
        failed = tuple(sorted(int(node) for node in value["failed"]))
        return cls(int(value["sequence"]), failed, epoch, term, author, demotions, str(value["reason"]))

    def to_json(self) -> dict[str, Any]:
        """The payload."""
        return {
            "sequence": self.sequence,
            "failed": list(self.failed),
            "epoch": self.epoch,
            "term": self.term,
            "author": self.author,
            "demotions": [list(demotion) for demotion in self.demotions],
            "reason": self.reason,
        }


def _places(value: Mapping[str, Any]) -> dict[int, tuple[int, int]]:
    return {int(group): (int(term), int(index)) for group, (term, index) in value.items()}


def _places_text(places: Places) -> dict[str, list[int]]:
    return {str(group): list(place) for group, place in sorted(places.items())}
