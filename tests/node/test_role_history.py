"""What a member remembers of its roles: changes with reasons, elections, leaders, and the time of a take-over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

import cmdlog
from cmdlog.node.telemetry.role_history import CHANGES_KEPT, RoleHistory
from cmdlog.raft import Role, RoleReason, SoftState
from cmdlog.raft.configuration import NodeId
from cmdlog.wal.ids import CLUSTER_GROUP

US, OTHER = NodeId(1), NodeId(2)


class Kept:
    """A history, and its clock."""

    def __init__(self) -> None:
        self.time = 100.0
        self.history = RoleHistory(US, wall=lambda: 1e9, now=lambda: self.time)

    def become(
        self, role: Role, reason: RoleReason, *, leader: NodeId | None = None, groups: tuple[int, ...] = (CLUSTER_GROUP,)
    ) -> None:
        soft = SoftState(role, leader, False, reason)
        self.history.record_roles([(group, soft, 7) for group in groups])

    def status(self) -> dict[str, Any]:
        return self.history.status()


def test_groups_that_change_together_are_one_event() -> None:
    """A node with many partitions leaves one line per change, which says role, former role, reason and groups."""
    kept = Kept()
    with capture_logs() as events:
        kept.become(Role.PRE_CANDIDATE, RoleReason.ELECTION_TIMEOUT, groups=(CLUSTER_GROUP, 0, 1))
        kept.become(Role.PRE_CANDIDATE, RoleReason.ELECTION_TIMEOUT)  # another leader, not another role
    (event,) = events
    assert event == {
        "event": "role_changed", "log_level": "info", "node": US, "role": "pre_candidate", "was": "follower",
        "reason": "election_timeout", "term": 7, "groups": [CLUSTER_GROUP, 0, 1],
    }  # fmt: skip
    assert kept.status()["elections"] == {"election_timeout": 3}
    assert kept.status()["role_changes"] == [
        {
            "time": 1e9, "role": "pre_candidate", "was": "follower", "reason": "election_timeout", "term": 7,
            "groups": [CLUSTER_GROUP, 0, 1],
        }
    ]  # fmt: skip


def test_leader_that_loses_its_majority_or_disk_warns() -> None:
    """Whoever reads only warnings sees what an operator has to look at; a hand-over is none."""
    for reason, level in (
        (RoleReason.QUORUM_LOST, "warning"),
        (RoleReason.DISK_STALLED, "warning"),
        (RoleReason.TRANSFER, "info"),
    ):
        kept = Kept()
        kept.become(Role.LEADER, RoleReason.ELECTION_TIMEOUT, leader=US)
        with capture_logs() as events:
            kept.become(Role.FOLLOWER, reason)
        assert [(event["log_level"], event["reason"]) for event in events] == [(level, reason.value)]


def test_takeover_is_measured_from_the_campaign_to_the_first_call() -> None:
    """Campaigns that fail belong to it; one that another node wins does not."""
    kept = Kept()
    kept.become(Role.PRE_CANDIDATE, RoleReason.ELECTION_TIMEOUT)
    kept.time += 1
    kept.become(Role.FOLLOWER, RoleReason.ELECTION_LOST)
    kept.become(Role.CANDIDATE, RoleReason.ELECTION_TIMEOUT)
    kept.time += 0.5
    kept.become(Role.LEADER, RoleReason.ELECTION_TIMEOUT, leader=US)
    kept.history.record_calls_taken()
    assert kept.status()["last_takeover_s"] == 1.5
    assert kept.history.takeovers.total == 1.5
    kept.become(Role.FOLLOWER, RoleReason.HIGHER_TERM)
    kept.become(Role.PRE_CANDIDATE, RoleReason.ELECTION_TIMEOUT)
    kept.become(Role.FOLLOWER, RoleReason.LEADER_FOUND, leader=OTHER)
    kept.time += 9
    kept.become(Role.CANDIDATE, RoleReason.TRANSFER)
    kept.time += 0.25
    kept.history.record_calls_taken()
    assert kept.status()["last_takeover_s"] == 0.25
    assert kept.status()["elections"] == {"election_timeout": 3, "transfer": 1}  # one each time that it stops to follow
    assert sum(kept.history.takeovers.counts) == 2


def test_change_of_leader_has_time_and_reason() -> None:
    """The reason is that of the role that this node has then."""
    kept = Kept()
    assert kept.status()["last_leader_change"] is None
    kept.become(Role.PRE_CANDIDATE, RoleReason.ELECTION_TIMEOUT)
    with capture_logs() as events:
        kept.history.record_leader(None, OTHER, 6)
    assert kept.status()["last_leader_change"] == {
        "time": 1e9, "leader": None, "was": OTHER, "term": 6, "reason": "election_timeout"
    }  # fmt: skip
    assert kept.status()["leader_changes"] == 1
    assert [event["event"] for event in events] == ["leader_changed"]


def test_only_the_newest_changes_are_kept() -> None:
    """A node that campaigns for ever needs no more memory."""
    kept = Kept()
    for number in range(CHANGES_KEPT):
        kept.become(Role.CANDIDATE if number % 2 else Role.PRE_CANDIDATE, RoleReason.CAMPAIGN)
    kept.become(Role.LEADER, RoleReason.CAMPAIGN)
    changes = kept.status()["role_changes"]
    assert (len(changes), changes[-1]["role"]) == (CHANGES_KEPT, "leader")


def test_every_reason_is_explained_to_operators() -> None:
    """A reason in a log line is looked up in CLUSTER.md."""
    document = Path(cmdlog.__file__).with_name("CLUSTER.md").read_text(encoding="utf-8")
    assert [reason.value for reason in RoleReason if f"| `{reason.value}` |" not in document] == []
