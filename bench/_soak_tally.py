"""What callers of the soak know of their calls, and how that is compared with what the slots hold.

One rule: every acknowledged call is in its slot once, and nothing else is there but calls whose outcome the client reported as
unknown, each at most once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from bench._soak_app import SQUARE_MODULUS
from cmdlog import Result
from cmdlog.errors import CmdlogError, OutcomeUnknown, ServerFault

UNKNOWN_MAX: Final = 16  # of a slot: every one doubles what it may hold
SLOTS: Final = 64  # of each caller: they lie on all partitions


class Sums(NamedTuple):
    """What a slot holds of a set of calls."""

    calls: int = 0
    numbers: int = 0
    squares: int = 0

    def plus(self, number: int) -> Sums:
        return Sums(self.calls + 1, self.numbers + number, self.squares + number * number % SQUARE_MODULUS)


@dataclass(slots=True)
class Tally:
    """One caller's calls, by what their answers said; for one thread."""

    first_slot: int
    acknowledged_by_slot: dict[int, Sums] = field(default_factory=dict)
    unknown_by_slot: dict[int, list[int]] = field(default_factory=dict)  # their numbers
    errors: Counter[str] = field(default_factory=Counter)  # by code

    def params(self, number: int) -> dict[str, int]:
        return {"slot": self.first_slot + number % SLOTS, "number": number}

    def note(self, number: int, answer: Result[Any] | CmdlogError) -> None:
        """The answer of the call with this number."""
        slot = self.first_slot + number % SLOTS
        if isinstance(answer, Result):
            self.acknowledged_by_slot[slot] = self.acknowledged_by_slot.get(slot, Sums()).plus(number)
            return
        self.errors[answer.code] += 1
        if isinstance(answer, OutcomeUnknown | ServerFault):
            self.unknown_by_slot.setdefault(slot, []).append(number)


def find_miscounts(
    acknowledged: Mapping[int, Sums], unknown: Mapping[int, Sequence[int]], found: Mapping[int, Sums]
) -> dict[int, str]:
    """The slots that do not hold each acknowledged call once, and what is wrong with them."""
    wrong: dict[int, str] = {}
    for slot in sorted({*acknowledged, *unknown, *found}):
        told, numbers = acknowledged.get(slot, Sums()), unknown.get(slot, ())
        if len(numbers) > UNKNOWN_MAX:
            wrong[slot] = f"{len(numbers)} calls have no known outcome: too many to tell which of them it holds"
        elif found.get(slot, Sums()) not in possible_sums(told, numbers):
            beyond = [has - of for has, of in zip(found.get(slot, Sums()), told, strict=True)]
            wrong[slot] = f"{beyond[0]:+,} calls, {beyond[1]:+,} in the sum of numbers, {beyond[2]:+,} in that of squares"
    return wrong


def possible_sums(told: Sums, unknown: Sequence[int]) -> set[Sums]:
    """What a slot may hold: what was acknowledged, and any of the others once."""
    possible = {told}
    for number in unknown:
        possible |= {sums.plus(number) for sums in possible}
    return possible
