"""The defects of `tests.raft.defects` that are about members: who counts, who may vote, what a change needs.

One rule: as there. The value that a defect is lives here, since the other module takes this one's into its list.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Mutant:
    """One defect: in `module`, `old` becomes `new`; `wrong` says what that breaks."""

    name: str
    module: str
    old: str
    new: str
    wrong: str


OF_MEMBERS: Final = (
    Mutant(
        "change-before-own-term",
        "roles/membership.py",
        "    if not state.term_committed:\n        raise ChangeRefused(Refusal.TERM_NOT_COMMITTED)\n",
        "",
        "the bug of single-server changes of 2015",
    ),
    Mutant(
        "two-changes",
        "roles/membership.py",
        "    if state.configuration_index > state.log.commit:\n        raise",
        "    if False:\n        raise",
        "two configurations are under way, with majorities that do not meet",
    ),
    Mutant(
        "one-step-from-an-even-number",
        "confchange.py",
        "    if len(differing) > 1 or (differing and len(config.voters) % 2 == 0):\n",
        "    if len(differing) > 1:\n",
        "what logs that meet every majority they know of have never seen is committed",
    ),
    Mutant(
        "joint-one-half",
        "quorum.py",
        "        return min(committed, _committed(config.outgoing, match))\n",
        "        return committed\n",
        "in a joint configuration one majority commits",
    ),
    Mutant(
        "joint-vote-one-half",
        "quorum.py",
        "    if not config.outgoing or ballot is Ballot.LOST:\n        return ballot\n",
        "    if True:\n        return ballot\n",
        "in a joint configuration one majority elects",
    ),
    Mutant(
        "configuration-survives-truncation",
        "entries.py",
        "        while self.configurations[-1][0] > keep:\n            self.configurations.pop()\n",
        "",
        "a configuration that was cut off stays in force",
    ),
    Mutant(
        "learner-counts",
        "quorum.py",
        "    held = sorted(map(match.get, voters, repeat(_NOTHING)))\n",
        "    held = sorted(match.values())\n",
        "learners are counted for commits",
    ),
    Mutant(
        "removed-leader-stays",
        "roles/membership.py",
        "    elif not configuration.is_voter(state.id):\n",
        "    elif False:\n",
        "a leader that removed itself goes on leading",
    ),
    Mutant(
        "never-leaves-joint",
        "roles/membership.py",
        "    if configuration.auto_leave:\n        _append(state, leave_joint(configuration))\n    elif",
        "    if",
        "a joint configuration is never left",
    ),
    Mutant(
        "quorum-at-risk",
        "roles/membership.py",
        "    if not has_quorum(following, state.live()):\n",
        "    if False:\n",
        "a change leaves a group without live majority",
    ),
    Mutant(
        "lagging-voter",
        "roles/membership.py",
        "        if progress is None or progress.match < needed:\n",
        "        if False:\n",
        "a node without the log becomes a voter that commits wait for",
    ),
    Mutant(
        "even-majority",
        "quorum.py",
        "return voters // 2 + 1",
        "return (voters + 1) // 2",
        "half of an even number of voters elects",
    ),
    Mutant(
        "amnesiac-acknowledges",
        "core.py",
        "        elif self.franchise is _SILENT:\n            self.drop(Drop.NO_FRANCHISE)\n",
        "",
        "an entry is committed by a node that forgot that it had voted for the leader of a newer term",
    ),
    Mutant(
        "newcomer-votes-by-old-configuration",
        "state.py",
        "return admitted is None or log.base >= admitted.first or log.term_at(admitted.first) == admitted.term",
        "return True",
        "a removed node that does not know of its removal is elected by a new disk's vote for the lost one's",
    ),
    Mutant(
        "newcomer-in-earlier-terms",
        "state.py",
        "            self.term, self.vote = admitted.term, None  # leaders of earlier terms may count on the lost disk\n",
        "            pass\n",
        "a leader of an earlier term commits by a new disk's acknowledgement for the lost one's",
    ),
    Mutant(
        "promoted-without-admission",
        "roles/membership.py",
        "max(state.configuration_index, log.last - state.settings.promotion_entries_max)",
        "log.last - state.settings.promotion_entries_max",
        "a node that is a member anew is counted as voter before it can vote",
    ),
)
