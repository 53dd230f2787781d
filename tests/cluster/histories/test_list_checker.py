"""The judge of histories sees every kind of anomaly, names who shows it, and accepts what could have happened."""

from __future__ import annotations

import itertools
import random
import re
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


STORIES = [
    # An append that was read, or seen by the first round of final reads, is there for ever, acknowledged or not.
    ("unknown?1x r:x1 end:x", "prefix r end"),
    ("unknown?1x end1:x1 end2:x", "prefix end1 end2"),
    # It took effect twice, for good or for a while; a value that nobody appended to that list; a refused append that took effect.
    ("a+1x end:x11", "values a end"),
    ("a+1x r:x11 end:x1", "values a r; prefix r end"),
    ("a+1x b+2y end:x12,y2", "values end"),
    ("refused!1x a+2x end:x12", "values refused end"),
    ("refused!1x a+2x end:x2", ""),
    # Two appends overlap, and two reads see them in different orders.
    ("a?1x b?2x r:x21 a. b. end:x12", "prefix r end"),
    # A read that began after an append was acknowledged, or after another read had seen it; one that ended before it began.
    ("a+1x b+2x stale:x1 end:x12", "time b stale"),
    ("unknown?1x r1:x1 r2:x end:x1", "time r1 r2"),
    ("early:x1 a+1x end:x1", "time early a"),
    # Real time alone orders appends, of which none takes effect before it began.
    ("a+1x b+2x end:x21", "time a b"),
    ("a+1x unknown?2x end:x21", "time a unknown"),
    # Half an append to all, whatever is known of it; two of them in two orders; reads that saw a moment that was none.
    ("all?1xy end:x1,y", "whole all end"),
    ("all+1xy end:x1,y", "lost all end"),
    ("one?1xy other?2xy end:x12,y21", "whole one other"),
    ("all?1xy half:x1,y end:x1,y1", "whole all half"),
    ("a?1x b?2y r1:x1,y r2:x,y2 end:x1,y2", "whole r2 r1"),
    # Each list by itself is in order; but an append to all lies between a later operation and an earlier one.
    ("all?1xy a+2x b+3y end:x12,y31", "time a all b"),
]


@pytest.mark.parametrize(("told", "wrong"), STORIES)
def test_what_is_wrong_with_a_history(story: Story, told: str, wrong: str) -> None:
    """`a+1x` appends 1 to x and is acknowledged, `a?1x` is not until `a.`, `a!1x` is refused; `r:x12,y` sees 1, 2 and nothing."""
    for word in told.split():
        name, what, rest = re.split(r"([+?!:.])", word)
        if what == ".":
            story.history.done(story.by_name[name])
        elif what == ":":
            story.saw(name, **{seen[0]: list(map(int, seen[1:])) for seen in rest.split(",")})
        else:
            made = story.append(name, int(rest[0]), *rest[1:])
            if what != "?":
                (story.history.done if what == "+" else story.history.refused)(made)
    assert story.told() == wrong


def test_answer_that_says_another_place(story: Story) -> None:
    """An append's answer is a read, too."""
    one, other = story.append("a", 1, "x"), story.append("b", 2, "x")
    story.history.done(one, lengths={"x": 1})
    story.history.done(other, lengths={"x": 1})
    story.saw("end", x=[1, 2])
    assert story.told() == "values b"


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
