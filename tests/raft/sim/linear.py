"""Whether what clients saw of one register could have happened one after the other (Wing and Gong, 1993, with Lowe's memory).

One rule: it knows nothing of logs, indexes or nodes, only when each operation began and ended and what was written or seen. The
clients judge by the order of the log while the history is made, which is fast and names the place, but believes the log; this
judge believes nobody, and both must agree.

Operations take effect at one moment between beginning and end. One without an end may have taken effect at any time, or never.
Values are unique, so a state is known by what is done and the last value written; each state is looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

STATES_MAX: Final = 200_000  # with a handful of clients a history needs some hundreds

Value = tuple[int, int]
"""(client, number) of a write; numbers begin with 1."""

UNWRITTEN: Final[Value] = (0, 0)


@dataclass(frozen=True, slots=True)
class Operation:
    """One write or read of a register. Moments are all different."""

    began: int
    ended: int | None  # None: no answer came
    write: bool
    value: Value  # written, or seen; of an unanswered read it means nothing


def linearizable(history: Sequence[Operation]) -> bool:
    """Whether there is an order of the operations that agrees with real time and in which every read sees the last write.

    Raises: AssertionError when more than STATES_MAX states would have to be looked at.
    """
    operations = sorted((each for each in history if each.write or each.ended is not None), key=lambda each: each.began)
    wanted = sum(1 << place for place, each in enumerate(operations) if each.ended is not None)
    seen: set[tuple[int, Value]] = set()
    stack = [(0, UNWRITTEN)]
    while stack:
        state = stack.pop()
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > STATES_MAX:
            raise AssertionError(f"more than {STATES_MAX} states for {len(operations)} operations")
        done, value = state
        if done & wanted == wanted:
            return True
        stack += _next_states(operations, done, value)
    return False


def _next_states(operations: Sequence[Operation], done: int, value: Value) -> list[tuple[int, Value]]:
    """What can follow: any operation that began before every other one that is not done has ended."""
    following: list[tuple[int, Value]] = []
    first_end: float = float("inf")
    place = (~done & (done + 1)).bit_length() - 1  # the first that is not done
    while place < len(operations) and operations[place].began < first_end:
        if not done >> place & 1:
            each = operations[place]
            if each.ended is not None:
                first_end = min(first_end, each.ended)
            if each.write:
                following.append((done | 1 << place, each.value))
            elif each.value == value:
                return [(done | 1 << place, value)]  # a read that fits changes nothing: it may as well come first
        place += 1
    return following


def until(history: Sequence[Operation], count: int) -> list[Operation]:
    """The history up to the beginning of the operation behind the first `count`. What had no answer by then is open: a prefix
    of a linearizable history is one."""
    operations = sorted(history, key=lambda each: each.began)
    if len(operations) <= count:
        return operations
    cut = operations[count].began
    return [
        each if each.ended is not None and each.ended < cut else Operation(each.began, None, each.write, each.value)
        for each in operations[:count]
    ]
