"""Who is in a group: voters, learners, and both sets of voters while a joint configuration holds.

One rule: a configuration is a value; it is only ever replaced as a whole. A configuration entry of the log carries the complete
result, never a difference, so that the configuration in force is a function of the log alone (see `core`): the last such entry,
wherever it is cut.

A *joint* configuration (Raft paper, section 6) has `outgoing` voters too: elections and commits then need a majority of `voters`
and one of `outgoing`. A voter that is to become a learner stays a voter of `outgoing` meanwhile and waits in `learners_next`.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, NewType

import orjson

from cmdlog.raft.errors import BadConfiguration

NodeId = NewType("NodeId", int)  # positive; a wiped disk comes back under the same id with a new incarnation, as a learner

CONFIGURATION_BYTES_MAX: Final = 64 << 10  # as JSON: many times what `MEMBERS_MAX` members take
MEMBERS_MAX: Final = 64  # bounds what a configuration entry of a peer makes us allocate
EPOCH_MAX: Final = (1 << 62) - 1
NODE_ID_MAX: Final = (1 << 63) - 1
_MEMBER_FIELDS: Final = ("voters", "outgoing", "learners", "learners_next")


@dataclass(frozen=True, slots=True)
class Configuration:
    """Members by role; every tuple ascending without repeats. The empty one is that of a node that knows no group yet.

    Invariants (checked on construction): learners are no voters of either set; `learners_next` are voters of `outgoing` and not
    of `voters`; only a joint configuration has `learners_next` or `auto_leave`; a configuration with any member has voters.
    """

    voters: tuple[NodeId, ...] = ()
    outgoing: tuple[NodeId, ...] = ()
    learners: tuple[NodeId, ...] = ()
    learners_next: tuple[NodeId, ...] = ()
    auto_leave: bool = False  # the leader proposes the end of the joint configuration itself, once it is committed
    forced: bool = False  # made by an operator without a quorum: committed entries may be missing since
    epoch: int = 0  # drawn at random by the latest forced recovery: the group is not that of before, and its frames say so

    def __post_init__(self) -> None:
        for members in (self.voters, self.outgoing, self.learners, self.learners_next):
            if list(members) != sorted(set(members)) or (members and not 0 < members[0] <= members[-1] <= NODE_ID_MAX):
                raise BadConfiguration(f"members must be positive, ascending and unique: {members}")
        if len(self.members()) > MEMBERS_MAX:
            raise BadConfiguration(f"{len(self.members())} members, at most {MEMBERS_MAX}")
        if set(self.learners) & {*self.voters, *self.outgoing}:
            raise BadConfiguration(f"learners {self.learners} overlap voters {self.voters} {self.outgoing}")
        if not set(self.learners_next) <= set(self.outgoing) - set(self.voters):
            raise BadConfiguration(f"learners_next {self.learners_next} must leave voters: {self.outgoing} to {self.voters}")
        if not 0 <= self.epoch <= EPOCH_MAX or (self.epoch and not self.forced):
            raise BadConfiguration(f"epoch {self.epoch} of a configuration that is{'' if self.forced else ' not'} forced")
        if self.auto_leave and not self.outgoing:
            raise BadConfiguration("auto_leave without outgoing voters")
        if not self.voters and (self.outgoing or self.learners):
            raise BadConfiguration("members without voters")

    @property
    def joint(self) -> bool:
        """Whether two majorities are needed."""
        return bool(self.outgoing)

    def is_voter(self, node: NodeId) -> bool:
        """Whether the node votes in either set."""
        return node in self.voters or node in self.outgoing

    def members(self) -> tuple[NodeId, ...]:
        """Everybody who gets the log, ascending."""
        return tuple(sorted({*self.voters, *self.outgoing, *self.learners}))

    def to_bytes(self) -> bytes:
        """Canonical JSON: the payload of a configuration entry."""
        fields: dict[str, object] = {name: list(getattr(self, name)) for name in _MEMBER_FIELDS}
        fields |= {"auto_leave": self.auto_leave, "forced": self.forced}
        if self.epoch:
            fields["epoch"] = self.epoch
        return orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

    @classmethod
    def from_bytes(cls, data: bytes) -> Configuration:
        """The inverse of `to_bytes`; fields of newer versions are skipped. Raises: BadConfiguration."""
        try:
            if len(data) > CONFIGURATION_BYTES_MAX:
                raise ValueError(f"{len(data)} bytes, at most {CONFIGURATION_BYTES_MAX}")
            fields: Any = orjson.loads(data)
            voters, outgoing, learners, learners_next = (tuple(map(_node_id, fields.get(name, ()))) for name in _MEMBER_FIELDS)
            auto_leave, forced = (fields.get(name, False) is True for name in ("auto_leave", "forced"))
            epoch = _node_id(fields.get("epoch", 0))
        except (ValueError, TypeError, AttributeError) as error:
            raise BadConfiguration(f"not a configuration: {error}") from None
        return cls(voters, outgoing, learners, learners_next, auto_leave=auto_leave, forced=forced, epoch=epoch)


def _node_id(value: object) -> NodeId:
    if type(value) is not int:
        raise TypeError(f"a member is a number, not {value!r}")
    return NodeId(value)


def nodes(values: Iterable[int]) -> tuple[NodeId, ...]:
    """Members in the order that `Configuration` wants."""
    return tuple(NodeId(value) for value in sorted(set(values)))


class Act(enum.Enum):
    """What a change does to one member."""

    ADD_VOTER = "add_voter"  # also promotes a learner
    ADD_LEARNER = "add_learner"  # also demotes a voter
    REMOVE = "remove"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One member's part of a change."""

    act: Act
    node: NodeId
