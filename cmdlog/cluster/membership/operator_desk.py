"""What an operator may ask of a member of a cluster, in one place: changes of the members, copies, recovery without a majority.

One rule: it only puts the parts together, and logs what was asked for; each of them decides for itself.

A refused request has changed nothing, so the same one may be made again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import structlog

from cmdlog.operator_error import OperatorError


class RefusedBecause(enum.Enum):
    """The code of a refusal, for machines; names of the surface, for ever."""

    BAD_REQUEST = "bad_request"  # an address is missing or is none
    UNKNOWN_NODE = "unknown_node"  # the cluster has no such node
    NOT_LEADING = "not_leading"  # another node decides; `leader` names its URL
    STALE_BASE = "stale_base"  # the cluster is another one than the request was made for
    OPERATION_UNDER_WAY = "operation_under_way"  # one change at a time; the text names the first
    OTHER_ADDRESS = "other_address"  # the node is a member at another address
    ADDRESS_TAKEN = "address_taken"  # another node has this address
    TOO_MANY_NODES = "too_many_nodes"
    LAST_VOTER = "last_voter"  # no voter would be left
    QUORUM_AT_RISK = "quorum_at_risk"  # the live voters that stay are no majority
    LAST_COPY = "last_copy"  # no live voter that stays is known to hold everything
    NOT_HEARD = "not_heard"  # the node has to take part, and says nothing
    NO_SUCCESSOR = "no_successor"  # the node cannot lead: no voter, silent, lagging or unfit
    UNKNOWN_OUTCOME = "unknown_outcome"  # leadership was lost meanwhile: make the request again


HTTP_STATUS: dict[RefusedBecause, int] = {
    RefusedBecause.BAD_REQUEST: 422,
    RefusedBecause.UNKNOWN_NODE: 404,
    RefusedBecause.NOT_LEADING: 503,
    RefusedBecause.UNKNOWN_OUTCOME: 503,
}
"""Of the others it is 409."""


class MembershipRefused(OperatorError):
    """The request was not taken. `code` is stable; `leader` is the URL of the node that decides, where that is another one."""

    hint = "`cmdlog cluster status` shows the members; `--plan` shows what a request would mean"

    def __init__(self, code: RefusedBecause, why: str, *, leader: str = "") -> None:
        self.code, self.leader = code, leader
        super().__init__(why, kind=code.value)

    @property
    def status(self) -> int:
        """Of an HTTP answer."""
        return HTTP_STATUS.get(self.code, 409)


RequestKind = Literal["add", "remove", "retire", "replace", "transfer"]
log = structlog.get_logger("cmdlog.cluster")


class MembershipDesk(Protocol):
    """What a member has. Any thread; a call blocks for a few seconds at most, so not the event loop's."""

    def request(
        self,
        kind: RequestKind,
        node: int,
        *,
        peer: str | None = None,
        client: str | None = None,
        base: int | None = None,
        force: bool = False,
        plan: bool = False,
    ) -> dict[str, Any]:
        """Begins a change, and returns when its first entry is committed; the leading node does the rest by itself.

            add       the node is expected at `peer` (host:port) with `client` (URL), and joins when its disk asks
            replace   its disk leaves every group, and the next disk that asks under its number takes its place; with `peer` and
                      `client` at another address
            remove    it leaves every group for good; it may be gone
            retire    as remove, of a node that is heard from and so learns of it
            transfer  it leads the cluster from now on

        `base`: a compare-and-set on the roll's `version`. `force` overrules QUORUM_AT_RISK and LAST_COPY, and is recorded for
        ever. With `plan` nothing is changed, and what would refuse the request is part of the answer.

        The answer: kind, node, state (of the node, "" when the cluster has none), version, already (it is done or under way),
        plan: {stages: [{what, voters, learners, quorum, live, survives}], warnings: [text], refusal: null | {code, why}}.
        `survives`: so many of the live voters may be lost in this stage until nothing is committed.
        Raises: MembershipRefused.
        """
        ...

    def members(self) -> dict[str, Any]:
        """As this node knows them: version, leader, operation (null | {node, state}), waits (why the leading node does nothing
        now, "" elsewhere), failed: {sequence, nodes}, members: [{node, peer, client, state, incarnation, former, forced, seat
        ("voter" | "learner" | ""), silent_s (null where this node does not lead)}]."""
        ...

    def failure_sets(self) -> Sequence[Mapping[str, Any]]:
        """Every set that this node knows, oldest first: sequence, failed, term, author, reason, demotions."""
        ...


class CopiesDesk(Protocol):
    """Copies of this node's data to others. Any thread."""

    def status(self) -> Mapping[str, Any]:
        """copies: [{node, percent, bytes, sent_bytes, rate, left_s, ...}], and the limits."""
        ...

    def cancel(self, node: int) -> int:
        """Ends those to the node; their number."""
        ...


class RecoveryDesk(Protocol):
    """Continuing without a majority. Any thread."""

    def become_sole_voter(
        self, *, yes_lose: bool, survivors: Sequence[Mapping[str, Any]] = (), force: bool = False
    ) -> dict[str, Any]:
        """Raises: an OperatorError whose kind is a code."""
        ...


@dataclass(frozen=True, slots=True)
class OperatorDesk:
    """Of one running member; all of it may block for a few seconds."""

    membership: MembershipDesk
    copies: CopiesDesk
    recovery: RecoveryDesk

    def change(self, kind: RequestKind, node: int, **options: Any) -> dict[str, Any]:
        """As `MembershipDesk.request`; the log says what was asked for, and what its plan warns of. Raises: MembershipRefused."""
        try:
            answer = self.membership.request(kind, node, **options)
        except MembershipRefused as refused:
            log.warning("change_refused", kind=kind, node=node, code=refused.code.value, why=str(refused))
            raise
        if not options.get("plan"):
            facts = {"force": bool(options.get("force")), "already": answer["already"], "warnings": answer["plan"]["warnings"]}
            log.warning("change_asked", kind=kind, node=node, state=answer["state"], **facts)
        return answer

    def describe_members(self) -> dict[str, Any]:
        """Plain data: version, leader, operation, waits, members, failure_set with its history."""
        described = self.membership.members()
        failed = described.pop("failed")
        return {**described, "failure_set": {**failed, "history": list(self.membership.failure_sets())}}

    def describe(self) -> dict[str, Any]:
        """The same with the copies under way."""
        return {**self.describe_members(), "copies": list(self.copies.status()["copies"])}
