"""Planted defects: elections on slow disks and long ways, histories that the leader has not. `tests.raft.defects` has others."""

from __future__ import annotations

from typing import Final

from tests.raft.defects_members import Mutant

OF_ELECTIONS: Final = (
    Mutant(
        "campaign-begun-again",
        "core.py",
        "        if self.role is not Role.FOLLOWER:\n            return\n        if not self.promotable:\n",
        "        if self.role is _LEADER:\n            return\n        if not self.promotable:\n",
        "who is asked to campaign while it does throws its votes away",
    ),
    Mutant(
        "time-out-during-own-sync",
        "core.py",
        "        if campaign.is_promising(self):\n            return\n",
        "",
        "a campaign is given up before it could ask anybody",
    ),
    Mutant(
        "time-out-from-the-campaigns-begin",
        "roles/campaign.py",
        "    state.restart_timer(state.pace.extra_ticks)\n    state.timeout -=",
        "    state.timeout -=",
        "the wait for votes is over when they are asked for",
    ),
    Mutant(
        "slowness-unseen",
        "settings.py",
        "        return min(self.sync_ticks + self.answer_ticks + self.undecided * self._step, self._most)\n",
        "        return 0\n",
        "votes of slow disks come after the campaign was given up",
    ),
    Mutant(
        "nobody-gives-way",
        "roles/campaign.py",
        "        if granted:\n            _give_way(state, request)\n",
        "",
        "on long ways votes are split again and again",
    ),
    Mutant(
        "acknowledges-another-history",
        "roles/follower.py",
        "    if prev <= log.commit and _contradicts(state, message):\n",
        "    if False:\n",
        "a leader whose disk went back counts other entries as its own",
    ),
    Mutant(
        "contradicted-campaigns",
        "state.py",
        "        if self.contradicted or (self.removed_at",
        "        if (self.removed_at",
        "a node that cannot win ends the term of the leader that was elected",
    ),
    Mutant(
        "way-given-for-ever",
        "roles/campaign.py",
        " or state.ticks < state.give_way_from:\n",
        ":\n",
        "a node that hears no answers keeps all others from campaigning",
    ),
)
