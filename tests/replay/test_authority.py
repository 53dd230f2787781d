"""Authority on plain values: every rule by an example, the contract's own ones first."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from cmdlog.wal.fault_log import FaultRecord, make_record
from cmdlog.wal.format.cluster_record import FaultSet
from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import ConflictingCommits, ForeignDirectory, ForkedFaultLogs, NoLogs, TwoCopies
from replay.log.evidence import BlockRun, DirectoryFault, GroupEvidence, NodeEvidence, SnapshotEvidence, StatedConfiguration
from replay.plan.authority import GroupVerdict, Use, decide

CLUSTER = b"cluster-number-1"
A, B, C, D, E = 1, 2, 3, 4, 5


def conf(
    index: int, *voters: int, term: int = 1, outgoing: Iterable[int] = (), learners: Iterable[int] = ()
) -> StatedConfiguration:
    """A configuration entry."""
    return StatedConfiguration(index, term, frozenset(voters), frozenset(outgoing), frozenset(learners))


ABC = conf(1, A, B, C)


def log(
    last: int, commit: int, *configurations: StatedConfiguration, term: int = 1, seen: int = 0, base: int = 0,
    vote: int | None = None, end_known: bool = True, unseen: int = 0, checksum: int = 0, group: int = 0,
) -> GroupEvidence:  # fmt: skip
    """A log that ends at (term, last); `seen` is the highest term that its node knows."""
    run = BlockRun(1, 9, base, 1 if base else 0, base, last, term, checksum or last)
    return GroupEvidence(
        group, max(seen, term), commit, last, term, checksum or last, 0, configurations or (ABC,), (run,),
        vote=vote, end_known=end_known, unseen=unseen, partitions=1 if group == CLUSTER_GROUP else 0,
    )  # fmt: skip


def node(number: int, *logs: GroupEvidence, faults: Sequence[FaultRecord] = (), cluster: str = "c") -> NodeEvidence:
    """A directory called by its node's letter."""
    of = {each.group: each for each in logs}
    met = frozenset({A, B, C, D, E} - {number})
    return NodeEvidence("?ABCDE"[number], cluster, number, f"life-{number}", of, tuple(faults), met=met)


def chain(*sets: set[int], authors: Sequence[int] = (), after: Sequence[FaultRecord] = ()) -> list[FaultRecord]:
    """Fault records with these sets behind others; each is carried by a demotion unless its author is in it."""
    records = list(after)
    for number, failed in enumerate(sets):
        author = authors[number] if authors else next(n for n in (1, 2, 3, 4, 5) if n not in failed)
        demotions = () if author in failed else ((0, len(records), 1),)
        before = records[-1] if records else None
        records.append(make_record(CLUSTER, before, failed=failed, epoch=0, term=1, author=author, demotions=demotions))
    return records


def judge(*nodes: NodeEvidence) -> GroupVerdict:
    """What is decided for partition 0, whatever the order of the directories."""
    of = decide(nodes).groups[0]
    assert decide(nodes[::-1]).groups[0] == of
    return of


def use_of(verdict: GroupVerdict, directory: str) -> Use:
    """How the directory's log is used."""
    return verdict.uses[directory][0]


# -- the contract's examples -----------------------------------------------------------------------------------------------------


def test_failed_node_keeps_its_word_until_its_demotion_is_known_committed() -> None:
    """x (index 5) is on A and B; B is declared failed while C lags; A's disk dies. A fault log discards nobody: B has x."""
    of = judge(node(B, log(5, 4)), node(C, log(3, 3), faults=chain({B})))
    assert (of.chosen, of.proved, of.last_index) == ("B", True, 5)
    assert of.copies == ("B", "C")


def test_committed_demotion_discards_the_failed_node_and_its_holder_has_the_data() -> None:
    """The same with the demotion committed: that needed A and C, so C holds x, and B's longer tail of an old term counts for
    nothing."""
    demoted = conf(6, A, C, learners=[B], term=2)
    of = judge(node(B, log(9, 4)), node(C, log(6, 6, demoted, term=2), faults=chain({B})))
    assert (of.chosen, of.proved) == ("C", True)
    assert use_of(of, "B") is Use.DISCARDED


def test_two_nodes_that_call_each_other_invalid() -> None:
    """A and C log that B failed; B comes back; A fails; everything stops. A says B is invalid, B says A is: B and C are right."""
    first = chain({B})
    later = chain({B}, {A, B}, {A}, authors=[B, C, C], after=first)
    without_b, without_a = conf(6, A, C, learners=[B], term=2), conf(20, B, C, learners=[A], term=4)
    a = node(A, log(9, 8, without_b, term=2), faults=first)
    b, c = (node(n, log(25, 24, without_a, term=4), faults=later) for n in (B, C))
    for given in ((a, b, c), (b, c), (a, c), (a, b)):
        of = judge(*given)
        assert of.chosen in {"B", "C"}
        assert of.proved, of.why
    verdict = decide([a, b, c])
    assert (verdict.sequence, verdict.failed, verdict.lineage) == (4, frozenset({A}), tuple(later))
    assert use_of(verdict.groups[0], "A") is Use.DISCARDED
    alone = judge(a)
    assert (alone.chosen, alone.proved) == ("A", True)  # nothing at hand knows better: A was one of two voters


def test_two_generations_of_failure_that_do_not_overlap() -> None:
    """Of five, D and E failed and came back; then A and B failed: what A and B remember decides nothing."""
    old = chain({D}, {D, E})
    new = chain({D, E}, {E}, set(), {A}, {A, B}, authors=[D, C, C, C, C], after=old)
    back = conf(40, C, D, E, learners=[A, B], term=5)
    was = conf(9, A, B, C, learners=[D, E], term=2)
    olds = [node(n, log(30, 28, was, term=3), faults=old) for n in (A, B)]
    news = [node(n, log(50, 48, back, term=5), faults=new) for n in (C, D, E)]
    for given in ((*olds, *news), (*olds, *news[:2]), news[1:]):
        of = judge(*given)
        assert of.proved, of.why
        assert of.chosen in {"C", "D", "E"}
    of = judge(*olds, news[0])
    assert (of.chosen, of.proved) == ("C", False)
    assert "2 voters of {3, 4, 5} in configuration 40 have to count" in of.why


# -- which logs count ------------------------------------------------------------------------------------------------------------


def test_rejoining_node_does_not_count() -> None:
    """It marked itself and is half filled; with A gone nothing proves C alone."""
    back = node(B, log(3, 3, term=2), faults=chain({B}, authors=[B]))
    of = judge(back, node(C, log(5, 5, term=2)))
    assert (of.chosen, of.proved, use_of(of, "B")) == ("C", False, Use.UNUSABLE)


def test_mark_that_nobody_took_over_is_no_fork() -> None:
    """B marked itself and died before it told anybody; the others went on to another record with that number."""
    first = chain({D})
    back = node(B, log(3, 3), faults=chain({B, D}, authors=[B], after=first))
    verdict = decide([node(A, log(5, 5), faults=chain(set(), after=first)), back, node(C, log(5, 5), faults=first)])
    assert (verdict.sequence, verdict.failed) == (2, frozenset())
    assert verdict.groups[0].proved


def test_emptied_disk_does_not_count() -> None:
    """A log without a configuration of the group, or without the group, is no voter at hand."""
    for empty in (node(B), node(B, replace(log(0, 0), configurations=(), runs=(), last_term=0))):
        of = judge(empty, node(C, log(5, 5)))
        assert (of.chosen, of.proved, use_of(of, "B")) == ("C", False, Use.UNUSABLE)


def test_learner_and_stranger_have_no_word() -> None:
    """D learns, E is in no configuration: neither makes a majority, and D's longer log is not preferred where others prove."""
    listed = conf(2, A, B, C, learners=[D])
    d, e = node(D, log(9, 5, listed)), node(E, log(3, 3, listed))
    of = judge(node(A, log(6, 5, listed)), node(B, log(7, 5, listed)), d, e)
    assert (of.chosen, of.proved, use_of(of, "D"), use_of(of, "E")) == ("B", True, Use.DISCARDED, Use.DISCARDED)
    of = judge(node(A, log(6, 5, listed)), d, e)
    assert (of.chosen, of.proved) == ("D", False)  # nothing is proved, so what holds most is taken


def test_node_that_others_discarded_is_taken_when_nobody_else_is_left() -> None:
    """B was demoted in this partition; A and C are gone but for C's emptied directory, which still names the demotion."""
    of = judge(node(B, log(9, 8, conf(6, A, C, learners=[B]))), node(C))
    assert (of.chosen, of.proved) == ("B", False)
    assert "missing {1, 3}" in of.why


def test_log_whose_end_cannot_be_read_does_not_count() -> None:
    """It is the best of what is left when nothing is proved, and serves pieces when something is."""
    bad = node(B, log(9, 5, end_known=False))
    assert judge(bad, node(C, log(5, 5))).proved is False
    of = judge(bad, node(A, log(7, 5)), node(C, log(5, 5)))
    assert (of.chosen, of.proved, of.copies) == ("A", True, ("A", "B", "C"))


def test_configuration_may_stand_where_a_log_cannot_be_read() -> None:
    """B's end is known, but entries up to 7 are damaged: it counts where others know all that was committed so far."""
    blind = node(B, log(9, 5, unseen=7))
    of = judge(blind, node(C, log(5, 5)))
    assert (of.chosen, of.proved) == ("B", False)  # what holds most, but nothing is proved
    of = judge(blind, node(A, log(8, 7)))
    assert (of.chosen, of.proved) == ("B", True)
    grown = conf(6, A, B, C, D, E)
    told = judge(node(A, log(9, 5, ABC, grown)), node(B, log(9, 8, unseen=7)), node(C, log(9, 5, ABC, grown)))
    assert "configuration 6" in told.why  # B's mark does not make it void: B may hold it where it cannot be read


def test_node_with_an_unreadable_fault_log_does_not_count() -> None:
    """Whether it was being filled anew, nobody knows."""
    silent = replace(node(B, log(9, 5)), fault_problem="both copies are bad")
    assert judge(silent, node(C, log(5, 5))).proved is False
    assert judge(silent, node(C, log(5, 5)), node(A, log(5, 5))).proved is True


@pytest.mark.parametrize(
    ("known", "is_old"),
    [(0, True), (1, True), (2, True), (3, True), (4, False)],
)
def test_old_copy_is_found_by_what_it_has_forgotten(known: int, *, is_old: bool) -> None:
    """B failed (2), marked itself (3) and came back (4). A copy of before knows fewer records than B wrote or took over."""
    lineage = chain({D}, {B, D}, {B, D}, {D}, authors=[A, A, B, A])
    of = judge(node(A, log(9, 9), faults=lineage), node(B, log(5, 5), faults=lineage[:known]))
    assert (use_of(of, "B") is Use.UNUSABLE) == is_old
    assert of.proved == (not is_old)


def test_old_copy_is_found_by_what_it_wrote_about_itself() -> None:
    """B marked itself, so it had that mark before anybody."""
    lineage = chain({D}, {B, D}, authors=[A, B])
    of = judge(node(B, log(5, 5), faults=lineage[:1]), node(C, log(5, 5), faults=lineage))
    assert (of.proved, use_of(of, "B")) == (False, Use.UNUSABLE)


@pytest.mark.parametrize(("author", "is_old"), [(A, False), (C, True)])
def test_a_failure_set_in_the_log_counts_as_known(author: int, *, is_old: bool) -> None:
    """B votes again because its log has the set that lists it; it died before its fault log had it. Another entry under the same
    number is void, and shows nothing."""
    lineage = chain({B}, set(), authors=[A, A])
    stated = FaultSet(1, (B,), 0, 1, author, lineage[0].demotions)
    back = replace(node(B, log(5, 5)), logged_faults=stated)
    of = judge(back, node(C, log(5, 5), faults=lineage))
    assert (use_of(of, "B") is Use.UNUSABLE) == is_old
    assert of.proved == (not is_old)


def test_the_author_of_a_failure_set_may_lack_it() -> None:
    """B proposed that D has failed, the cluster group committed it, and B died before it wrote it: B forgot nothing."""
    lineage = chain({D}, authors=[B])
    for known in ((), lineage):
        assert judge(node(B, log(5, 5), faults=known), node(C, log(5, 5), faults=lineage)).proved


def test_old_copy_is_found_by_a_vote_that_it_has_forgotten() -> None:
    """C voted for B in term 7, so B knew term 7 before it asked; a directory that knows term 4 is an old copy."""
    c = node(C, log(5, 5, seen=7, vote=B))
    assert judge(node(B, log(5, 5, seen=7)), c).proved
    of = judge(node(B, log(5, 5, seen=4)), c)
    assert (of.proved, use_of(of, "B")) == (False, Use.UNUSABLE)


def test_old_copies_are_found_when_too_many_lack_what_is_committed() -> None:
    """A knows 20 entries to be committed, so B or C holds them; if both lack them, one of them has forgotten: neither counts."""
    of = judge(node(A, log(20, 20)), node(B, log(10, 10)), node(C, log(10, 10)))
    assert (of.chosen, of.proved, use_of(of, "B")) == ("A", False, Use.UNUSABLE)
    assert judge(node(A, log(20, 20)), node(B, log(20, 10)), node(C, log(10, 10))).proved


def test_old_copies_are_found_by_a_term_that_too_many_have_forgotten() -> None:
    """D's log holds an entry of term 4, whose leader a majority of A, B and C voted for: B and C know term 3 at most."""
    listed = conf(2, A, B, C, learners=[D])
    d = node(D, log(6, 5, listed, term=4))
    of = judge(node(B, log(9, 5, listed, term=3)), node(C, log(9, 5, listed, term=3)), d)
    assert (of.chosen, of.proved, use_of(of, "B"), use_of(of, "C")) == ("D", False, Use.UNUSABLE, Use.UNUSABLE)
    assert "not know term 4" in of.uses["B"][1]
    assert judge(node(B, log(9, 5, listed, term=3, seen=4)), node(C, log(9, 5, listed, term=3)), d).proved


def test_old_copy_is_one_in_every_group() -> None:
    """Partition 0 shows that B or C has forgotten entry 20; in partition 1 they look complete, and prove nothing all the same."""
    one = [log(5, 5, group=1) for _ in range(3)]
    verdict = decide([node(A, log(20, 20), one[0]), node(B, log(10, 10), one[1]), node(C, log(10, 10), one[2])])
    for group in (0, 1):
        of = verdict.groups[group]
        assert (of.chosen, of.proved) == ("A", False)
        assert {use_of(of, "B"), use_of(of, "C")} == {Use.UNUSABLE}
    short = log(3, 3, group=1)
    verdict = decide([node(A, log(20, 20)), node(B, log(10, 10), short), node(C, log(10, 10), short), node(D, one[0])])
    assert (verdict.groups[1].chosen, verdict.groups[1].proved) == ("D", False)


def test_committed_entry_that_no_voter_at_hand_holds_is_not_proved() -> None:
    """A learner's commit mark, or a snapshot, shows that the voters at hand lack acknowledged entries."""
    listed = conf(2, A, B, C, learners=[D])
    short = [node(n, log(5, 5, listed)) for n in (A, B)]
    of = judge(*short, node(D, log(9, 8, listed)))
    assert (of.chosen, of.proved) == ("D", False)
    shown = replace(short[1], snapshots=(SnapshotEvidence("s", 0, 8, 1, 8),))
    assert judge(short[0], shown).proved is False
    grown = conf(5, A, B, C, D)
    changing = node(A, log(6, 4, listed, grown)), replace(node(B, log(6, 4, listed, grown)), snapshots=shown.snapshots)
    assert "entry 8 is known to be committed" in judge(*changing).why
    assert judge(short[0], replace(shown, snapshots=(SnapshotEvidence("s", 0, 8, problem="torn"),))).proved is True


# -- which log wins --------------------------------------------------------------------------------------------------------------


def test_best_end_wins_as_in_an_election() -> None:
    """The later term, then the longer log, then the one that knows more to be committed, then the lower node."""
    assert judge(node(A, log(90, 3, term=2)), node(B, log(5, 3, term=3)), node(C, log(4, 3, term=3))).chosen == "B"
    assert judge(node(A, log(5, 3)), node(B, log(5, 4)), node(C, log(4, 3))).chosen == "B"
    of = judge(node(A, log(5, 3)), node(B, log(5, 3)), node(C, log(4, 3)))
    assert (of.chosen, use_of(of, "B"), of.commit) == ("A", Use.AGREES, 3)


def test_later_configuration_of_any_log_must_be_met() -> None:
    """An uncommitted configuration at hand may have been committed by others: its majority is needed too."""
    grown = conf(6, A, B, C, D, E, term=2)
    of = judge(node(A, log(5, 5)), node(B, log(6, 5, ABC, grown, term=2)))
    assert of.proved is False
    assert "configuration 6" in of.why
    assert judge(node(A, log(5, 5)), node(B, log(6, 5, ABC, grown, term=2)), node(D, log(6, 5, ABC, grown, term=2))).proved


def test_voter_of_a_later_configuration_is_not_discarded() -> None:
    """What D and E acknowledged under it may be in their logs alone."""
    grown = conf(6, A, B, C, D, E, term=2)
    d, e = (node(n, log(8, 5, ABC, grown, term=2)) for n in (D, E))
    of = judge(node(A, log(5, 5)), node(B, log(5, 5)), d, e)
    assert (of.chosen, of.proved) == ("D", True)


def test_void_configuration_asks_for_nothing() -> None:
    """A deposed leader's configuration where another entry is known committed was never in force."""
    void = conf(6, A, D, E, term=2)
    of = judge(node(A, log(6, 5, ABC, void, term=2)), node(B, log(9, 8, term=3)), node(C, log(9, 8, term=3)))
    assert (of.proved, of.chosen) == (True, "B")


@pytest.mark.parametrize(
    ("given", "proved"), [((A, B, D), False), ((C, D, E), False), ((A, C, D), True), ((A, B, D, E), True), ((D, E), False)]
)
def test_joint_configuration_needs_both_halves(given: Sequence[int], *, proved: bool) -> None:
    """{1, 2, 3} is becoming {3, 4, 5}."""
    joint = conf(6, C, D, E, outgoing=[A, B, C])
    assert judge(*(node(n, log(8, 6, joint)) for n in given)).proved is proved


@pytest.mark.parametrize(
    ("voters", "given", "proved"),
    [
        ([A], [A], True), ([A, B], [B], True), ([A, B, C], [A], False), ([A, B, C], [A, C], True), ([A, B, C, D], [A, B], True),
        ([A, B, C, D], [A], False), ([A, B, C, D, E], [A, B], False), ([A, B, C, D, E], [A, B, E], True),
    ],
)  # fmt: skip
def test_majorities_are_met_by_all_but_a_minority(voters: Sequence[int], given: Sequence[int], *, proved: bool) -> None:
    """Growing and shrinking clusters: as many voters may be missing as still leave one of every majority."""
    assert judge(*(node(n, log(8, 6, conf(1, *voters))) for n in given)).proved is proved


def test_half_filled_log_is_the_last_resort_only_where_something_leads_to_it() -> None:
    """Nothing is proved; B holds more, but only from entry 40 on, and no snapshot or log at hand reaches there."""
    half = node(B, log(60, 50, term=2, base=40), faults=chain({B}, authors=[B]))
    assert judge(half, node(C, log(5, 5))).chosen == "C"
    assert judge(half, node(C, log(45, 5))).chosen == "B"
    assert judge(replace(half, snapshots=(SnapshotEvidence("s", 0, 40, 1, 40),)), node(C, log(5, 5))).chosen == "B"


def test_group_without_configurations_takes_the_cluster_groups() -> None:
    """Logs that state voters once, for all groups."""
    plain = replace(log(5, 5), configurations=())
    cluster = log(3, 3, group=CLUSTER_GROUP)
    of = judge(node(A, plain, cluster), node(B, replace(plain, last_index=4, last_checksum=4), cluster))
    assert (of.chosen, of.proved) == ("A", True)
    assert judge(node(A, plain, replace(cluster, configurations=()))).proved is False


def test_partition_that_no_log_holds_is_named() -> None:
    """The cluster group says that there are two."""
    verdict = decide([node(A, replace(log(3, 3, group=CLUSTER_GROUP), partitions=2), log(5, 5))])
    assert sorted(verdict.groups) == [0, 1, CLUSTER_GROUP]
    assert (verdict.groups[1].proved, verdict.groups[1].last_index) == (False, 0)


# -- refusals --------------------------------------------------------------------------------------------------------------------


def test_refused_directories_are_told_and_the_rest_is_judged() -> None:
    """One is of a newer format; two of three suffice."""
    newer = NodeEvidence("X", "", 0, "", refused=DirectoryFault("newer"), exit_code=11)
    verdict = decide([node(A, log(5, 5)), newer, node(B, log(5, 5))])
    assert (verdict.refused, verdict.groups[0].proved) == ((("X", "newer"),), True)
    with pytest.raises(NoLogs, match="X: newer") as refused:
        decide([newer])
    assert refused.value.exit_code == 11
    with pytest.raises(NoLogs):
        decide([])


def test_foreign_directory_and_two_copies_are_refused_naming_both() -> None:
    """Another cluster's id; the same node twice."""
    with pytest.raises(ForeignDirectory, match="A is of cluster c, B of cluster d") as refused:
        decide([node(A, log(5, 5)), node(B, log(5, 5), cluster="d")])
    assert refused.value.exit_code == 11
    with pytest.raises(TwoCopies, match="A and B are both of node 1"):
        decide([node(A, log(5, 5)), replace(node(B, log(5, 5)), node_id=A)])


COMMON = chain({B})
OURS, THEIRS = chain({C}, after=COMMON), chain({D}, {D, E}, after=COMMON)


@pytest.mark.parametrize(("ours", "theirs"), [(OURS, THEIRS), (OURS[1:], THEIRS[1:]), (OURS, THEIRS[2:])])
def test_forked_fault_logs_are_refused_naming_both(ours: list[FaultRecord], theirs: list[FaultRecord]) -> None:
    """At equal numbers, and where only the record behind the fork is at hand."""
    number = 2 if len(theirs) > 1 else 3
    with pytest.raises(ForkedFaultLogs, match=f"A holds fault record 2 .*, B holds fault record {number} ") as refused:
        decide([node(A, log(5, 5), faults=ours), node(B, log(5, 5), faults=theirs)])
    assert (refused.value.one, refused.value.other[:2]) == (("A", 2, OURS[1].checksum), ("B", number))


def test_logs_that_know_different_entries_committed_are_refused() -> None:
    """By their ends, by snapshots, by configurations; with the loss accepted the better end wins, not proved."""
    one = node(A, log(5, 5, checksum=77))
    with pytest.raises(ConflictingCommits, match="entry 5"):
        decide([one, node(B, log(5, 5, checksum=78))])
    with pytest.raises(ConflictingCommits, match="entry 5"):
        decide([one, replace(node(B, log(9, 9)), snapshots=(SnapshotEvidence("s", 0, 5, 2, 5),))])
    with pytest.raises(ConflictingCommits, match="index 4"):
        decide([node(A, log(9, 9, conf(4, A, B))), node(B, log(8, 8, conf(3, A, B, C)))])
    accepted = decide([one, node(B, log(5, 5, checksum=78, term=2))], accept_data_loss=True).groups[0]
    assert (accepted.chosen, accepted.proved) == ("B", False)
