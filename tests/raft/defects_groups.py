"""The defects of `tests.raft.defects` about what surrounds a core: restarts, many groups over one log, mixed versions, bounds.

One rule: as there.
"""

from __future__ import annotations

from typing import Final

from tests.raft.defects_members import Mutant

OF_GROUPS: Final = (
    # what tests of their own found first
    Mutant(
        "snapshot-of-a-later-configuration",
        "core.py",
        "self.log.configuration_at(index))",
        "self.configuration)",
        "a snapshot carries a configuration that may be cut from the log",
    ),
    Mutant(
        "joint-not-left-by-the-next-leader",
        "roles/membership.py",
        "    if configuration.auto_leave:\n",
        "    if configuration.auto_leave and before < at:\n",
        "a group stays joint for ever when its leader fails",
    ),
    Mutant(
        "heartbeat-begins-no-wait",
        "roles/follower.py",
        "    state.elapsed = 0\n    if message.commit > state.log.last:\n",
        "    if message.commit > state.log.last:\n",
        "a follower campaigns against a leader that it hears",
    ),
    Mutant(
        "append-begins-no-wait",
        "roles/follower.py",
        "    state.elapsed = 0\n    log, entries = state.log, message.entries\n",
        "    log, entries = state.log, message.entries\n",
        "a follower campaigns against a leader that feeds it",
    ),
    Mutant(
        "restart-over-a-hole",
        "state.py",
        "            if entries.first > self.log.base + 1:\n",
        "            if False:\n",
        "entries are taken for others when the first ones are missing",
    ),
    Mutant(
        "restart-over-falling-terms",
        "state.py",
        "            if any(later < earlier for earlier, later in pairwise(entries.terms)):\n",
        "            if False:\n",
        "a disk that mixes two histories is believed",
    ),
    Mutant(
        "snapshot-of-what-is-not-applied",
        "core.py",
        "        if term is None or index > self.log.handed:\n",
        "        if term is None:\n",
        "a snapshot stands for entries that its state does not have",
    ),
    Mutant(
        "ended-group-speaks",
        "multi_raft.py",
        "                if self.cores.get(group) is not core:\n",
        "                if False:\n",
        "messages leave in the name of a group that has ended",
    ),
    # pitfall 39: groups are independent
    Mutant(
        "one-group-ends-all",
        "multi_raft.py",
        "        del self.cores[group]\n",
        "        self.cores.clear()\n",
        "the defect of one group stops the node",
    ),
    # pitfall 40: one log for all groups
    Mutant(
        "rounds-released-out-of-order",
        "multi_raft.py",
        "        while self._rounds and self._rounds[0].number <= number:\n",
        "        while self._rounds:\n",
        "acknowledgements leave before their round is durable",
    ),
    # pitfall 41: mixed versions
    Mutant(
        "unknown-kind-ends-the-frame",
        "wire/decoding.py",
        "                self.faults[FrameFault.UNKNOWN_KIND] += 1\n                continue\n",
        "                raise BadFrame(FrameFault.UNKNOWN_KIND, str(kind))\n",
        "a newer version cannot add a message",
    ),
    Mutant(
        "unknown-field-refused",
        "wire/decoding.py",
        "        if size > end - at or tag in fields:\n",
        "        if size > end - at or tag in fields or tag > max(Tag):\n",
        "a newer version cannot add a field",
    ),
    # what one moment may hold
    Mutant(
        "acknowledgement-before-the-last-piece",
        "core.py",
        "        if log.taken == log.last:  # an ack",
        "        if True:  # an ack",
        "entries are acknowledged that the next write has",
    ),
    Mutant(
        "commit-mark-above-what-is-written",
        "core.py",
        "commit = log.commit if log.commit <= log.taken else log.taken",
        "commit = log.commit",
        "a node cannot start again from its own disk",
    ),
    # what a driver relies on
    Mutant(
        "read-numbers-from-zero",
        "state.py",
        "        self.read_number = rng.getrandbits(62)",
        "        self.read_number = 0",
        "an answer from before a restart answers a later read",
    ),
    Mutant(
        "unheard-counted-as-alive",
        "roles/membership.py",
        "    if not has_quorum(following, state.live()):\n",
        "    if not has_quorum(following, state.active()):\n",
        "a new leader takes the change that ends the group",
    ),
    Mutant(
        "removed-not-notified",
        "roles/campaign.py",
        "        state.now.append(Removed(state.id, request.sender, state.term, at))\n",
        "        pass\n",
        "a removed node campaigns for ever",
    ),
    Mutant(
        "configuration-without-voters",
        "entries.py",
        "    if not configuration.voters:\n",
        "    if False:\n",
        "a node wins without a vote",
    ),
    Mutant(
        "hung-disk-leads-on",
        "roles/leader.py",
        "    if waited < election:\n",
        "    if True:\n",
        "a leader answers nothing and keeps all others from leading",
    ),
    Mutant(
        "copy-kept-for-a-silent-receiver",
        "roles/leader.py",
        "    if silent or progress.copy_ticks",
        "    if progress.copy_ticks",
        "the log fills for a node that is gone",
    ),
    Mutant(
        "forced-without-leap",
        "roles/membership.py",
        "    state.become_candidate(Term(state.term + FORCED_TERMS + epoch % FORCED_TERMS), reason=RoleReason.FORCED)\n",
        "    state.become_candidate(reason=RoleReason.FORCED)\n",
        "a survivor and a living majority use one term for different entries",
    ),
    Mutant(
        "entries-before-the-manifest-forgotten",
        "entries.py",
        "        if offset > 0 and entries.terms[offset] == self.base_term:\n",
        "        if False:\n",
        "after a restart a follower that is one entry behind copies everything",
    ),
)
