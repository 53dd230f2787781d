"""The defects that `tests.raft.mutants` plants: snippets of `cmdlog/raft`, what they become, and what is wrong then.

One rule: each is a defect that some consensus core had, or that this one would have without one of its lines. The first
thirteen are those that a prototype of this core was tried with; random simulation alone let six of them live.
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


MUTANTS: Final = (
    # the prototype's thirteen
    Mutant(
        "reply-before-fsync",
        "follower.py",
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
        "voter.py",
        "    good = state.log.up_to_date(request.last_index, request.last_term)",
        "    good = True",
        "a node without committed entries is elected",
    ),
    Mutant(
        "read-before-own-term",
        "reads.py",
        "    if not state.term_committed:\n        reads.parked",
        "    if False:\n        reads.parked",
        "a new leader answers reads by a commit index that may be old",
    ),
    Mutant(
        "two-votes",
        "voter.py",
        "granted = good and (state.vote == request.sender or (state.vote is None and state.leader is None))",
        "granted = good",
        "two leaders in one term",
    ),
    Mutant(
        "heartbeat-commit-not-clamped",
        "reads.py",
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
        "reads.py",
        "        reads.waiting.append(Waiting(reads.round + 1, ",
        "        reads.waiting.append(Waiting(reads.round, ",
        "a deposed leader confirms reads by answers that it got before",
    ),
    Mutant(
        "commit-earlier-terms",
        "leader.py",
        "if index <= log.commit or log.term_at(index) != state.term:",
        "if index <= log.commit:",
        "Figure 8: entries of earlier terms are committed by counting",
    ),
    Mutant(
        "leader-counts-unsynced",
        "leader.py",
        "    match = {state.id: log.stable}\n",
        "    match = {state.id: log.last}\n",
        "the leader is part of a majority before its own write is durable",
    ),
    Mutant(
        "commit-past-verified",
        "follower.py",
        "log.commit_to(min(message.commit, verified))",
        "log.commit_to(min(message.commit, log.last))",
        "a follower commits what stands behind the entries that it verified",
    ),
    Mutant(
        "no-pre-vote",
        "candidate.py",
        "    elif state.settings.pre_vote:\n",
        "    elif False:\n",
        "a node that hears nobody raises everybody's terms",
    ),
    # persistence
    Mutant(
        "term-not-durable",
        "core.py",
        "if self.term == handed.term and self.vote == handed.vote and not (",
        "if self.vote == handed.vote and not (",
        "a term is forgotten over a restart",
    ),
    Mutant(
        "vote-not-durable",
        "core.py",
        "if self.term == handed.term and self.vote == handed.vote and not (",
        "if self.term == handed.term and not (",
        "a vote is forgotten over a restart",
    ),
    Mutant(
        "vote-request-before-fsync",
        "candidate.py",
        "box = state.now if kind is Campaign.PRE else state.after",
        "box = state.now",
        "a candidate asks in a term that it may forget",
    ),
    Mutant(
        "vote-reply-before-fsync",
        "voter.py",
        "(state.now if request.campaign is Campaign.PRE else state.after).append(reply)",
        "state.now.append(reply)",
        "a vote leaves before it is durable",
    ),
    Mutant(
        "apply-before-durable",
        "entries.py",
        "        upto = min(self.commit, self.stable)\n",
        "        upto = self.commit\n",
        "a state machine is ahead of its own log",
    ),
    Mutant(
        "own-vote-at-once",
        "state.py",
        "        self.role, self.leader = Role.CANDIDATE, None\n",
        "        self.role, self.leader = Role.CANDIDATE, None\n        self.votes[self.id] = True\n",
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
        "voter.py",
        "(state.vote is None and state.leader is None))",
        "state.vote is None)",
        "a vote is given in a term that has a leader already",
    ),
    Mutant(
        "no-stickiness",
        "voter.py",
        "    return heard or (",
        "    return False and (",
        "a removed node ends the term of a leader that is alive",
    ),
    Mutant(
        "no-check-quorum",
        "leader.py",
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
        " + self.rng.randrange(settings.election_ticks)\n",
        "\n",
        "all time-outs are equal: votes are split for ever",
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
        "voter.py",
        "    if state.franchise is Franchise.NONE:\n",
        "    if False:\n",
        "a node that may have forgotten a vote votes again",
    ),
    Mutant(
        "learner-campaigns",
        "state.py",
        "return self.franchise is Franchise.FULL and any(value.is_voter(self.id) for value in self.needed_configurations())",
        "return self.franchise is Franchise.FULL",
        "a learner or a removed node campaigns",
    ),
    Mutant(
        "late-vote-counts",
        "candidate.py",
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
        "follower.py",
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
        "        if self.sending is not Sending.PROBE or index != self.next - 1:\n            return False\n",
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
        "leader.py",
        "    while proposed and proposed[0][0] <= index:",
        "    while proposed and proposed[0][0] < index:",
        "committed bytes count as proposed: proposals are refused in the end",
    ),
    Mutant(
        "lost-last-append",
        "leader.py",
        "progress.sending is Sending.REPLICATE and progress.match < state.log.last\n",
        "False\n",
        "a lost last message stalls its follower",
    ),
    Mutant(
        "hint-ignored",
        "leader.py",
        "log.agreeing(message.hint_index, message.hint_term)",
        "Index(max(0, message.index - 1))",
        "conflicts are found one entry at a time",
    ),
    Mutant(
        "commit-below-log-cut",
        "follower.py",
        "    if prev < log.commit:\n",
        "    if False:\n",
        "a late append reaches below the commit mark",
    ),
    # reads
    Mutant(
        "answers-confirm-later-rounds",
        "leader.py",
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
    Mutant(
        "lease-during-change",
        "reads.py",
        "        and state.configuration_index <= state.log.commit\n",
        "",
        "a lease holds by voters that are no majority any more",
    ),
    Mutant(
        "lease-after-transfer",
        "transfer.py",
        "        state.reads.lease_void = True\n",
        "",
        "a lease is trusted after leadership was offered",
    ),
    Mutant(
        "lease-from-answer",
        "reads.py",
        "        reads.lease_from = reads.rounds_sent.popleft()[1]\n",
        "        reads.rounds_sent.popleft()\n        reads.lease_from = state.ticks\n",
        "a lease begins when answers come, not when the question left",
    ),
    # members
    Mutant(
        "change-before-own-term",
        "membership.py",
        "    if not state.term_committed:\n        raise ChangeRefused(Refusal.TERM_NOT_COMMITTED)\n",
        "",
        "the bug of single-server changes of 2015",
    ),
    Mutant(
        "two-changes",
        "membership.py",
        "    if state.configuration_index > state.log.commit:\n        raise",
        "    if False:\n        raise",
        "two configurations are under way, with majorities that do not meet",
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
        "membership.py",
        "    elif not configuration.is_voter(state.id):\n",
        "    elif False:\n",
        "a leader that removed itself goes on leading",
    ),
    Mutant(
        "never-leaves-joint",
        "membership.py",
        "    if configuration.auto_leave:\n        _append(state, leave_joint(configuration))\n    elif",
        "    if",
        "a joint configuration is never left",
    ),
    Mutant(
        "quorum-at-risk",
        "membership.py",
        "    if not has_quorum(following, state.active()):\n",
        "    if False:\n",
        "a change leaves a group without live majority",
    ),
    Mutant(
        "lagging-voter",
        "membership.py",
        "        if progress is None or progress.match + state.settings.promotion_entries_max < state.log.last:\n",
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
    # snapshots and transfers
    Mutant(
        "old-snapshot-installed",
        "follower.py",
        "    return manifest.index <= log.commit\n",
        "    return False\n",
        "a snapshot older than the log replaces it",
    ),
    Mutant(
        "compacted-under-copy",
        "core.py",
        "        floor = min([upto, *pins])\n",
        "        floor = upto\n",
        "the log behind a snapshot is gone while a follower copies it",
    ),
    Mutant(
        "copy-never-ends",
        "leader.py",
        "        progress.probe()\n\n\ndef _heard",
        "        pass\n\n\ndef _heard",
        "a failed copy leaves its follower waiting",
    ),
    Mutant(
        "manifest-sent-once",
        "leader.py",
        "    elif progress.copy_ticks % state.settings.election_ticks == 0:\n",
        "    elif False:\n",
        "a lost manifest leaves its follower waiting",
    ),
    Mutant(
        "transfer-never-expires",
        "transfer.py",
        "    if state.handover is not None and state.ticks >= state.handover.deadline:\n",
        "    if False:\n",
        "proposals are refused for ever after a failed transfer",
    ),
    Mutant(
        "transfer-to-lagging",
        "transfer.py",
        "    if state.progress[target].match == state.log.last:\n",
        "    if True:\n",
        "leadership is offered to a node that cannot win",
    ),
    Mutant(
        "snapshot-keeps-old-log",
        "core.py",
        "            self.log.reset(manifest)\n",
        "",
        "an installed snapshot stands beside a log that does not meet it",
    ),
    # the wire
    Mutant(
        "mac-without-check",
        "codec.py",
        "        if not compare_digest(mac.digest(), tag):\n",
        "        if False:\n",
        "a frame that somebody else made is taken",
    ),
)
