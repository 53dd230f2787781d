"""Defects of membership and of live failure sets, as `tests.cluster.defects`."""

from __future__ import annotations

from typing import Final

from tests.raft.defects_members import Mutant

PLAN = CHANGES = "cluster/membership/member_plan.py"
REQUESTS, WISHES = ("cluster/membership/member_requests.py",) * 2
FAULTS, SIGHT = "cluster/membership/fault_sets.py", "cluster/membership/membership_view.py"
RECONCILER, FOLLOWER = "cluster/membership/reconciler.py", "member/membership/roll_follower.py"

TESTS: Final[dict[str, tuple[str, ...]]] = {
    PLAN: ("cluster/membership/test_member_plan.py",),
    REQUESTS: ("cluster/membership/test_member_requests.py",),
    FAULTS: ("cluster/membership/test_fault_sets.py", "member/membership/test_membership.py"),
    SIGHT: ("cluster/membership/test_membership_view.py",),
    RECONCILER: ("cluster/membership/test_reconciler.py",),
    FOLLOWER: ("member/membership/test_roll_follower.py",),
}

OF_MEMBERS: Final = (
    Mutant(
        "begins-beside-a-change-that-is-not-committed", PLAN,
        "    if not view.settled:", "    if False:",
        "two configurations in force differ by more than one node",
    ),
    Mutant(
        "learner-before-its-life-is-pinned", PLAN,
        "    if view.pinned.get(node) != member.incarnation:", "    if False:",
        "what the former life of the disk acknowledged counts for the new one",
    ),
    Mutant(
        "replaced-disk-is-not-in-the-failure-set", PLAN,
        "    if member.former and node not in view.failed:", "    if False:",
        "a recovery counts the directory of the former life",
    ),
    Mutant(
        "well-again-before-it-votes", PLAN,
        "        if seats == ONLY_VOTER and node in view.failed:",
        "        if node in view.failed and node not in view.silent:",
        "the failure set is without a node that has not caught up",
    ),
    Mutant(
        "leader-demotes-itself", PLAN,
        "        if view.seats_of(node) == ONLY_VOTER and node in view.silent and node != view.node:",
        "        if view.seats_of(node) == ONLY_VOTER and node in view.silent:",
        "the leader takes its own vote",
    ),
    Mutant(
        "leaving-leader-removes-itself", PLAN,
        "    if member.node == view.node:", "    if False:",
        "the removal stops in the middle",
    ),
    Mutant(
        "half-a-demotion-is-forgotten", PLAN,
        "    if mixed:", "    if False:",
        "a second node is demoted beside the first",
    ),
    Mutant(
        "demotes-without-a-quorum", CHANGES,
        "    if spare_voters(after, sight.live) < 0:", "    if False:",
        "the change is the last thing that the group appends",
    ),
    Mutant(
        "last-copy-goes", CHANGES,
        "    if act is not Act.ADD_VOTER and not sight.whole.intersection(after.voters):", "    if False:",
        "nobody is left who holds what was acknowledged",
    ),
    Mutant(
        "change-begins-where-it-is-safe-alone", CHANGES,
        "    if not safe or (stops and not begun):", "    if not safe:",
        "a node votes in some groups for as long as the others wait",
    ),
    Mutant(
        "two-operations-at-once", REQUESTS,
        "    if decision.member is not None and begun is not None and begun.node != request.node:", "    if False:",
        "two nodes are on their way at once",
    ),
    Mutant(
        "former-life-is-forgotten", REQUESTS,
        "    former = (*old.former, old.incarnation) if old.incarnation else old.former", "    former = old.former",
        "the disk of a removed node comes back",
    ),
    Mutant(
        "stranger-takes-a-place", WISHES,
        "    if not wish.former or wish.former != member.incarnation:", "    if False:",
        "any empty disk drives a member out",
    ),
    Mutant(
        "former-life-comes-back", WISHES,
        "    if wish.incarnation in member.former:", "    if False:",
        "a disk that was replaced is admitted again",
    ),
    Mutant(
        "fault-log-gets-a-hole", FAULTS,
        "    if previous is None and stated.sequence > 1:", "    if False:",
        "the chain begins again under a known number",
    ),
    Mutant(
        "lagging-node-counts-as-whole", SIGHT,
        "if node not in diverged and matches.get(node, 0) >= log.commit),", "if node not in diverged),",
        "the last whole copy is removed",
    ),
    Mutant(
        "votes-before-it-knows-that-it-failed", SIGHT,
        "    needed = max(at, log.last - core.settings.promotion_entries_max, after)",
        "    needed = max(at, log.last - core.settings.promotion_entries_max)",
        "a recovery takes its directory for an old copy",
    ),
    Mutant(
        "next-step-before-the-entry-is-committed", RECONCILER,
        "            elif self._statement is None:", "            else:",
        "the same entry is stated many times",
    ),
    Mutant(
        "stale-request-is-taken", RECONCILER,
        "            if decision.already or not stale:", "            if True:",
        "two administrators overrule each other",
    ),
    Mutant(
        "former-life-is-heard", FOLLOWER,
        "        return peer not in self._unheard", "        return True",
        "an acknowledgement of the former life counts for the new one",
    ),
    Mutant(
        "former-life-still-counts",
        FOLLOWER,
        "            self._forget(node)",
        "            pass",
        "a leader that heard the former life promotes the new one before it has the data",
    ),
    Mutant(
        "failure-set-is-not-written", FAULTS,
        "        if peek_record(record).kind is RecordKind.FAULTS:", "        if False:",
        "a recovery does not know who had failed",
    ),
)  # fmt: skip
