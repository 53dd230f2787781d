"""A member's desk for operators, without a cluster: it answers what a test says, and keeps what it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from cmdlog.cluster.membership.operator_desk import MembershipRefused, OperatorDesk, RefusedBecause
from cmdlog.operator_error import OperatorError

STAGE = {"what": "now", "voters": [1, 2, 3], "learners": [], "quorum": 2, "live": [1, 2, 3], "survives": 1}
COPY = {
    "node": 4, "percent": 40.0, "bytes": 1000, "sent_bytes": 400, "rate": 100, "left_s": 6.0, "age_s": 4.0, "connected": True,
}  # fmt: skip
FAULTS = ({"sequence": 1, "failed": [3], "reason": "silent for 30 s"}, {"sequence": 2, "failed": [], "reason": "node 3 is level"})


def a_member(node: int, state: str = "member", **changed: Any) -> dict[str, Any]:
    """One of the members as the desk names them."""
    return {
        "node": node, "peer": f"h:{7640 + node}", "client": f"http://node{node}", "state": state, "incarnation": f"{node:016x}",
        "former": [], "forced": False, "seat": {"member": "voter", "admitted": "learner"}.get(state, ""), "silent_s": 0.1,
        **changed,
    }  # fmt: skip


@dataclass
class FakeMembership:
    """Stands in for `Node.membership`."""

    members_now: list[dict[str, Any]] = field(default_factory=lambda: [a_member(1), a_member(2), a_member(3)])
    version: int = 41
    leader: int | None = 1
    operation: dict[str, Any] | None = None
    waits: str = ""
    failed: dict[str, Any] = field(default_factory=lambda: {"sequence": 2, "nodes": []})
    refusal: MembershipRefused | None = None
    warnings: list[str] = field(default_factory=list)
    already: bool = False
    asked: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)

    def request(self, kind: Any, node: int, **options: Any) -> dict[str, Any]:
        self.asked.append((kind, node, options))
        refusal = None if self.refusal is None else {"code": self.refusal.code.value, "why": str(self.refusal)}
        if self.refusal is not None and not options.get("plan"):
            raise self.refusal
        after = {**STAGE, "what": f"after {kind}", "voters": [1, 2, 3, node], "quorum": 3}
        return {
            "kind": kind, "node": node, "state": "expected", "version": self.version, "already": self.already,
            "plan": {"stages": [STAGE, after], "warnings": self.warnings, "refusal": refusal},
        }  # fmt: skip

    def take_wish(self, wish: Any) -> Any:
        raise AssertionError("operators have no wishes")

    def members(self) -> dict[str, Any]:
        return {
            "version": self.version, "leader": self.leader, "operation": self.operation, "waits": self.waits,
            "failed": dict(self.failed), "members": self.members_now,
        }  # fmt: skip

    def failure_sets(self) -> Sequence[Mapping[str, Any]]:
        return FAULTS


@dataclass
class FakeCopies:
    """Stands in for the copies of a source."""

    under_way: list[dict[str, Any]] = field(default_factory=lambda: [COPY])

    def status(self) -> dict[str, Any]:
        return {"rate_max": 64 << 20, "copies_max": 2, "copies": self.under_way}

    def cancel(self, node: int) -> int:
        known, self.under_way = self.under_way, [copy for copy in self.under_way if copy["node"] != node]
        return len(known) - len(self.under_way)


@dataclass
class FakeRecovery:
    """Stands in for `UnsafeRecovery`."""

    refusal: OperatorError | None = None
    asked: list[dict[str, Any]] = field(default_factory=list)

    def become_sole_voter(
        self, *, yes_lose: bool, survivors: Sequence[Mapping[str, Any]] = (), force: bool = False
    ) -> dict[str, Any]:
        self.asked.append({"yes_lose": yes_lose, "survivors": list(survivors), "force": force})
        if self.refusal is not None:
            raise self.refusal
        return {"node": 1, "already": False, "epoch": 77, "lost": [2, 3]}


@dataclass
class FakeDesk:
    """The parts, and the desk that they make."""

    membership: FakeMembership = field(default_factory=FakeMembership)
    copies: FakeCopies = field(default_factory=FakeCopies)
    recovery: FakeRecovery = field(default_factory=FakeRecovery)

    @property
    def desk(self) -> OperatorDesk:
        return OperatorDesk(self.membership, self.copies, self.recovery)


def clustered(node: Any) -> FakeDesk:
    """Makes the fake node a member that leads."""
    fake = FakeDesk()
    node.overview = SimpleNamespace(operator_desk=fake.desk)
    node.sequencer = SimpleNamespace(admission=SimpleNamespace(refusal=None))
    return fake


def refused(code: RefusedBecause, why: str = "it cannot be") -> MembershipRefused:
    """A refusal, as membership raises it."""
    return MembershipRefused(code, why)
