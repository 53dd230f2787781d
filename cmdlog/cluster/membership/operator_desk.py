"""What an operator may ask of a member of a cluster, in one place: changes of the members, copies, recovery without a majority.

One rule: it only puts the parts together, and logs what was asked for; each of them decides for itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import structlog

from cmdlog.cluster.membership.member_desk import MemberDesk, RequestKind
from cmdlog.cluster.membership.refusals import MembershipRefused

log = structlog.get_logger("cmdlog.cluster")


class MembershipDesk(MemberDesk, Protocol):
    """Any thread."""

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
        """As `MemberDesk.request`; the log says what was asked for, and what its plan warns of. Raises: MembershipRefused."""
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
