"""Errors and counted refusals of consensus.

One rule: who is at fault decides the form. A caller's mistake or bad moment is an exception that it can act on
(`ProposalRefused`, `ChangeRefused`, `BadChange`); a peer's malformed or impossible message is never an exception, it is dropped
and counted under a `Drop`; a broken invariant of our own is `InvariantBroken`, which ends this group and no other.
"""

from __future__ import annotations

import enum


class RaftError(Exception):
    """Root of everything that consensus raises on purpose."""


class InvariantBroken(RaftError):
    """Our own bug, or a disk that forgot: this group must not continue, because its next answer could be wrong.

    The group stays closed until it is built again from what is durable; other groups of the node continue.
    """

    def __init__(self, invariant: str, detail: str) -> None:
        self.invariant, self.detail = invariant, detail
        super().__init__(f"consensus invariant broken: {invariant}: {detail}")


class Refusal(enum.Enum):
    """Why a proposal, read, transfer or change was refused. Nothing was appended, so trying again is safe."""

    NOT_LEADER = "not_leader"  # the error's `leader` names who to ask, when one is known
    TRANSFERRING = "transferring"  # leadership is on its way to another node; a time-out ends the wait
    IN_FLIGHT_BYTES = "in_flight_bytes"  # proposed and not yet committed bytes are at their limit
    UNDURABLE_BYTES = "undurable_bytes"  # what waits for this node's own disk is at its limit
    IN_FLIGHT_ENTRIES = "in_flight_entries"  # entries that are not committed yet are at their limit
    TOO_LARGE = "too_large"  # one payload is over the limit of an entry
    READS_PENDING = "reads_pending"  # unanswered reads are at their limit
    CHANGE_PENDING = "change_pending"  # an earlier configuration is not committed yet, or it is joint
    TERM_NOT_COMMITTED = "term_not_committed"  # the leader has not committed an entry of its own term yet
    STALE_BASE = "stale_base"  # the change was made for another configuration than the present one
    QUORUM_AT_RISK = "quorum_at_risk"  # the new voters that are heard from are no majority
    LAGGING = "lagging"  # a learner to be promoted is too far behind
    NO_SUCH_VOTER = "no_such_voter"  # the target of a transfer is not a voter
    NOT_HEARD = "not_heard"  # the target of a transfer has said nothing for an election time-out, or not in this term
    LEADER_ALIVE = "leader_alive"  # a forced recovery was asked for while a leader is heard from


class RaftRefused(RaftError):
    """The request was not taken. `reason` is stable; `leader` is where to ask instead, when it is known."""

    def __init__(self, reason: Refusal, detail: str = "", *, leader: int | None = None) -> None:
        self.reason, self.leader = reason, leader
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)


class ProposalRefused(RaftRefused):
    """A proposal, read or transfer was not taken."""


class ChangeRefused(RaftRefused):
    """A configuration change was not taken."""


class BadChange(RaftError):
    """The change makes no sense for the configuration it was applied to: the caller's mistake."""


class BadConfiguration(RaftError):
    """Bytes or members that are no configuration."""


class Drop(enum.Enum):
    """Why a message of a peer was dropped. Counted in `Core.drops`; only the first two are normal in a healthy cluster."""

    STALE_TERM = "stale_term"  # of a term that has passed
    STALE_REPLY = "stale_reply"  # answers a question that is no longer open
    LEADER_ALIVE = "leader_alive"  # asks for a vote while our leader is heard from: not disrupted
    NOT_FOR_US = "not_for_us"  # another receiver's
    UNKNOWN_SENDER = "unknown_sender"  # answers us, but is no member
    WRONG_ROLE = "wrong_role"  # only a leader, or only a follower, gets such a message
    SECOND_LEADER = "second_leader"  # speaks as leader of a term that has another one
    BAD_ENTRIES = "bad_entries"  # terms that fall or exceed the message's, or columns of unequal length
    BAD_CONFIGURATION = "bad_configuration"  # a configuration entry or manifest that does not decode
    BEYOND_LOG = "beyond_log"  # speaks of entries that do not exist
    NO_FRANCHISE = "no_franchise"  # to a node that may have forgotten what it promised
    READS_PENDING = "reads_pending"  # a follower's reads, beyond the limit: they end by their time-out
    NO_ROOM = "no_room"  # entries, while too many bytes of all groups wait for this node's disk
    CONTRADICTED = "contradicted"  # its leader has other entries where this log has committed ones
    STOPPED = "stopped"  # this group ended on a broken invariant, or is no more
