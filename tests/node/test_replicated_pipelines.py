"""The pipelines of one of several nodes: what consensus hands out is run, and callers learn what became of their calls."""

from __future__ import annotations

import pytest

from cmdlog.node.outcome import CallOutcome, CallRefused, NotReady, UnknownOutcome
from cmdlog.node.sequencing import replicated_pipelines
from cmdlog.node.sequencing.intake import Closed
from cmdlog.node.sequencing.replicated_pipelines import ReplicatedPipelines
from cmdlog.wal.format.batch import encode_batch
from cmdlog.wal.format.record import RecordKind, decode_record, encode_empty
from cmdlog.wal.ids import make_txn_id
from tests.node.pipeline import Call, Pipeline

TERM = 9


class Member(Pipeline):
    """A pipeline whose log commits nothing by itself: the test says what a majority has."""

    votes_alone = False

    def __init__(self, partitions: int = 2, *, leads: bool = True) -> None:
        super().__init__(partitions)
        self.sequencer.intake.refuse(Closed.LEADER, NotReady("nobody leads"))
        self.at = dict.fromkeys(self.at_site, 0)  # committed index by partition
        if leads:
            self.lead()

    @property
    def replicated(self) -> ReplicatedPipelines:
        return self.sequencer.replicated

    def lead(self, first: int = 1) -> None:
        self.replicated.lead(dict.fromkeys(self.at_site, (TERM, first)), catalog=4)
        self.replicated.accept_calls()

    def log(self) -> list[tuple[int, int, bytes]]:
        """A block is taken, and durable here: its entries as (partition, index, record)."""
        block = self.take()
        assert block is not None
        self.write()
        self.sync()
        return [(r.partition, r.index, r.raw) for r in block.records if r.is_entry]

    def commit(self, *entries: tuple[int, int, bytes]) -> None:
        """A majority has these, in order; each partition's come together."""
        for partition in sorted({entry[0] for entry in entries}):
            of = [(index, record) for p, index, record in entries if p == partition]
            self.replicated.commit(partition, of, lambda _index: None)

    def batch(self, partition: int, record: bytes, index: int) -> None:
        """What a site gets is checked by the tests: entries of other nodes are in no block here."""
        self.at_site[partition].append(("batch", index, record))

    def sent(self, partition: int = 0) -> list[int]:
        """Indexes that the site has, and has not answered."""
        return [index for _, index, _ in self.at_site[partition]]


def foreign(index: int, *, partition: int = 0, term: int = 3) -> tuple[int, int, bytes]:
    """A batch that another node proposed."""
    txn = make_txn_id(millis=index, counter=0, partition=partition)
    record = encode_batch(
        partition=partition, term=term, index=index, catalog=1, txn_ids=[txn], procedures=[7], params=[b"[%d]" % (1000 + index)]
    )
    return partition, index, record


def empty(index: int) -> tuple[int, int, bytes]:
    """A leader's first entry."""
    return 0, index, encode_empty(partition=0, term=TERM, index=index)


def reply_of(call: Call) -> object:
    """The only answer that the call got."""
    (reply,) = call.replies
    return reply


# -- commits -----------------------------------------------------------------------------------------------------------


def test_a_call_is_run_when_a_majority_has_it_and_not_before() -> None:
    """Durable here is not committed; the caller is answered by the site's answer after the commit."""
    node = Member()
    call = node.add(0)
    entries = node.log()
    assert node.sent() == []
    assert not node.replicated.idle
    node.commit(*entries)
    assert node.sent() == [1]
    assert not call.replies
    node.serve(0)
    assert isinstance(reply_of(call), CallOutcome)
    assert node.replicated.idle
    node.check_empty()


def test_own_entries_get_the_leader_s_term_index_and_catalog() -> None:
    """`lead` says where the next entry goes; the ones after it follow on."""
    node = Member(leads=False)
    node.lead(first=41)
    node.add(0)
    first = node.log()
    node.add(0)
    records = [decode_record(record) for _, _, record in first + node.log()]
    assert [(record.term, record.index) for record in records] == [(TERM, 41), (TERM, 42)]
    assert {batch.catalog for batch in node.batches(0)} == {4}


def test_entries_that_are_committed_together_reach_a_follower_s_site_in_order() -> None:
    """Each exactly once, and without callers; one partition's do not touch another's."""
    node = Member(leads=False)
    node.commit(*[foreign(index) for index in (1, 2, 3)], foreign(1, partition=1))
    assert (node.sent(0), node.sent(1)) == ([1, 2, 3], [1])
    assert node.replicated.run_up_to() == {0: 0, 1: 0}
    node.serve(0)
    assert node.replicated.run_up_to() == {0: 1, 1: 0}
    node.commit(foreign(4), foreign(5))
    while node.serve(0) or node.serve(1):
        pass
    assert [record.index for record in node.applied[0]] == [1, 2, 3, 4, 5]
    assert node.replicated.idle
    node.check_empty()


def test_entries_that_the_state_holds_are_passed_over() -> None:
    """After a start consensus may hand out again what was executed before."""
    node = Member(leads=False)
    node.commit(foreign(1), foreign(2))
    node.commit(foreign(1), foreign(2), foreign(3))
    node.commit(foreign(2))
    assert node.sent() == [1, 2, 3]


def test_a_site_that_comes_back_gets_what_it_lacks() -> None:
    """Committed entries survive their site, wherever they came from."""
    node = Member(leads=False)
    node.commit(foreign(1), foreign(2), foreign(3))
    node.serve(0)
    node.lose_site(0, commits=1)
    node.commit(foreign(4))
    assert node.sent() == []
    node.find_site(0)
    assert node.sent() == [3, 4]


def test_the_block_of_an_entry_is_the_log_s() -> None:
    """What a site has not answered holds the log from the block in which consensus says that it lies."""
    node = Member(leads=False)
    node.replicated.commit(0, [foreign(index)[1:] for index in (1, 2)], {1: 71, 2: 72}.get)
    node.serve(0)
    assert node.sequencer.site_feed.applied_block(0) == 71


def test_an_entry_of_an_earlier_leader_may_follow_a_proposal() -> None:
    """A parted call is released by its skip, which this node proposed: it is run first, and numbers stay as they were given."""
    node = Member(leads=False)
    node.commit(foreign(1))
    node.replicated.lead({0: (TERM, 4), 1: (TERM, 1)}, catalog=4)
    told: list[object] = []
    node.sequencer.intake.add_entries([(0, RecordKind.SKIP, {"index": 2, "position": 0})], told.append)
    skip = node.log()
    assert [index for _, index, _ in skip] == [4]
    node.commit(foreign(2), empty(3), *skip)
    assert node.sent() == [1, 2, 3, 4]
    assert [type(reply) for reply in told] == [CallOutcome]
    while node.serve(0):
        pass
    node.replicated.accept_calls()
    node.add(0)
    assert [index for _, index, _ in node.log()] == [5]


def test_entries_of_an_earlier_leader_and_a_proposal_may_be_committed_apart() -> None:
    """Two parted calls: the first skip releases the first call alone, and the second one still waits."""
    node = Member(leads=False)
    node.replicated.lead({0: (TERM, 4), 1: (TERM, 1)}, catalog=4)
    skips = [(0, RecordKind.SKIP, {"index": index, "position": 0}) for index in (1, 2)]
    node.sequencer.intake.add_entries(skips, lambda _reply: None)
    own = node.log()
    node.commit(foreign(1))
    assert node.sent() == [1]
    node.commit(foreign(2), empty(3), *own)
    assert node.sent() == [1, 2, 3, 4, 5]


def test_another_entry_in_the_place_of_a_proposal_is_refused() -> None:
    """A node that is out of step with consensus must stop, not answer one caller with another's outcome."""
    node = Member()
    node.add(0)
    node.log()
    with pytest.raises(RuntimeError, match="2 is committed before 1"):
        node.commit(foreign(2))


# -- the end of a leadership -------------------------------------------------------------------------------------------


def test_callers_learn_what_is_known_of_their_calls_when_the_node_steps_down() -> None:
    """Committed: answered by the site. Proposed: unknown. Not proposed: refused, and safe to repeat."""
    node = Member(partitions=1)
    committed = node.add(0)
    node.commit(*node.log())
    proposed = node.add(0)
    node.log()
    waiting = node.add(0)
    refusal = NotReady("node 2 leads")
    assert node.replicated.step_down(refusal, "a majority may have it") == 1
    assert not committed.replies
    assert isinstance(reply_of(proposed), UnknownOutcome)
    assert isinstance(reply_of(waiting), NotReady)
    assert node.sent() == [1]
    node.serve(0)
    assert isinstance(reply_of(committed), CallOutcome)
    with pytest.raises(NotReady, match="node 2 leads"):
        node.add(0)
    node.check_empty()


def test_a_node_that_stops_hears_others_until_its_calls_are_committed() -> None:
    """Calls that wait for the log get committed, too; later ones are refused."""
    node = Member()
    proposed = node.add(0)
    entries = node.log()
    waiting, events = node.add(1), list[str]()

    def majority_answers() -> bool:
        events.append("look")
        if len(events) == 2:
            node.commit(*entries)
        elif len(events) == 3:
            node.commit(*node.log())
        with pytest.raises(NotReady, match="is stopping"):
            node.add(0)
        return False

    node.replicated.leave(majority_answers, lambda: events.append("disconnected"))
    assert events == ["look", "look", "look", "disconnected"]
    assert (node.serve(0), node.serve(1)) == (True, True)
    assert isinstance(reply_of(proposed), CallOutcome)
    assert isinstance(reply_of(waiting), CallOutcome)
    node.check_empty()


@pytest.mark.parametrize("hurried", [True, False], ids=["hurried", "no majority"])
def test_what_is_not_committed_when_a_node_has_left_is_unknown(hurried: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more is heard of it: nobody waits for the rest of the stop. What was not proposed is refused."""
    monkeypatch.setattr(replicated_pipelines, "COMMIT_S", 60.0 if hurried else 0.0)
    node, events = Member(), list[int]()
    proposed = node.add(0)
    node.log()
    waiting = node.add(0)
    node.replicated.leave(lambda: hurried, lambda: events.append(len(proposed.replies)))
    assert events == [0], "others are heard until then"
    assert isinstance(reply_of(proposed), UnknownOutcome)
    assert isinstance(reply_of(waiting), NotReady)
    node.check_empty()


def test_calls_on_all_partitions_that_wait_are_refused() -> None:
    """Calls before and after them, too: none was proposed."""
    node = Member()
    calls = [node.add(0), node.add_everywhere(), node.add(1)]
    assert node.replicated.step_down(NotReady("node 2 leads"), "unknown") == 0
    assert [len(call.replies) for call in calls] == [1, 2, 1]
    assert all(isinstance(reply, NotReady) for call in calls for reply in call.replies)
    assert node.take() is None
    node.check_empty()


def test_a_refusal_is_each_caller_s_own() -> None:
    """An exception that several threads raise must not be one object."""
    node = Member()
    calls = [node.add(0), node.add(0)]
    refusal = NotReady("node 2 leads")
    node.replicated.step_down(refusal, "unknown")
    replies = [reply_of(call) for call in calls]
    assert all(isinstance(reply, CallRefused) and str(reply) == "node 2 leads" for reply in replies)
    assert len({id(reply) for reply in [refusal, *replies]}) == 3


def test_a_dropped_proposal_is_run_only_if_consensus_hands_it_out() -> None:
    """The next leader may have it, or another entry in its place; nobody is answered twice."""
    node = Member(partitions=1)
    call = node.add(0)
    (own,) = node.log()
    node.replicated.step_down(NotReady("node 2 leads"), "unknown")
    assert node.replicated.idle
    node.commit(own, foreign(2, term=TERM + 1))
    while node.serve(0):
        pass
    assert [record.index for record in node.applied[0]] == [1, 2]
    assert isinstance(reply_of(call), UnknownOutcome)
    node.check_empty()


def test_another_entry_may_take_the_place_of_a_dropped_proposal() -> None:
    """What this node had proposed is never given to a site."""
    node = Member(partitions=1)
    node.add(0)
    node.log()
    node.replicated.step_down(NotReady("node 2 leads"), "unknown")
    taken = foreign(1, term=TERM + 1)
    node.commit(taken)
    assert list(node.at_site[0]) == [("batch", 1, taken[2])]


def test_a_node_that_leads_again_numbers_from_the_log_s_end() -> None:
    """Nothing of its first leadership is left over."""
    node = Member(partitions=1)
    node.add(0)
    node.log()
    node.replicated.step_down(NotReady("node 2 leads"), "unknown")
    node.commit(foreign(1), foreign(2))
    while node.serve(0):
        pass
    node.lead(first=3)
    call = node.add(0)
    entries = node.log()
    assert [index for _, index, _ in entries] == [3]
    node.commit(*entries)
    while node.serve(0):
        pass
    assert isinstance(reply_of(call), CallOutcome)


def test_calls_are_refused_until_they_are_accepted() -> None:
    """`lead` numbers entries; calls come when the take-over is done."""
    node = Member(leads=False)
    node.replicated.lead(dict.fromkeys(node.at_site, (TERM, 1)), catalog=4)
    with pytest.raises(NotReady):
        node.add(0)
    node.replicated.accept_calls()
    node.add(0)


def test_only_batches_with_callers_here_are_this_node_s_proposals() -> None:
    """A leader may skip those alone: nobody else can have executed them before it."""
    node = Member(partitions=1, leads=False)
    node.commit(foreign(1))
    node.lead(first=2)
    node.add(0)
    node.commit(*node.log())
    assert not node.replicated.proposed(0, 1)
    assert node.replicated.proposed(0, 2)
    assert not node.replicated.proposed(0, 3)
    node.serve(0)
    node.serve(0)
    assert not node.replicated.proposed(0, 2)


# -- no majority takes entries -------------------------------------------------------------------------------------------


def test_suspended_calls_are_refused_and_what_is_logged_is_kept() -> None:
    """Also those that wait, and reads of all partitions; a read of one is served. Then all is done once."""
    node = Member()
    logged = node.add(0)
    entries = node.log()
    waiting, step, everywhere = node.add(0), node.add_everywhere(), node.read_everywhere()[1]
    node.replicated.suspend_calls(NotReady("node 2 is full"))
    assert [type(reply) for call in (waiting, step, everywhere) for reply in call.replies] == [NotReady] * 5
    assert node.replicated.suspended
    assert node.sequencer.site_feed.refusing
    for place in (lambda: node.add(1), node.add_everywhere, node.read_everywhere):
        with pytest.raises(NotReady, match="node 2 is full"):
            place()
    read = node.read_one(0)
    node.serve(0)
    assert isinstance(reply_of(read), CallOutcome)
    assert not logged.replies
    node.commit(*entries)
    node.serve(0)
    assert isinstance(reply_of(logged), CallOutcome)
    node.replicated.suspend_calls(None)
    after = node.add(0)
    node.commit(*node.log())
    node.serve(0)
    assert isinstance(reply_of(after), CallOutcome)
    assert not node.sequencer.site_feed.refusing
    node.check_empty()


def test_who_waits_too_long_for_a_commit_is_answered_once_and_the_call_is_run() -> None:
    """A younger call waits on; nobody hears a second time, whatever becomes of the entry."""
    node = Member()
    old = node.add(0)
    entries = node.log()
    node.time[0] += 10.0
    young = node.add(1)
    entries += node.log()
    assert 10.0 < node.replicated.uncommitted_s < 11.0
    assert [node.replicated.give_up_uncommitted(10.0, "node 2 is full") for _ in range(2)] == [1, 0]
    assert isinstance(reply_of(old), UnknownOutcome)
    assert not young.replies
    node.commit(*entries)
    assert node.replicated.uncommitted_s == 0.0
    assert (node.serve(0), node.serve(1)) == (True, True)
    assert [type(reply) for call in (old, young) for reply in call.replies] == [UnknownOutcome, CallOutcome]
    node.check_empty()


def test_who_was_answered_is_not_counted_when_leadership_is_lost() -> None:
    """What the log of the server says is how many callers heard it."""
    node = Member()
    call = node.add(0)
    node.log()
    assert node.replicated.give_up_uncommitted(0.0, "late") == 1
    assert node.replicated.step_down(NotReady("node 2 leads"), "lost") == 0
    assert len(call.replies) == 1
    node.check_empty()


@pytest.mark.parametrize("again", ["follows", "leads"])
def test_suspension_ends_with_the_leadership(again: str) -> None:
    """What another node refuses, or this one later, has another reason."""
    node = Member()
    node.replicated.suspend_calls(NotReady("node 2 is full"))
    node.replicated.step_down(NotReady("node 2 leads"), "unknown")
    assert not node.replicated.suspended
    if again == "leads":
        node.lead()
        node.add(0)


# -- entries that somebody waits for -------------------------------------------------------------------------------------


@pytest.mark.parametrize("taken", [False, True], ids=["waiting", "proposed"])
def test_control_entries_of_a_lost_leadership_are_unknown(taken: bool) -> None:
    """Once, also if the node fails later; and none of them is proposed afterwards."""
    node = Member()
    told: list[object] = []
    node.sequencer.intake.add_entries([(0, RecordKind.SKIP, {"index": 1, "position": 0})], told.append)
    if taken:
        node.take()
    assert node.replicated.step_down(NotReady("node 2 leads"), "unknown") == 1
    assert node.take() is None
    node.sequencer.failed(RuntimeError("the disk is gone"))
    assert [type(reply) for reply in told] == [UnknownOutcome]


def test_a_node_that_does_not_lead_proposes_no_entries() -> None:
    """A skip that was decided just before the leadership ended must not be written with a term that is over."""
    node = Member(leads=False)
    told: list[object] = []
    entry = (0, RecordKind.SKIP, {"index": 1, "position": 0})
    node.sequencer.intake.add_entries([entry], told.append)
    node.lead()
    node.replicated.step_down(NotReady("node 2 leads"), "unknown")
    node.sequencer.intake.add_entries([entry], told.append)
    assert [type(reply) for reply in told] == [UnknownOutcome, UnknownOutcome]
    assert node.take() is None


def test_who_waits_for_an_entry_that_is_durable_and_not_committed_learns_of_a_failure() -> None:
    """Else a take-over that waits for its skips would keep the node from closing."""
    node = Member()
    told: list[object] = []
    node.sequencer.intake.add_entries([(0, RecordKind.SKIP, {"index": 1, "position": 0})], told.append)
    node.log()
    assert not told
    node.sequencer.failed(RuntimeError("the disk is gone"))
    assert [type(reply) for reply in told] == [UnknownOutcome]


def test_who_waits_for_a_committed_entry_is_not_told_twice() -> None:
    """Its site may still have it when the node fails."""
    node = Member()
    told: list[object] = []
    node.sequencer.intake.add_entries([(0, RecordKind.SKIP, {"index": 1, "position": 0})], told.append)
    node.commit(*node.log())
    node.sequencer.failed(RuntimeError("the disk is gone"))
    assert [type(reply) for reply in told] == [CallOutcome]
