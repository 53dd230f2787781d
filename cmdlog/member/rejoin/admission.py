"""Asking the cluster to admit a new life of this node's disk, until it has.

One rule: nothing is decided here. The leader decides; every node answers how far the wish is, and an answer that the life is
admitted holds, from any node: it is committed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from cmdlog.cluster.cluster_file import MemberAddress, parse_address
from cmdlog.cluster.copying.copy_client import SourceLost
from cmdlog.cluster.copying.copy_values import CopyStanding
from cmdlog.cluster.copying.wishes import CopyWish
from cmdlog.member.rejoin.rejoin_ground import RejoinGround
from cmdlog.member.rejoin.rejoin_record import MemberTombstone, RejoinReason
from cmdlog.wal.format.cluster_record import ClusterMember, MemberStage

ASK_SOON_S: Final = 0.1  # after an answer that differs from the one before: the leader takes a step in each tick
ASK_EVERY_S: Final = 1.0  # after answers that stay the same
PAUSE_S: Final = 0.2  # between two reports of a node that waits: a stop waits no longer

log = structlog.get_logger("cmdlog.cluster")


@dataclass(frozen=True, slots=True)
class AskedCluster:
    """What one round of questions found."""

    standings: tuple[CopyStanding, ...]  # of the nodes that answered

    @property
    def has_begun(self) -> bool:
        return any(standing.begun for standing in self.standings)

    def removal(self, node: int) -> MemberTombstone | None:
        """The leader says that this node was removed; None: it does not."""
        for standing in self.standings:
            member = standing.member
            if standing.leads and member is not None and member.stage is MemberStage.REMOVED:
                return MemberTombstone(node, member.incarnation, member.ended)
        return None

    def admits(self, incarnation: bytes) -> bool:
        return any(is_admitted(standing.member, incarnation) for standing in self.standings)

    def is_over(self, node: int, incarnation: bytes) -> bool:
        """Whether that life of the node has been replaced, or votes: then its disk has forgotten what it voted for."""
        members = [standing.member for standing in self.standings if standing.member is not None]
        return any(
            incarnation in member.former or (member.incarnation == incarnation and member.stage is MemberStage.MEMBER)
            for member in members
            if member.node == node
        )

    def why_not(self) -> str:
        """What keeps the node out, for people: the leader's words where it gave any."""
        for standing in sorted(self.standings, key=lambda of: not of.leads):
            if standing.refusal is not None:
                return f"node {standing.node}: {standing.refusal.why}"
        if not self.standings:
            return "no other node answers"
        stages = {standing.member.stage.value for standing in self.standings if standing.member is not None}
        return f"the cluster is at work: the node is {', '.join(sorted(stages))}" if stages else "no leader has answered"


def is_admitted(member: ClusterMember | None, incarnation: bytes) -> bool:
    """Whether that life of the node may copy."""
    return member is not None and member.incarnation == incarnation and member.stage is MemberStage.ADMITTED


class AskPauses:
    """Between questions: short ones while the answers change, and longer ones, up to `ASK_EVERY_S`, while they do not."""

    def __init__(self) -> None:
        self._why, self._pause_s = "", 0.0

    def after(self, why: str) -> float:
        """Seconds to wait after an answer in these words."""
        self._pause_s = min(2 * self._pause_s, ASK_EVERY_S) if why == self._why else ASK_SOON_S
        self._why = why
        return self._pause_s


class LifeOver(Exception):
    """The cluster has given up the life that asks: another one has to be begun."""


class Neighbours:
    """Where the other nodes are, as far as it is known: the newest answer of a node that has begun is right."""

    def __init__(self, node: int, *known: Iterable[MemberAddress]) -> None:
        """`known`: the older first."""
        self._node = node
        self._members = {member.node: member for members in known for member in members if member.node != node}

    @property
    def members(self) -> tuple[MemberAddress, ...]:
        """Ascending."""
        return tuple(self._members[node] for node in sorted(self._members))

    def learn_roll(self, standing: CopyStanding) -> None:
        """Takes over what a member says; a node that is not on its roll stays known, since another may list it."""
        if standing.begun:
            for address in standing.roll:
                with contextlib.suppress(ValueError):
                    if address.node != self._node:
                        self._members[address.node] = MemberAddress(address.node, parse_address(address.peer), address.client)


class AdmissionWish:
    """One wish."""

    def __init__(self, ground: RejoinGround, neighbours: Neighbours, incarnation: bytes) -> None:
        self._ground, self._neighbours, self._incarnation = ground, neighbours, incarnation
        self.leader = 0  # node that led when it was asked last; 0: unknown

    def ask_once(self, *, former: bytes = b"", reason: str) -> AskedCluster:
        """One question to every node that is known; `reason` "" only looks."""
        here = self._ground.address
        wish = CopyWish(self._ground.node, self._incarnation, former, reason, f"{here.peer[0]}:{here.peer[1]}", here.client)
        answers: dict[int, CopyStanding] = {}
        while waiting := [member for member in self._neighbours.members if member.node not in answers]:
            found = {member.node: self._ask_node(member, wish) for member in waiting}
            heard = {node: standing for node, standing in found.items() if standing is not None}
            answers |= heard
            for standing in heard.values():
                self._neighbours.learn_roll(standing)
            if not heard or {member.node for member in self._neighbours.members} <= found.keys() | answers.keys():
                break
        self.leader = next((node for node, standing in answers.items() if standing.leads), self.leader)
        return AskedCluster(tuple(answers[node] for node in sorted(answers)))

    def _ask_node(self, member: MemberAddress, wish: CopyWish) -> CopyStanding | None:
        try:
            with self._ground.connect(self._incarnation, member) as source:
                return source.ask(wish)
        except SourceLost as error:
            log.debug("copy_wish_unheard", node=member.node, why=str(error))
            return None

    def wait_until_admitted(self, *, former: bytes, reason: RejoinReason) -> MemberTombstone | None:
        """Asks, every second at least, until this life is admitted: then None. A node that was removed gets its tombstone.

        Raises: LifeOver; what the report of progress raises.
        """
        said, pauses = "", AskPauses()
        while True:
            asked = self.ask_once(former=former, reason=reason.value)
            if asked.admits(self._incarnation):
                log.info("copy_admitted", incarnation=self._incarnation.hex())
                return None
            if (tombstone := asked.removal(self._ground.node)) is not None:
                return tombstone
            if asked.is_over(self._ground.node, self._incarnation):
                raise LifeOver
            if (why := asked.why_not()) != said:
                said = why
                log.info("copy_waits", why=why)
            rest_until(self._ground, pauses.after(why), {"copy": "ABSENT", "why": why})


def rest_until(ground: RejoinGround, seconds: float, report: Mapping[str, Any]) -> None:
    """Waits that long, and reports meanwhile that the node is being copied. Raises: what the report of progress raises."""
    end = ground.now() + seconds
    while True:
        ground.report({"step": "copying", **report})
        if (left := end - ground.now()) <= 0:
            return
        ground.pause(min(PAUSE_S, left))
