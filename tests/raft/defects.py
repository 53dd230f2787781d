"""The defects that `tests.raft.mutants` plants: snippets of `cmdlog/raft`, what they become, and what is wrong then.

One rule: each is a defect that some consensus core had, or that this one would have without one of its lines. The first
thirteen are those that a prototype of this core was tried with; random simulation alone let six of them live.
"""

from __future__ import annotations

from typing import Final

from tests.raft.defects_elections import OF_ELECTIONS
from tests.raft.defects_groups import OF_GROUPS
from tests.raft.defects_members import OF_MEMBERS, Mutant

__all__ = ["MUTANTS", "Mutant"]

MUTANTS: Final = (
    # the prototype's thirteen
    Mutant(
        "reply-before-fsync",
        "roles/follower.py",
        "prev, reply = entries.first - 1, state.after.append",
        "prev, reply = entries.first - 1, state.now.append",
        "an acknowledgement leaves before the entries are durable",
    ),
    Mutant(
        "truncate-always",
        "entries.py",
        "        if same == len(entries):\n            return\n        if same < len(present):",
        "        if self.last > entries.first + same - 1:",
        "a late or repeated append cuts off what came after it",
    ),
    Mutant(
        "vote-any-log",
        "roles/campaign.py",
        "    good = state.log.up_to_date(request.last_index, request.last_term)",
        "    good = True",
        "a node without committed entries is elected",
    ),
    Mutant(
        "read-before-own-term",
        "roles/reads.py",
        "    if not state.term_committed:\n        reads.parked",
        "    if False:\n        reads.parked",
        "a new leader answers reads by a commit index that may be old",
    ),
    Mutant(
        "two-votes",
        "roles/campaign.py",
        "granted = good and (state.vote == request.sender or (state.vote is None and state.leader is None))",
        "granted = good",
        "two leaders in one term",
    ),
    Mutant(
        "heartbeat-commit-not-clamped",
        "roles/reads.py",
        "min(progress.match, commit), reads.round",
        "commit, reads.round",
        "a follower commits entries that it has not verified",
    ),
    Mutant(
        "completion-by-last-index",
        "entries.py",
        "        for write in self.writes:\n            write.proves = min(write.proves, above)",
        "",
        "the append ABA race: a write from before a truncation proves entries that came since",
    ),
    Mutant(
        "vote-forgotten",
        "state.py",
        "        self.term, self.vote = hard.term, hard.vote\n",
        "        self.term, self.vote = hard.term, None\n",
        "a restarted node votes again in its term",
    ),
    Mutant(
        "read-without-round",
        "roles/reads.py",
        "        reads.waiting.append(Waiting(reads.round + 1, ",
        "        reads.waiting.append(Waiting(reads.round, ",
        "a deposed leader confirms reads by answers that it got before",
    ),
    Mutant(
        "commit-earlier-terms",
        "roles/leader.py",
        "if index <= log.commit or log.term_at(index) != state.term:",
        "if index <= log.commit:",
        "Figure 8: entries of earlier terms are committed by counting",
    ),
    Mutant(
        "leader-counts-unsynced",
        "roles/leader.py",
        "    match = {state.id: log.stable}\n",
        "    match = {state.id: log.last}\n",
        "the leader is part of a majority before its own write is durable",
    ),
    Mutant(
        "commit-past-verified",
        "roles/follower.py",
        "log.commit_to(min(message.commit, verified))",
        "log.commit_to(min(message.commit, log.last))",
        "a follower commits what stands behind the entries that it verified",
    ),
    Mutant(
        "no-pre-vote",
        "roles/campaign.py",
        "    elif state.settings.pre_vote:\n",
        "    elif False:\n",
        "a node that hears nobody raises everybody's terms",
    ),
    # persistence
    Mutant(
        "term-not-durable",
        "core.py",
        "same = self.term == handed.term and self.vote == handed.vote",
        "same = self.vote == handed.vote",
        "a term is forgotten over a restart",
    ),
    Mutant(
        "vote-not-durable",
        "core.py",
        "same = self.term == handed.term and self.vote == handed.vote",
        "same = self.term == handed.term",
        "a vote is forgotten over a restart",
    ),
    Mutant(
        "vote-request-before-fsync",
        "roles/campaign.py",
        "box = state.now if kind is Campaign.PRE else state.after",
        "box = state.now",
        "a candidate asks in a term that it may forget",
    ),
    Mutant(
        "vote-reply-before-fsync",
        "roles/campaign.py",
        "(state.now if request.campaign is Campaign.PRE else state.after).append(reply)",
        "state.now.append(reply)",
        "a vote leaves before it is durable",
    ),
    Mutant(
        "apply-before-durable",
        "entries.py",
        "        upto = self.commit if self.commit < self.stable else self.stable\n",
        "        upto = self.commit\n",
        "a state machine is ahead of its own log",
    ),
    Mutant(
        "own-vote-at-once",
        "state.py",
        "        self.role, self.leader, self.reason = Role.CANDIDATE, None, reason\n",
        "        self.role, self.leader, self.reason = Role.CANDIDATE, None, reason\n        self.votes[self.id] = True\n",
        "a candidate counts its own vote before it is durable",
    ),
    Mutant(
        "stable-survives-truncation",
        "entries.py",
        "self.taken, self.stable = min(self.taken, keep), min(self.stable, keep)",
        "self.taken = min(self.taken, keep)",
        "entries that were cut off still count as durable",
    ),
    Mutant(
        "remembered-columns-survive-truncation",
        "entries.py",
        'self._recent = self._before = Entries(Index(above + 1), [], b"", [])',
        'self._recent = self._before = getattr(self, "_recent", Entries(Index(above + 1), [], b"", []))',
        "entries that were cut off are written, sent and applied in place of those that replaced them",
    ),
    Mutant(
        "term-of-the-end-survives-truncation",
        "entries.py",
        "        self.last, self.last_term = keep, self.terms[-1] if self.terms else self.base_term\n",
        "        self.last = keep\n",
        "a log that was cut back still claims the term of what is gone",
    ),
    Mutant(
        "restart-forgets-commit",
        "state.py",
        '            raise self.broken("what was committed is in the log"',
        '            pass\n        if False:\n            raise self.broken("what was committed is in the log"',
        "a log that lost its committed end is taken for a good one",
    ),
    # elections
    Mutant(
        "up-to-date-by-index",
        "entries.py",
        "return (last_term, last_index) >= (self.last_term, self.last)",
        "return last_index >= self.last",
        "the longer log wins over the newer one",
    ),
    Mutant(
        "vote-while-following",
        "roles/campaign.py",
        "(state.vote is None and state.leader is None))",
        "state.vote is None)",
        "a vote is given in a term that has a leader already",
    ),
    Mutant(
        "no-stickiness",
        "roles/campaign.py",
        "    return state.leader is not None and state.elapsed",
        "    return False and state.elapsed",
        "a removed node ends the term of a leader that is alive",
    ),
    Mutant(
        "no-check-quorum",
        "roles/leader.py",
        "if settings.check_quorum and not has_quorum(state.configuration, state.active()):",
        "if False:",
        "a leader that hears nobody leads for ever",
    ),
    Mutant(
        "older-term-taken",
        "core.py",
        "        elif message.term < self.term:\n            self._step_older(message)\n",
        "",
        "messages of passed terms count",
    ),
    Mutant(
        "equal-timeouts",
        "state.py",
        " + self.rng.randrange(election)",
        "",
        "split votes repeat for ever",
    ),
    Mutant(
        "stale-leader-not-told",
        "core.py",
        "            self.after.append(AppendReply(self.id, message.sender, self.term, Index(0)))\n",
        "            pass\n",
        "a leader of a passed term never hears of the newer one",
    ),
    Mutant(
        "amnesiac-votes",
        "roles/campaign.py",
        "    if not state.enfranchised:\n",
        "    if False:\n",
        "a node that may have forgotten a vote votes again",
    ),
    Mutant(
        "learner-campaigns",
        "state.py",
        "return self.enfranchised and any(value.is_voter(self.id) for value in self.needed_configurations())",
        "return self.enfranchised",
        "a learner or a removed node campaigns",
    ),
    Mutant(
        "late-vote-counts",
        "roles/campaign.py",
        "    if pre is not (reply.campaign is Campaign.PRE) or reply.term != asked_term:\n",
        "    if False:\n",
        "pre-votes and votes of other campaigns are counted",
    ),
    Mutant(
        "news-end-the-wait",
        "state.py",
        "        if goes_on:\n",
        "        if False:\n",
        "a fast candidate with a worse log keeps the one that can win from campaigning",
    ),
    # replication
    Mutant(
        "no-prev-check",
        "roles/follower.py",
        "    if log.term_at(prev) != message.prev_term:\n",
        "    if log.term_at(prev) is None:\n",
        "entries are appended behind a conflicting one",
    ),
    Mutant(
        "match-falls",
        "progress.py",
        "        if index <= self.match:\n            return False\n",
        "",
        "a late reply takes back what a follower has acknowledged",
    ),
    Mutant(
        "stale-rejection",
        "progress.py",
        "        if self.sending is not Sending.PROBE or index != self.next - 1 or index <= self.match:\n"
        "            return False\n",
        "",
        "a late rejection moves the probe",
    ),
    Mutant(
        "window-never-opens",
        "progress.py",
        "            self.in_flight_bytes -= in_flight.popleft()[1]\n",
        "            in_flight.popleft()\n",
        "acknowledged bytes count as under way for ever",
    ),
    Mutant(
        "no-window",
        "progress.py",
        "return len(self.in_flight) < self.messages_max and self.in_flight_bytes < self.bytes_max",
        "return True",
        "one slow follower grows without bound",
    ),
    Mutant(
        "no-own-entry",
        "roles/leader.py",
        "    while proposed and proposed[0][0] <= index:",
        "    while proposed and proposed[0][0] < index:",
        "committed bytes count as proposed: proposals are refused in the end",
    ),
    Mutant(
        "lost-last-append",
        "roles/leader.py",
        "        progress.nudge = progress.sending is _REPLICATE\n",
        "        progress.nudge = False\n",
        "a lost last message stalls its follower",
    ),
    Mutant(
        "hint-ignored",
        "roles/leader.py",
        "log.agreeing(message.hint_index, message.hint_term)",
        "Index(max(0, message.index - 1))",
        "conflicts are found one entry at a time",
    ),
    Mutant(
        "commit-below-log-cut",
        "roles/follower.py",
        "    if prev < log.commit:\n",
        "    if False:\n",
        "a late append reaches below the commit mark",
    ),
    # reads
    Mutant(
        "answers-confirm-later-rounds",
        "roles/leader.py",
        "max(progress.acked_round, message.round)",
        "state.reads.round",
        "an answer to an old heartbeat confirms reads that came after it",
    ),
    Mutant(
        "reads-survive-leader",
        "state.py",
        "        self.reads = Reads()\n        self.votes",
        "        self.votes",
        "reads of a lost leader are answered by the next one",
    ),
    *OF_MEMBERS,
    *OF_ELECTIONS,
    *OF_GROUPS,
    # snapshots and transfers
    Mutant(
        "old-snapshot-installed",
        "roles/follower.py",
        "    if manifest.index <= log.commit:\n",
        "    if False:\n",
        "a node copies what it has",
    ),
    Mutant(
        "compacted-under-copy",
        "core.py",
        "        floor = min([upto, *leader.pinned(self, upto)])\n",
        "        floor = upto\n",
        "the log behind a snapshot is gone while a follower copies it",
    ),
    Mutant(
        "manifest-sent-once",
        "roles/leader.py",
        "    elif progress.copy_ticks % state.settings.election_ticks == 0:\n",
        "    elif False:\n",
        "a lost manifest leaves its follower waiting",
    ),
    Mutant(
        "transfer-never-expires",
        "roles/leader.py",
        "    if state.handover is not None and state.ticks >= state.handover.deadline:\n",
        "    if False:\n",
        "proposals are refused for ever after a failed transfer",
    ),
    Mutant(
        "transfer-to-lagging",
        "roles/leader.py",
        "    if state.progress[target].match == state.log.last:\n",
        "    if True:\n",
        "leadership is offered to a node that cannot win",
    ),
    # the wire
    Mutant(
        "mac-without-check",
        "wire/secure_frames.py",
        "        if not compare_digest(mac.digest(), tag):\n",
        "        if False:\n",
        "a frame that somebody else made is taken",
    ),
)
