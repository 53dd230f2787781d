"""Which life of a node's disk counts: by MEMBER entries, by books of peers, and by what a log shows that nobody has met."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cmdlog.wal.ids import CLUSTER_GROUP
from replay.errors import TwoCopies
from replay.log.evidence import PINNED, BlockRun, GroupEvidence, KnownLife, KnownStart, NodeEvidence, StatedConfiguration
from replay.plan.authority import Use, decide
from replay.plan.directory_lineage import ended_lives

A, B, C = 1, 2, 3
ABC = StatedConfiguration(1, 1, frozenset({A, B, C}))
OLD, NEW = "old-life", "new-life"


def life(incarnation: str, *former: str, place: tuple[int, int] = (2, 9)) -> KnownLife:
    """What a MEMBER entry says."""
    return KnownLife(incarnation, frozenset(former), place)


def directory(
    name: str, node: int, incarnation: str, last: int, *, known: KnownLife | None = None, term: int = 2, base: int = 0
) -> NodeEvidence:
    """A directory whose log ends at that entry; `known`: what it knows of node A's disk."""
    groups = {}
    for group in (0, CLUSTER_GROUP):
        run = BlockRun(1, 9, base, term if base else 0, base, last, term, last)
        groups[group] = GroupEvidence(
            group, term, last, last, term, last, 0, (ABC,), (run,), partitions=1 if group == CLUSTER_GROUP else 0
        )
    lives = {A: known} if known is not None else {}
    return NodeEvidence(name, "c", node, incarnation, groups, lives=lives, met=frozenset({9}))


REPLACED = life(NEW, OLD)


def test_an_old_life_is_named_and_not_counted() -> None:
    """A was replaced; its old directory beside B's would be a majority, and lacks what A's new life and C acknowledged."""
    verdict = decide([directory("old", A, OLD, 7), directory("b", B, "b", 12, known=REPLACED)]).groups[0]
    use, why = verdict.uses["old"]
    assert (verdict.proved, use) == (False, Use.UNUSABLE)
    assert why == (
        "node 1's life old-life is over: the member entry of term 2 at index 9 in b says that another one has taken its place"
    )


def test_the_new_life_counts_beside_the_old_one() -> None:
    """Two directories of one node are no contradiction where it is known which of them is over."""
    old, new = directory("old", A, OLD, 7), directory("new", A, NEW, 20, known=REPLACED, base=9)
    verdict = decide([old, new, directory("b", B, "b", 12)]).groups[0]
    assert (verdict.chosen, verdict.proved) == ("new", True)
    assert verdict.uses["old"][0] is Use.UNUSABLE


def test_two_lives_of_which_nothing_says_which_counts_are_refused() -> None:
    """The same life twice, or two unknown ones."""
    for other in (OLD, NEW):
        with pytest.raises(TwoCopies, match="both of node 1"):
            decide([directory("one", A, OLD, 7), directory("other", A, other, 7), directory("b", B, "b", 7)])


def test_an_old_life_counts_where_no_log_knows_of_its_end() -> None:
    """Then nothing was committed without it: the entry that ends it needs a majority of which a log would be at hand."""
    assert decide([directory("old", A, OLD, 7), directory("b", B, "b", 7, known=life(OLD))]).groups[0].proved


def test_the_newest_entry_counts() -> None:
    """By its term first: an entry of an earlier term at a higher index was replaced."""
    void = directory("c", C, "c", 30, known=life("void", place=(1, 30)))
    assert "a" not in ended_lives([directory("a", A, NEW, 20, known=life(NEW, place=(2, 9))), void])
    assert "a" in ended_lives([directory("a", A, "void", 20), replace(void, lives={A: life(NEW)})])


def test_while_another_life_is_expected_none_is_refused_for_its_name() -> None:
    """A life that nobody calls over may be the one that was meant: the configurations say whether its node votes."""
    assert ended_lives([directory("a", A, OLD, 7), directory("b", B, "b", 7, known=life("", "earlier"))]) == {}


def test_a_directory_that_took_over_files_is_that_life() -> None:
    """An adopted copy has another incarnation, and the log of the one before."""
    adopted = replace(directory("a", A, "adopted", 7), earlier=(OLD,))
    other = directory("b", B, "b", 7, known=life(OLD))
    assert ended_lives([adopted, other]) == {}
    assert "a" in ended_lives([adopted, replace(other, lives={A: REPLACED})])


def test_a_pin_counts_where_no_entry_does() -> None:
    """A crash came before the first entries: the book of peers knows the life that took part."""
    pinned = directory("b", B, "b", 7, known=life(OLD, place=PINNED))
    assert "the book of peers in b names old-life" in ended_lives([directory("a", A, "emptied", 7), pinned])["a"]
    assert "a" not in ended_lives([directory("a", A, NEW, 7, known=REPLACED), pinned])


def test_a_log_as_it_was_made_may_be_an_emptied_disk() -> None:
    """Nobody at hand has met it, and another voter is missing: that one may know another life."""
    made = replace(directory("a", A, NEW, 1, term=1), met=frozenset())
    assert "may be of an emptied disk" in ended_lives([made, directory("b", B, "b", 1, term=1)])["a"]
    assert ended_lives([made, directory("b", B, "b", 1), directory("c", C, "c", 1)]) == {}
    assert ended_lives([replace(made, met=frozenset({B}))]) == {}
    assert ended_lives([made, directory("b", B, "b", 1, known=life(NEW, place=PINNED))]) == {}


@pytest.mark.parametrize("changed", [{"term": 2}, {"vote": A}, {"last_index": 5}])
def test_a_log_that_took_part_is_no_emptied_one(changed: dict[str, Any]) -> None:
    """It was elected, voted, or received entries after the first."""
    made = replace(directory("a", A, NEW, 1, term=1), met=frozenset())
    took_part = replace(made, groups={group: replace(of, **changed) for group, of in made.groups.items()})
    assert ended_lives([took_part]) == {}


MET = KnownStart(OLD, 4, "p4")


@pytest.mark.parametrize(
    ("start", "old"),
    [
        (KnownStart(OLD, 3, "p3"), True),
        (KnownStart(OLD, 4, "p4"), False),
        (KnownStart(OLD, 4, "another"), True),
        (KnownStart(OLD, 4, ""), False),
        (KnownStart(OLD, 5, "p5"), False),
        (KnownStart(OLD, 5, "p5", ("p3", "p4")), False),
        (KnownStart(OLD, 6, "p6", ("another", "p5")), True),
        (KnownStart(OLD, 6, "p6", ("p5",)), False),
        (None, False),
    ],
)
def test_a_directory_whose_last_start_is_not_the_one_that_was_met_is_an_old_copy(start: KnownStart | None, old: bool) -> None:
    """Nothing that A has forgotten is in B's log. The start of another life says nothing of this one."""
    a = replace(directory("a", A, OLD, 2), start=start)
    b = replace(directory("b", B, "b", 4), peer_starts={A: MET, C: KnownStart("c", 9, "p9")})
    assert list(ended_lives([a, b])) == (["a"] if old else [])
    assert decide([a, b]).groups[0].proved is not old
    assert ended_lives([a, replace(b, peer_starts={A: replace(MET, incarnation=NEW)})]) == {}
    assert ended_lives([a, replace(b, peer_starts={})]) == {}


def test_an_old_copy_is_named_with_who_met_what() -> None:
    """For who looks for the directory that is missing."""
    a = replace(directory("a", A, OLD, 2), start=KnownStart(OLD, 3, "p3"))
    assert ended_lives([a, replace(directory("b", B, "b", 4), peer_starts={A: MET})]) == {
        "a": "it is an old copy of node 1's life old-life: its start 3 is not start 4, which b met"
    }
