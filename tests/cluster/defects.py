"""Defects of a cluster's driver, start, marks, gate, machine, leaders and transport.

One rule: a defect is a snippet that occurs exactly once in its module, and what it becomes. `tests.cluster.mutants` plants each
in a copy: the tests of the module are the first to look, then a slice of `tests.cluster.sim`.
"""

from __future__ import annotations

from typing import Final

from tests.cluster.defects_membership import OF_MEMBERS
from tests.raft.defects_members import Mutant

DRIVER, MARKS, GATE = "cluster/replication.py", "cluster/executed_marks.py", "cluster/entry_gate.py"
COMMITS, RESTORED, RECORDS = "cluster/rounds.py", "cluster/restored_groups.py", "cluster/entry_records.py"
VERDICT = "wal/format/call_places.py"
MACHINE, LEADERSHIP, STEPS = (
    "member/sequenced_machine.py",
    "member/leading/leadership.py",
    "member/leading/leader_steps.py",
)
TAKEOVER, STATER, READER = "member/leading/takeover.py", "member/leading/cluster_code_log.py", "member/entry_reader.py"
ROUNDS, TRANSFER = "member/read_rounds.py", "member/leading/leadership_transfer.py"
PIPELINES, PIPELINE = "node/sequencing/replicated_pipelines.py", "node/sequencing/partition_pipeline.py"
LOG_FEED, EVENTS, DESK = "node/sequencing/log_feed.py", "member/peer_events.py", "node/site_events.py"
BOOK, ADMISSION, NETWORK = (
    "cluster/transport/peer_book.py",
    "cluster/transport/peer_admission.py",
    "cluster/transport/peer_network.py",
)
HANDSHAKE, OUTBOX, TICKER = "cluster/transport/handshake.py", "cluster/transport/outbox.py", "cluster/transport/peer_transport.py"

OF_DRIVER: Final = (
    Mutant(
        "acknowledge-before-fsync",
        DRIVER,
        "            for waiting in taken.rounds:\n                if waiting.from_machine:\n"
        "                    self._machine.written(block)",
        "            for waiting in taken.rounds:\n                self._release(waiting.number)\n"
        "                if waiting.from_machine:\n                    self._machine.written(block)",
        "a power cut takes what a peer counts as durable",
    ),
    Mutant(
        "release-with-the-first-block",
        COMMITS,
        "            if records:\n                break\n            block.rounds.append(self.rounds.popleft())",
        "            block.rounds.append(self.rounds[0])\n            if records:\n                break\n"
        "            self.rounds.popleft()",
        "a round is acknowledged when a prefix of it is durable",
    ),
    Mutant(
        "silent-round-overtakes",
        DRIVER,
        "        elif (last := self._last_round()) is not None:\n            last.number = round_.number\n        else:",
        "        else:",
        "messages that rest on a block leave before it is durable",
    ),
    Mutant(
        "ticks-after-the-wedge",
        DRIVER,
        "            if self.failure is None:\n                self.groups.tick()",
        "            if True:\n                self.groups.tick()",
        "a node whose log has failed sends heartbeats, and is kept as the leader",
    ),
    Mutant(
        "receives-after-the-wedge",
        DRIVER,
        "            if self.failure is None:\n                for group, message in messages:",
        "            if True:\n                for group, message in messages:",
        "a node whose log has failed votes",
    ),
    Mutant(
        "vote-not-written",
        COMMITS,
        "votes.get(group) != (hard.term, hard.vote):",
        "votes.get(group, (0, 0))[0] != hard.term:",
        "a node forgets whom it voted for in a term that it knew before",
    ),
    Mutant(
        "hard-state-left-out-of-a-round",
        COMMITS,
        "        if ready.completion is None:\n",
        "        if ready.entries is None:\n",
        "a vote is not in the log when there are no entries beside it",
    ),
    Mutant(
        "nobody-is-woken-for-the-rest",
        DRIVER,
        "            self._wants_block = bool(self._waiting.rounds)",
        "            self._wants_block = False",
        "the rest of a round waits until something else comes",
    ),
    Mutant(
        "busy-group-gets-no-mark",
        COMMITS,
        "self._ticks - mark.written_at < MARK_TICKS",
        "mark.written",
        "a restart of a busy node replays its whole log",
    ),
    Mutant(
        "order-of-a-block",
        COMMITS,
        "    return heads + entries + due",
        "    return due + heads + entries",
        "a torn block states as committed what it does not hold",
    ),
    Mutant(
        "restart-forgets-what-is-not-run",
        DRIVER,
        "{group: min(commit, run_upto.get(group, commit)) + 1 for group, commit in self.marked.items()}",
        "{group: commit + 1 for group, commit in self.marked.items()}",
        "the log lets go of entries that are committed and not run",
    ),
    Mutant(
        "bad-entries-are-believed",
        DRIVER,
        "                self.bad_entries += 1\n                return",
        "                self.bad_entries += 1",
        "a peer's entry is written where a restart finds another one",
    ),
    Mutant(
        "commit-not-marked",
        COMMITS,
        "        mark.written = self.new[group] = mark.index\n",
        "        mark.written = mark.index\n        self.new[group] = mark.index + 8\n",
        "the log lets go of entries that no durable mark calls committed",
    ),
    Mutant(
        "mark-ahead-of-the-commit",
        COMMITS,
        "term=mark.term, commit=mark.index, closed_txn",
        "term=mark.term, commit=mark.index + 1, closed_txn",
        "a restart runs an entry that was not committed",
    ),
    Mutant(
        "closes-more-than-it-ran",
        COMMITS,
        "closed_txn=mark.closed_txn())",
        "closed_txn=mark.closed_txn() + (1 << 40))",
        "a mark closes TxnIds that another leader's clock has not given yet",
    ),
)

OF_START: Final = (
    Mutant(
        "start-commits-the-end-of-its-log",
        RESTORED,
        "    marked = Place(state.commit, state.commit_term)",
        "    marked = Place(state.last_index, state.last_term)",
        "entries of an old term are committed by a restart",
    ),
    Mutant(
        "start-forgets-its-vote",
        RESTORED,
        "        vote = None if state.vote is None else NodeId(state.vote)",
        "        vote = None",
        "a node votes twice in a term",
    ),
    Mutant(
        "start-at-the-commit-mark",
        RESTORED,
        "    done = {group: run.get(group, place) for group, place in committed.items()}",
        "    done = dict(committed)",
        "what is committed and not run is never handed out",
    ),
    Mutant(
        "start-keeps-a-replaced-suffix",
        RESTORED,
        "        del self.entries[index - self.base - 1 :]\n",
        "        del self.entries[index - self.base - 1 : index - self.base]\n",
        "entries that a later term has replaced come back",
    ),
    Mutant(
        "reader-takes-a-replaced-entry",
        READER,
        "        if record.term == request.terms[at]:",
        "        if record.term <= request.terms[at]:",
        "a follower that is far back gets an entry that was replaced",
    ),
    Mutant(
        "entry-of-another-place",
        RECORDS,
        "        in_place = (record.partition, record.term, record.index) == (group, term, index)",
        "        in_place = (record.partition, record.index) == (group, index)",
        "a record is written under another term than its own",
    ),
)

OF_MARKS: Final = (
    Mutant(
        "runs-past-the-mark",
        MARKS,
        "(self.free or of.waiting[0][0] <= of.upto)",
        "(self.free or of.marks or of.waiting[0][0] <= of.upto)",
        "a follower runs what its leader has not run, and may skip",
    ),
    Mutant(
        "mark-without-its-commit",
        MARKS,
        "        while of.marks and of.marks[0][1] <= of.known:",
        "        while of.marks:",
        "a follower runs a call whose skip it does not know yet",
    ),
    Mutant(
        "mark-of-a-former-leader",
        MARKS,
        "            if leaders.get(group) != (term, message.sender):",
        "            if leaders.get(group) != (term, message.sender) and not message.commits:",
        "a leader that was deposed lets followers run entries",
    ),
    Mutant(
        "free-for-ever",
        MARKS,
        "        self.free = False\n        self._rows.clear()",
        "        self._rows.clear()",
        "a node that led once runs ahead of later leaders",
    ),
    Mutant(
        "digests-are-not-compared",
        MARKS,
        "        if differ(ours, theirs) and not of.diverged:",
        "        if differ(ours, theirs) and of.diverged:",
        "replicas drift apart, and nobody says so",
    ),
    Mutant(
        "minority-is-believed",
        MARKS,
        "            if 1 + _same(of.dispute[-1], others) < self._majority:",
        "            if _same(of.dispute[-1], others) < 0:",
        "a follower that diverged alone applies on",
    ),
    Mutant(
        "last-mark-is-not-repeated",
        MARKS,
        "        if self._ticks % REPEAT_TICKS == 0:",
        "        if self._ticks % REPEAT_TICKS == REPEAT_TICKS:",
        "a lost message leaves followers behind for ever",
    ),
    Mutant(
        "diverged-partition-goes-on",
        MARKS,
        "        while of.waiting and not of.diverged and (",
        "        while of.waiting and (",
        "a replica that computed something else applies more",
    ),
)

OF_GATE: Final = (
    Mutant(
        "half-a-call-is-run",
        GATE,
        "                if verdict not in (CallVerdict.IN, CallVerdict.OUT):",
        "                if verdict is CallVerdict.UNKNOWN:",
        "a call on all partitions is run on those that have it",
    ),
    Mutant(
        "a-younger-state-has-run-it",
        GATE,
        "                verdict = CallVerdict.IN if held else judge_call(places, self.terms)",
        "                later = any(self._begun[p] >= place.index for p, place in enumerate(places))\n"
        "                verdict = CallVerdict.IN if held or later else judge_call(places, self.terms)",
        "after a restart a call is run that one state has passed without it",
    ),
    Mutant(
        "a-void-call-is-skipped",
        GATE,
        "                    left_out.append((partition, index, VOID))",
        "                    left_out.append((partition, index, 0))",
        "it leaves an outcome where its entry is, and the retry runs on the others alone",
    ),
    Mutant(
        "a-void-call-is-run",
        GATE,
        "                    left_out.append((partition, index, VOID))",
        "                    pass",
        "a call that some partition can never have is run on the others",
    ),
    Mutant(
        "others-are-not-let-go",
        GATE,
        "        for partition in sorted(self._waiting):",
        "        for partition in sorted(self._waiting)[:1]:",
        "the partition that had the call first waits for ever",
    ),
    Mutant(
        "a-skip-counts-where-it-is",
        GATE,
        "        return [(each, index, skip.position) for each, index in enumerate(skip.everywhere)]",
        "        return [(partition, skip.batch, skip.position)]",
        "a call that hangs is skipped on one partition, and run on the others",
    ),
    Mutant(
        "half-a-skip-is-forgotten",
        GATE,
        "        if len(known) == len(self.terms):",
        "        if known:",
        "a follower learns from its leader's marks to run what the leader has skipped",
    ),
)

OF_VERDICT: Final = (
    Mutant(
        "the-same-term-decides",
        VERDICT,
        "            return CallVerdict.OUT if self.rows[-1][1] > place.term else CallVerdict.OPEN",
        "            return CallVerdict.OUT if self.rows[-1][1] >= place.term else CallVerdict.OPEN",
        "a call is taken out while its leader still brings it",
    ),
    Mutant(
        "a-later-term-after-the-place-decides",
        VERDICT,
        "        return CallVerdict.IN if self.rows[at][1] == place.term else CallVerdict.OUT",
        "        return CallVerdict.IN if self.rows[-1][1] == place.term else CallVerdict.OUT",
        "a call that was run is taken out by the next leader",
    ),
)

OF_MACHINE: Final = (
    Mutant(
        "site-learns-of-a-skip-too-late",
        MACHINE,
        "        for partition, index, position in left_out:\n            self._leave_out(partition, index, position)\n"
        "        known = entries.first + len(entries.terms) - 1\n"
        "        for partition, run in {group: (), **dict(released)}.items():\n"
        "            self._run(partition, self._marks.add(partition, run, known if partition == group else 0))\n",
        "        known = entries.first + len(entries.terms) - 1\n"
        "        for partition, run in {group: (), **dict(released)}.items():\n"
        "            self._run(partition, self._marks.add(partition, run, known if partition == group else 0))\n"
        "        for partition, index, position in left_out:\n            self._leave_out(partition, index, position)\n",
        "a site runs a call whose skip is logged",
    ),
    Mutant(
        "known-before-it-waits",
        MACHINE,
        "known if partition == group else 0))\n",
        "known + 100 if partition == group else 0))\n",
        "marks count entries as known that are not",
    ),
    Mutant(
        "statement-is-not-answered",
        MACHINE,
        "                if (done := self._proposed.pop(index, None)) is not None:",
        "                if (done := self._proposed.get(-index)) is not None:",
        "who stated something waits for ever",
    ),
    Mutant(
        "read-without-a-majority",
        ROUNDS,
        "self._end(begun, leads=index is not None)",
        "self._end(begun, leads=True)",
        "a read is served although another node may lead",
    ),
    Mutant(
        "read-is-not-confirmed",
        ROUNDS,
        "        self.add(confirmed)\n",
        "        confirmed(True)\n",
        "reads ask nobody",
    ),
    Mutant(
        "confirmed-by-itself",
        ROUNDS,
        "                    self._machine.forget_read(begun.context)\n        self._end(begun, leads=False)",
        "                    self._machine.forget_read(begun.context)\n        self._end(begun, leads=True)",
        "a deposed leader serves stale reads",
    ),
    Mutant(
        "read-joins-a-round-under-way",
        ROUNDS,
        "            self._next.reads.append(read)\n            waits = self._under_way is not None\n",
        "            waits = self._under_way is not None\n            (self._under_way or self._next).reads.append(read)\n",
        "a read is confirmed by a question that was asked before it came",
    ),
    Mutant(
        "durable-is-committed",
        LOG_FEED,
        "self.commit(taken, now) if self.votes_alone else []",
        "self.commit(taken, now)",
        "a call is run and answered when one disk has it",
    ),
    Mutant(
        "entry-is-run-twice",
        PIPELINES,
        "                if index <= stream.durable_index:\n                    continue\n",
        "                if index < stream.durable_index:\n                    continue\n",
        "what the state holds is given to the site again",
    ),
    Mutant(
        "deposed-leader-keeps-its-proposals",
        PIPELINES,
        "                for flight in stream.drop_uncommitted():",
        "                for flight in stream.uncommitted()[:0]:",
        "another leader's entry is taken for the one that was proposed here",
    ),
    Mutant(
        "unknown-is-told-as-refused",
        PIPELINES,
        "                    unknown += take_callers([flight])\n",
        "                    refused += take_callers([flight])\n",
        "a client hears that nothing was logged, and the call is run",
    ),
    Mutant(
        "refused-calls-are-kept",
        PIPELINES,
        "for stream in self._streams.values() for pending in stream.withdraw(refused=True)]",
        "for stream in self._streams.values() for pending in stream.withdraw(refused=False)]",
        "a deposed leader proposes old calls when it leads again",
    ),
    Mutant(
        "anybody-may-skip",
        PIPELINES,
        "            return any(flight.index == index and flight.dones for flight in self._streams[partition].flights)",
        "            return True",
        "a call is skipped that its proposer has run",
    ),
    Mutant(
        "proposals-reach-the-site",
        PIPELINE,
        "        self.unsent = deque(item for item in self.unsent if isinstance(item, Read) or item.stage is DURABLE)\n"
        "        self.next_index",
        "        self.next_index",
        "a site gets what was dropped",
    ),
    Mutant(
        "late-entry-goes-to-the-end",
        PIPELINE,
        "            self.flights.insert(self.flights.index(before), flight)\n"
        "            self.unsent.insert(self.unsent.index(before), flight)",
        "            self.flights.append(flight)\n            self.unsent.append(flight)",
        "an entry of an earlier leader is run after one of this leader",
    ),
    Mutant(
        "desk-asks-nobody",
        DESK,
        "        if self._replica is not None and not self._replica.may_skip(fault.partition, fault.index):",
        "        if False:",
        "a follower skips a call",
    ),
)

OF_LEADERS: Final = (
    Mutant(
        "leads-before-its-term-is-committed",
        LEADERSHIP,
        "        leads_all = all(view.confirmed for view in views.values())",
        "        leads_all = all(view.leads for view in views.values())",
        "a new leader does not know what was acknowledged",
    ),
    Mutant(
        "one-group-is-enough",
        LEADERSHIP,
        "        leads_all = all(view.confirmed for view in views.values())",
        "        leads_all = views[CLUSTER_GROUP].confirmed",
        "calls are taken for partitions that another node leads",
    ),
    Mutant(
        "new-terms-go-unnoticed",
        LEADERSHIP,
        "(not leads_all or terms != self.terms)",
        "not leads_all",
        "entries are numbered in a term that is over",
    ),
    Mutant(
        "takes-calls-of-other-terms",
        LEADERSHIP,
        "        if self.standing is not Standing.TAKING_OVER or terms != self.terms:",
        "        if self.standing is not Standing.TAKING_OVER:",
        "a take-over of old terms opens the node",
    ),
    Mutant(
        "groups-are-not-gathered",
        LEADERSHIP,
        "            if wins and view.leader is None:",
        "            if False:",
        "a group without a leader stays so",
    ),
    Mutant(
        "clock-is-not-lifted",
        STEPS,
        "            self._sequencer.clock.lift(txn_tick(self._driver.last_txn))\n",
        "",
        "a TxnId is given again",
    ),
    Mutant(
        "half-skips-are-left",
        STEPS,
        "            self._sequencer.intake.add_entries(entries, _ignore)",
        "            _ = entries",
        "a call that the leader before has skipped on some partitions holds up its successor",
    ),
    Mutant(
        "skips-of-other-terms",
        STEPS,
        "            if not self.still(terms):\n                return False\n            entries:",
        "            entries:",
        "a take-over that is over skips a call in the next one's terms",
    ),
    Mutant(
        "keys-of-the-first-partition-alone",
        STEPS,
        "        for partition in self._machine.partitions:",
        "        for partition in self._machine.partitions[:1]:",
        "a new leader accepts a key that another partition knows",
    ),
    Mutant(
        "runs-before-skips-are-everywhere",
        TAKEOVER,
        "    while steps.still(terms) and not steps.skips_finished():",
        "    while False:",
        "a follower runs what its leader has skipped",
    ),
    Mutant(
        "keys-are-lost-at-the-take-over",
        TAKEOVER,
        "    steps.load_keys()\n",
        "",
        "a new leader knows no key",
    ),
    Mutant(
        "calls-before-everything-is-run",
        TAKEOVER,
        "    while steps.still(terms) and not steps.all_run():\n        yield name\n",
        "    yield name\n",
        "keys and states of the new leader lack what was acknowledged",
    ),
    Mutant(
        "code-without-its-entry",
        STATER,
        "if not isinstance(reply := replies.get(), CallOutcome):",
        "if (reply := replies.get()) is None:",
        "a take-over goes on although its code is not committed",
    ),
    Mutant(
        "places-of-other-terms",
        STEPS,
        "            if not self.still(terms):\n                return False\n            self._machine.lead(",
        "            self._machine.lead(",
        "a node that was deposed meanwhile numbers entries",
    ),
    Mutant(
        "votes-before-it-is-pinned",
        EVENTS,
        "            heard = self.speaks and self._membership.hears(peer)",
        "            heard = self._membership.hears(peer)",
        "an emptied disk votes a second time",
    ),
    Mutant(
        "offers-before-it-has-drained",
        TRANSFER,
        "        if waits and not self._drained() and self._ticks - self._held_at < DRAIN_TICKS:",
        "        if False:",
        "an orderly stop leaves calls with an unknown outcome",
    ),
    Mutant(
        "holds-for-ever",
        TRANSFER,
        "            self._driver.let_propose()",
        "            pass",
        "a leader that nobody relieved proposes no more",
    ),
)

OF_TRANSPORT: Final = (
    Mutant(
        "another-incarnation-is-let-in",
        BOOK,
        "    if peer.incarnation != record.incarnation:",
        "    if peer.incarnation != record.incarnation and record.confirmed:",
        "a disk that was emptied comes back as the node that it was",
    ),
    Mutant(
        "earlier-start-is-let-in",
        BOOK,
        "    if start.number < known.number:",
        "    if start.number + 1 < known.number:",
        "a copy of a directory takes turns with it",
    ),
    Mutant(
        "two-processes-of-one-start",
        BOOK,
        "    if start.process_of(known.number) not in (known.process, None):",
        "    if False:",
        "a copied directory votes beside the original",
    ),
    Mutant(
        "copy-counts-on",
        BOOK,
        "    if start.process_of(known.number) not in (known.process, None):",
        "    if start.number == known.number and start.process != known.process:",
        "an old copy that is started often enough is heard",
    ),
    Mutant(
        "earlier-starts-are-not-read",
        HANDSHAKE,
        "    return replace(said.start, earlier=session.earlier)",
        "    return said.start",
        "an old copy that is started often enough is heard",
    ),
    Mutant(
        "rival-is-not-asked",
        ADMISSION,
        "        if any(await asyncio.gather(*(rival.challenge(self._challenge_s) for rival in rivals))):",
        "        if False:",
        "a copy pushes the living process out",
    ),
    Mutant(
        "pin-is-not-durable",
        ADMISSION,
        "        await asyncio.to_thread(self._book.pin, peer)",
        "        self._book.check(peer)",
        "a power cut forgets whom this node has met",
    ),
    Mutant(
        "whoever-answers",
        HANDSHAKE,
        '        raise BadFrame(FrameFault.SENDER, f"node {answer.sender.node} answers at the address of node {node}")',
        "        pass",
        "messages for one node go to another",
    ),
    Mutant(
        "closed-outbox-keeps",
        OUTBOX,
        "            if not self._open:\n",
        "            if False:\n",
        "memory grows while a peer is away, and old messages arrive first",
    ),
    Mutant(
        "older-heartbeat-wins",
        OUTBOX,
        "    rows = {row[0]: row[1:] for row in "
        "zip(earlier.groups, earlier.terms, earlier.commits, earlier.rounds, strict=True)}\n"
        "    rows |= {row[0]: row[1:] for row in zip(later.groups, later.terms, later.commits, later.rounds, strict=True)}",
        "    rows = {row[0]: row[1:] for row in "
        "zip(later.groups, later.terms, later.commits, later.rounds, strict=True)}\n"
        "    rows |= {row[0]: row[1:] for row in "
        "zip(earlier.groups, earlier.terms, earlier.commits, earlier.rounds, strict=True)}",
        "a heartbeat that waited replaces a newer one",
    ),
    Mutant(
        "outbox-without-end",
        OUTBOX,
        "                if self._bytes + size > self.bytes_max or len(self._messages) >= self.messages_max:",
        "                if False:",
        "a slow peer costs memory without a limit",
    ),
    Mutant(
        "missed-ticks-are-lost",
        TICKER,
        "            self._give(due)",
        "            self._give(1)",
        "a leader that slept does not notice that its time is over",
    ),
    Mutant(
        "replaced-incarnation-is-heard",
        NETWORK,
        "        if self.book.records[peer.node].incarnation == peer.incarnation:",
        "        if True:",
        "a node that was replaced still counts",
    ),
)

DEFECTS: Final = (*OF_DRIVER, *OF_START, *OF_MARKS, *OF_GATE, *OF_VERDICT, *OF_MACHINE, *OF_LEADERS, *OF_TRANSPORT, *OF_MEMBERS)
