"""The interface of membership: requests of operators, and wishes of disks.

One rule: whatever is decided here is decided under the driver's lock, at the node that leads, from what is committed there.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

from cmdlog.cluster.copying.wishes import CopyWish, WishStanding

RequestKind = Literal["add", "remove", "retire", "replace", "transfer"]


class MemberDesk(Protocol):
    """`MemberNode.membership`. Any thread; a call blocks for a few seconds at most, so not the event loop's."""

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

    def take_wish(self, wish: CopyWish) -> WishStanding:
        """A disk wants to be filled: what the cluster says to that. It never waits; the disk asks again."""
        ...

    def members(self) -> dict[str, Any]:
        """As this node knows them: version, leader, operation (null | {node, state}), waits (why the leading node does nothing
        now, "" elsewhere), failed: {sequence, nodes}, members: [{node, peer, client, state, incarnation, former, forced, seat
        ("voter" | "learner" | ""), silent_s (null where this node does not lead)}]."""
        ...
