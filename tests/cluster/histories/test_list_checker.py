"""The judge of histories sees every kind of anomaly, names who shows it, and accepts what could have happened."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

import pytest

from tests.cluster.histories.list_checker import check_history, find_anomalies
from tests.cluster.histories.list_history import ListHistory, Operation, Outcome


class Story:
    """A history that is told line by line."""

    def __init__(self) -> None:
        self.history = ListHistory()
        self.by_name: dict[str, Operation] = {}

    def append(self, name: str, value: int, *keys: str) -> Operation:
        made = self.by_name[name] = self.history.append(name, value, *keys)
        return made

    def appended(self, name: str, value: int, *keys: str, lengths: dict[str, int] | None = None) -> None:
        self.history.done(self.append(name, value, *keys), lengths=lengths)

    def saw(self, name: str, **lists: Sequence[int]) -> None:
        made = self.by_name[name] = self.history.read(name, *lists)
        self.history.done(made, lists)

    def told(self) -> str:
        """Kinds and names of what is wrong."""
        found = find_anomalies(self.history.operations)
        return "; ".join(f"{one.kind} {' '.join(each.name for each in one.operations)}" for one in found)


@pytest.fixture
def story() -> Story:
    """Nothing has happened."""
    return Story()


def test_history_that_could_have_happened(story: Story) -> None:
    """Appends that overlap in any order, an unknown one that took effect late, one that never did, a refused one."""
    first = story.append("a", 1, "x")
    story.append("lost in the net", 2, "x")
    story.append("never", 3, "x")
    story.history.refused(story.append("refused", 4, "x"))
    story.appended("all", 5, "x", "y")
    story.saw("r1", x=[5], y=[5])
    story.history.done(first)
    story.saw("r2", x=[5, 1])
    story.saw("end 1", x=[5, 1], y=[5])
    story.saw("end 2", x=[5, 1, 2], y=[5])
    assert story.told() == ""
    check_history(story.history.operations)


def test_lost_append(story: Story) -> None:
    """It was acknowledged, and the last read lacks it; the explanation names both."""
    story.appended("a", 1, "x")
    story.appended("b", 2, "x")
    story.saw("end", x=[1])
    assert story.told() == "lost b end"
    with pytest.raises(AssertionError, match=r"2 was acknowledged, and is not in list x\n    b \(append 2 x"):
        check_history(story.history.operations)


def test_append_that_was_read_and_is_gone(story: Story) -> None:
    """Also when nobody was told that it was done."""
    story.append("unknown", 1, "x")
    story.saw("r", x=[1])
    story.saw("end", x=[])
    assert story.told() == "prefix r end"


def test_append_that_vanishes_between_the_two_rounds_of_final_reads(story: Story) -> None:
    """What the first round saw is there for ever."""
    story.append("unknown", 1, "x")
    story.saw("end 1", x=[1])
    story.saw("end 2", x=[])
    assert story.told() == "prefix end 1 end 2"


def test_append_that_took_effect_twice(story: Story) -> None:
    """A retry was not recognized."""
    story.appended("a", 1, "x")
    story.saw("end", x=[1, 1])
    assert story.told() == "values a end"


def test_append_that_took_effect_twice_for_a_while(story: Story) -> None:
    """A read saw it twice, and the last one does not."""
    story.appended("a", 1, "x")
    story.saw("r", x=[1, 1])
    story.saw("end", x=[1])
    assert story.told().startswith("values a r")


def test_value_of_nobody(story: Story) -> None:
    """Of another list is as bad."""
    story.appended("a", 1, "x")
    story.appended("b", 2, "y")
    story.saw("end", x=[1, 2], y=[2])
    assert story.told() == "values end"


def test_refused_append_that_took_effect(story: Story) -> None:
    """Its client may have done something else instead."""
    story.history.refused(story.append("refused", 1, "x"))
    story.appended("a", 2, "x")
    story.saw("end", x=[1, 2])
    assert story.told() == "values refused end"


def test_read_of_another_order(story: Story) -> None:
    """Two appends overlap, and two reads see them in different orders."""
    one, other = story.append("a", 1, "x"), story.append("b", 2, "x")
    story.saw("r", x=[2, 1])
    story.history.done(one)
    story.history.done(other)
    story.saw("end", x=[1, 2])
    assert story.told() == "prefix r end"


def test_stale_read(story: Story) -> None:
    """It began after an append had been acknowledged, and does not see it."""
    story.appended("a", 1, "x")
    story.appended("b", 2, "x")
    story.saw("stale", x=[1])
    story.saw("end", x=[1, 2])
    assert story.told() == "time b stale"


def test_read_that_goes_back(story: Story) -> None:
    """The append is not acknowledged; but one read has seen it, and a later one does not."""
    story.append("unknown", 1, "x")
    story.saw("r1", x=[1])
    story.saw("r2", x=[])
    story.saw("end", x=[1])
    assert story.told() == "time r1 r2"


def test_read_of_the_future(story: Story) -> None:
    """It ended before the append began."""
    story.saw("early", x=[1])
    story.appended("a", 1, "x")
    story.saw("end", x=[1])
    assert story.told() == "time early a"


def test_append_that_is_ordered_before_an_earlier_one(story: Story) -> None:
    """Nobody read in between: real time alone says it."""
    story.appended("a", 1, "x")
    story.appended("b", 2, "x")
    story.saw("end", x=[2, 1])
    assert story.told() == "time a b"


def test_unknown_append_cannot_take_effect_before_it_began(story: Story) -> None:
    """It is after everything that had ended by then."""
    story.appended("a", 1, "x")
    story.append("unknown", 2, "x")
    story.saw("end", x=[2, 1])
    assert story.told() == "time a unknown"


def test_answer_that_says_another_place(story: Story) -> None:
    """An append's answer is a read, too."""
    one, other = story.append("a", 1, "x"), story.append("b", 2, "x")
    story.history.done(one, lengths={"x": 1})
    story.history.done(other, lengths={"x": 1})
    story.saw("end", x=[1, 2])
    assert story.told() == "values b"


def test_half_an_append_to_all(story: Story) -> None:
    """Also when its outcome is unknown."""
    story.append("all", 1, "x", "y")
    story.saw("end", x=[1], y=[])
    assert story.told() == "whole all end"


def test_acknowledged_append_to_all_that_one_list_lacks(story: Story) -> None:
    """That is a lost append, whatever the other lists have."""
    story.appended("all", 1, "x", "y")
    story.saw("end", x=[1], y=[])
    assert story.told() == "lost all end"


def test_appends_to_all_in_two_orders(story: Story) -> None:
    """They overlap, and each list has both."""
    for name, value in (("one", 1), ("other", 2)):
        story.append(name, value, "x", "y")
    story.saw("end", x=[1, 2], y=[2, 1])
    assert story.told() == "whole one other"


def test_read_of_all_that_sees_half_an_append(story: Story) -> None:
    """The append is whole in the end; but the read saw a moment that was none."""
    story.append("all", 1, "x", "y")
    story.saw("half", x=[1], y=[])
    story.saw("end", x=[1], y=[1])
    assert story.told() == "whole all half"


def test_reads_of_all_that_disagree(story: Story) -> None:
    """Each saw one of two appends to different lists."""
    story.append("a", 1, "x")
    story.append("b", 2, "y")
    story.saw("r1", x=[1], y=[])
    story.saw("r2", x=[], y=[2])
    story.saw("end", x=[1], y=[2])
    assert "whole" in story.told()


def test_time_runs_backwards_between_two_lists(story: Story) -> None:
    """Each list by itself is in order; but an append to all lies between a later operation and an earlier one."""
    story.append("all", 1, "x", "y")
    story.appended("a", 2, "x")
    story.appended("b", 3, "y")
    story.saw("end", x=[1, 2], y=[3, 1])
    assert story.told() == "time a all b"


def test_refusal_is_no_end_that_others_follow(story: Story) -> None:
    """What has no effect has no place."""
    story.history.refused(story.append("refused", 1, "x"))
    story.appended("a", 2, "x")
    story.saw("end", x=[2])
    assert story.told() == ""


def test_history_without_a_last_read_is_not_judged(story: Story) -> None:
    """What was lost could not be seen."""
    story.saw("early", x=[])
    story.appended("a", 1, "x")
    with pytest.raises(ValueError, match=r"list x was not read after"):
        find_anomalies(story.history.operations)
    story.appended("b", 2, "y")
    with pytest.raises(ValueError, match=r"list [xy] was not read after"):
        find_anomalies(story.history.operations)


def test_values_must_be_unique(story: Story) -> None:
    """Else a list does not say which append it holds."""
    for name in "ab":
        story.appended(name, 1, "x")
    story.saw("end", x=[1])
    with pytest.raises(ValueError, match="twice"):
        find_anomalies(story.history.operations)


def test_operation_is_answered_once(story: Story) -> None:
    """A second answer would overwrite what the client knew."""
    story.appended("a", 1, "x")
    with pytest.raises(AssertionError, match="answered twice"):
        story.history.done(story.by_name["a"])


# -- against a search over all orders ------------------------------------------------------------------------------


def _orders(operations: Sequence[Operation]) -> Iterator[tuple[Operation, ...]]:
    """Every order of what took effect, for every choice of what did."""
    sure = [one for one in operations if one.outcome is Outcome.DONE]
    maybe = [one for one in operations if one.outcome is Outcome.UNKNOWN and one.value is not None]
    for count in range(len(maybe) + 1):
        for chosen in itertools.combinations(maybe, count):
            yield from itertools.permutations([*sure, *chosen])


def _agrees(order: Sequence[Operation]) -> bool:
    lists: dict[str, list[int]] = {"x": [], "y": []}
    for at, one in enumerate(order):
        for before in order[:at]:
            if one.outcome is Outcome.DONE and one.returned is not None and one.returned < before.invoked:
                return False
        for key in one.keys:
            if one.value is None:
                if list(one.seen[key]) != lists[key]:
                    return False
            else:
                lists[key].append(one.value)
    return True


def _random_history(rng: random.Random) -> list[Operation]:
    """Four operations and the last reads, mostly as some order would have it, then bent."""
    history, lists = ListHistory(), {"x": list[int](), "y": list[int]()}
    open_ones: list[Operation] = []
    for number in range(1, 5):
        keys = rng.choice([("x",), ("y",), ("x", "y")])
        if rng.random() < 0.6:
            open_ones.append(history.append(f"a{number}", number, *keys))
        else:
            open_ones.append(history.read(f"r{number}", *keys))
        while open_ones and rng.random() < 0.6:
            _finish(history, open_ones.pop(rng.randrange(len(open_ones))), lists, rng)
    for one in open_ones:
        _finish(history, one, lists, rng)
    last = history.read("end", "x", "y")
    if rng.random() < 0.3:
        bent = lists[rng.choice("xy")]
        if len(bent) > 1 and rng.random() < 0.7:
            bent.reverse()
        elif bent:
            bent.pop()
    history.done(last, lists)
    return history.operations


def _finish(history: ListHistory, one: Operation, lists: dict[str, list[int]], rng: random.Random) -> None:
    if one.value is None:
        history.done(one, {key: lists[key][: len(lists[key]) - (rng.random() < 0.2)] for key in one.keys})
        return
    if rng.random() < 0.9:
        for key in one.keys:
            lists[key].insert(len(lists[key]) - (rng.random() < 0.2 and len(lists[key]) > 0), one.value)
    if rng.random() < 0.8:
        history.done(one)


def test_checker_agrees_with_a_search_over_all_orders() -> None:
    """On small random histories, good ones and bad ones."""
    verdicts = {True: 0, False: 0}
    rng = random.Random(7)
    for _ in range(600):
        operations = _random_history(rng)
        possible = any(_agrees(order) for order in _orders(operations))
        found = find_anomalies(operations)
        assert (not found) is possible, "\n".join([*map(str, operations), *map(str, found)])
        verdicts[possible] += 1
    assert min(verdicts.values()) > 100


def test_long_history_is_judged_in_near_linear_time() -> None:
    """10,000 appends: no pair of them is compared that need not be."""
    story = Story()
    for number in range(1, 10_001):
        story.appended(f"a{number}", number, "xy"[number % 2])
        if number % 2500 == 0:
            story.saw(f"r{number}", x=list(range(2, number + 1, 2)), y=list(range(1, number + 1, 2)))
    story.saw("end", x=list(range(2, 10_001, 2)), y=list(range(1, 10_001, 2)))
    assert story.told() == ""
