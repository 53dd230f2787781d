"""Defects of membership, failure sets and copies that stories of simulated members have to see; as `tests.cluster.defects`."""

from __future__ import annotations

from typing import Final

from tests.raft.defects_members import Mutant

PLAN, SIGHT = (f"cluster/membership/{name}.py" for name in ("member_plan", "membership_view"))
CHANGES = PLAN
REQUESTS, SETS = (f"cluster/membership/{name}.py" for name in ("member_requests", "fault_sets"))
RECONCILER, FOLLOWER = "cluster/membership/reconciler.py", "member/membership/roll_follower.py"
GROUPS, PLACES, DIRECTORY = "cluster/copying/copied_groups.py", "cluster/replication.py", "member/rejoin/copied_directory.py"
QUARANTINE = "member/rejoin/quarantine_folder.py"

OF_STORIES: Final = (
    Mutant(
        "learner-before-the-pin",
        PLAN,
        "    if view.pinned.get(node) != member.incarnation:",
        "    if False:",
        "what the former life of a disk still says counts as the new one's",
    ),
    Mutant(
        "learner-before-the-failure-set",
        PLAN,
        "    if member.former and node not in view.failed:",
        "    if False:",
        "a directory of the former life looks like the node's",
    ),
    Mutant(
        "learner-without-end",
        PLAN,
        "    step = seat_node(view, node, Seat.VOTER)\n    return step or StateMember(replace(member, stage=MemberStage.MEMBER))",
        "    return StateMember(replace(member, stage=MemberStage.MEMBER))",
        "a node is called a member, and votes in no group",
    ),
    Mutant(
        "life-is-not-remembered",
        PLAN,
        "    former = (*member.former, member.incarnation) if member.incarnation else member.former",
        "    former = member.former",
        "a life that is over comes back",
    ),
    Mutant(
        "removed-while-it-votes",
        PLAN,
        "    if step is not None:\n        return step\n    former =",
        "    former =",
        "a removed node still votes",
    ),
    Mutant(
        "leader-removes-itself",
        PLAN,
        "    if member.node == view.node:",
        "    if False:",
        "the leader leaves without a successor",
    ),
    Mutant(
        "failure-is-not-declared",
        PLAN,
        "        if seats == ONLY_LEARNER and node not in view.failed:",
        "        if False:",
        "a demoted node's directory counts in a recovery",
    ),
    Mutant(
        "failure-is-for-ever",
        PLAN,
        "        if seats == ONLY_VOTER and node in view.failed:",
        "        if False:",
        "a node that votes again counts in no recovery",
    ),
    Mutant(
        "demotions-are-left-out",
        PLAN,
        'f"node {node} was silent", places=True)',
        'f"node {node} was silent")',
        "the failure set does not say which entries took the vote",
    ),
    Mutant(
        "silent-voter-stays",
        PLAN,
        "        if view.seats_of(node) == ONLY_VOTER and node in view.silent and node != view.node:",
        "        if False:",
        "no failure is ever declared",
    ),
    Mutant(
        "quorum-is-not-counted",
        CHANGES,
        "    if spare_voters(after, sight.live) < 0:",
        "    if False:",
        "a change is begun that the live voters cannot commit",
    ),
    Mutant(
        "promoted-before-it-is-level",
        SIGHT,
        "    needed = max(at, log.last - core.settings.promotion_entries_max, after)",
        "    needed = 0",
        "a voter is asked for that lacks most of the log",
    ),
    Mutant(
        "two-changes-at-once",
        REQUESTS,
        "    if decision.member is not None and begun is not None and begun.node != request.node:",
        "    if False:",
        "configurations that may be in force differ by two nodes",
    ),
    Mutant(
        "stale-request-is-taken-in-stories",
        RECONCILER,
        "        stale = base is not None and base != self._roll.version",
        "        stale = False",
        "an administrator changes members that he has not seen",
    ),
    Mutant(
        "failure-set-is-not-written-in-stories",
        SETS,
        "        if self._faults.adopt([record]):",
        "        if False:",
        "a node's fault log knows no failure",
    ),
    Mutant(
        "life-is-not-pinned",
        FOLLOWER,
        "            self._book.admit(NodeId(node), life)",
        "            pass",
        "the new life of a disk is never heard",
    ),
    Mutant(
        "copy-holds-a-vote-of-the-source",
        DIRECTORY,
        "newer_vote((state.term, None), votes.get(group, NO_VOTE))",
        "newer_vote((state.term, 1), votes.get(group, NO_VOTE))",
        "a node says whom it voted for, and never did",
    ),
    Mutant(
        "copy-forgets-its-commit",
        DIRECTORY,
        "commit=state.last_index, commit_term=state.last_term,",
        "commit=0, commit_term=0,",
        "a recovery takes what is committed for what may be void",
    ),
    Mutant(
        "copy-begins-without-what-was-met",
        DIRECTORY,
        "newer_records(manifest.peers, before)",
        "before",
        "a new disk hears an old copy that every other node refuses",
    ),
    Mutant(
        "copy-begins-without-failure-sets",
        DIRECTORY,
        "        FaultLog.open(files, directory, identity).adopt(records)",
        "        pass",
        "sequence numbers of failure sets start again",
    ),
    Mutant(
        "uncommitted-entries-are-copied",
        GROUPS,
        "        elif record.index > upto:\n            continue\n",
        "",
        "a copy holds entries that no majority has",
    ),
    Mutant(
        "vote-is-forgotten",
        DIRECTORY,
        "other[0] > known[0] or (other[0] == known[0] and known[1] is None)",
        "other[0] > known[0]",
        "a node votes twice in a term",
    ),
    Mutant(
        "log-stays-beside-the-copy",
        QUARANTINE,
        "    INSTANCE_NAME, *FOLDERS,",
        "    INSTANCE_NAME,",
        "a directory is half of one life and half of another",
    ),
    Mutant(
        "configuration-takes-no-place",
        PLACES,
        "not from_machine and KIND_CONFIGURATION in written.kinds:",
        "False:",
        "the leader gives the place of a configuration to a call",
    ),
)

TESTS: Final[dict[str, tuple[str, ...]]] = {
    PLAN: ("cluster/membership/test_member_plan.py", "cluster/sim/members/test_member_stories.py"),
    SIGHT: ("cluster/membership/test_membership_view.py", "cluster/sim/members/test_member_stories.py"),
    REQUESTS: ("cluster/membership/test_member_requests.py",),
    RECONCILER: ("cluster/sim/members/test_member_stories.py",),
    SETS: ("cluster/membership/test_fault_sets.py",),
    FOLLOWER: ("cluster/sim/members/test_member_stories.py",),
    DIRECTORY: (
        "member/rejoin/test_copied_directory.py",
        "member/rejoin/test_rejoin_steps.py",
        "cluster/sim/members/test_member_stories.py",
    ),
    GROUPS: ("cluster/copying/test_copied_groups.py",),
    QUARANTINE: ("member/rejoin/test_quarantine_folder.py", "member/rejoin/test_rejoin_steps.py"),
    PLACES: ("cluster/test_replication.py", "cluster/sim/members/test_member_stories.py"),
}
