"""Whether what clients saw of append-only lists could have happened: strict serializability in O(n log n).

One rule: it believes nobody but the clients. The last read of a list says which appends took effect, and in which order; every
other operation has a *place* in that order: an append its own, a read of n values that between the n-th and the next one.

Then the history is one order of whole operations that agrees with real time exactly when
    values    no list has a value twice, or one that nobody appended to it, or one whose append was refused
    lost      every append that was acknowledged is in the last read
    prefix    every read saw a prefix of the last one
    whole     an append to several lists is in all of them or in none, and they all have such appends in one order; a read of
              several lists saw one moment of that order
    time      no operation began after another one had ended and has a place before it: on its list, or, between lists, on the
              other side of an operation on all of them (a *barrier*)
Pairs are enough: real time is an interval order. Let A end before B begins, B's place be at or before C's, and C end before D
begins. Either A ended before D began, or C ended before B began, which is a pair by itself. So every cycle has one such pair.

A read may share its place with other reads; those are ordered by real time alone.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from tests.cluster.histories.list_history import Operation, Outcome

NEVER: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Anomaly:
    """What cannot have happened. `kind`: values, lost, prefix, whole, time."""

    kind: str
    why: str
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        return "\n    ".join([f"{self.kind}: {self.why}", *map(str, self.operations)])


@dataclass(slots=True)
class _Placed:
    """An operation that took effect: on each of its lists, twice the number of values before it, and 1 more for an append."""

    operation: Operation
    places: dict[str, int]

    @property
    def returned(self) -> int:
        moment = self.operation.returned
        return NEVER if moment is None or self.operation.outcome is not Outcome.DONE else moment


def find_anomalies(operations: Sequence[Operation]) -> list[Anomaly]:
    """Every kind of anomaly that the history has, with the operations that show it; [] when it could have happened.

    Raises: ValueError, when a list that somebody appended to was not read by an operation that began after all appends that
    were answered: what was lost could not be seen.
    """
    final = _last_reads(operations)
    found = [*_check_values(operations, final), *_check_lost(operations, final), *_check_prefixes(operations, final)]
    if found:
        return found  # nothing has a place
    placed = _place(operations, final)
    if found := [*_check_lengths(placed), *_check_whole(placed, final)]:
        return found
    barriers = _order_barriers(placed)
    if isinstance(barriers, Anomaly):
        return [barriers]
    return [*_check_time_of_lists(placed, final), *_check_time_between_lists(placed, barriers)]


def check_history(operations: Sequence[Operation]) -> None:
    """Raises: AssertionError with the explanation, when it could not have happened; ValueError as `find_anomalies`."""
    if found := find_anomalies(operations):
        raise AssertionError("\n".join(map(str, found[:10])))


# -- what took effect --------------------------------------------------------------------------------------------------


def _last_reads(operations: Sequence[Operation]) -> dict[str, Operation]:
    """Of every list the read that began last, which saw it after all that was answered."""
    last: dict[str, Operation] = {}
    ended: dict[str, int] = {}
    for operation in operations:
        for key in operation.keys:
            if operation.value is not None:
                moment = operation.returned if operation.outcome is Outcome.DONE else None
                ended[key] = max(ended.get(key, 0), moment or 0)
            elif operation.outcome is Outcome.DONE and (key not in last or last[key].invoked < operation.invoked):
                last[key] = operation
    for key, moment in ended.items():
        if key not in last or last[key].invoked < moment:
            raise ValueError(f"list {key} was not read after the last append to it was answered")
    return last


def _check_values(operations: Sequence[Operation], final: Mapping[str, Operation]) -> Iterable[Anomaly]:
    appended: dict[tuple[str, int], Operation] = {}
    for operation in operations:
        if operation.value is not None:
            for key in operation.keys:
                if (key, operation.value) in appended:
                    raise ValueError(f"{operation.value} is appended to {key} twice: values must be unique")
                appended[key, operation.value] = operation
    checked: dict[str, tuple[int, ...]] = {}  # nearly every read is a prefix of one that was looked at
    for operation in sorted(_reads(operations), key=lambda one: -max(map(len, one.seen.values()), default=0)):
        for key, seen in operation.seen.items():
            if checked.get(key, ())[: len(seen)] == tuple(seen):
                continue
            checked.setdefault(key, tuple(seen))
            met: set[int] = set()
            for value in seen:
                source = appended.get((key, value))
                if value in met and source is not None:
                    yield Anomaly("values", f"{value} is in list {key} twice", (source, operation))
                elif source is None:
                    yield Anomaly("values", f"nobody appended {value} to list {key}", (operation,))
                elif source.outcome is Outcome.REFUSED:
                    yield Anomaly("values", f"{value} is in list {key}, and its append was refused", (source, operation))
                met.add(value)


def _check_lost(operations: Sequence[Operation], final: Mapping[str, Operation]) -> Iterable[Anomaly]:
    held = {key: set(read.seen[key]) for key, read in final.items()}
    for operation in operations:
        if operation.value is None or operation.outcome is not Outcome.DONE:
            continue
        for key in operation.keys:
            if operation.value not in held[key]:
                why = f"{operation.value} was acknowledged, and is not in list {key}"
                yield Anomaly("lost", why, (operation, final[key]))


def _check_prefixes(operations: Sequence[Operation], final: Mapping[str, Operation]) -> Iterable[Anomaly]:
    for operation in _reads(operations):
        for key, seen in operation.seen.items():
            end = final[key].seen[key]
            if tuple(end[: len(seen)]) == tuple(seen):
                continue
            at = next((at for at, (one, other) in enumerate(zip(seen, end, strict=False)) if one != other), len(end))
            there = end[at] if at < len(end) else "nothing"
            yield Anomaly("prefix", f"at {at} of list {key} is {seen[at]}, and {there} in the last read", (operation, final[key]))


def _reads(operations: Iterable[Operation]) -> list[Operation]:
    return [one for one in operations if one.value is None and one.outcome is Outcome.DONE]


def _place(operations: Sequence[Operation], final: Mapping[str, Operation]) -> list[_Placed]:
    at = {key: {value: place for place, value in enumerate(read.seen[key])} for key, read in final.items()}
    placed = []
    for operation in operations:
        if operation.value is None:
            if operation.outcome is Outcome.DONE:
                placed.append(_Placed(operation, {key: 2 * len(seen) for key, seen in operation.seen.items()}))
            continue
        places = {key: 2 * at[key][operation.value] + 1 for key in operation.keys if operation.value in at.get(key, ())}
        if places:
            placed.append(_Placed(operation, places))
    return placed


# -- whole -------------------------------------------------------------------------------------------------------------


def _check_lengths(placed: Sequence[_Placed]) -> Iterable[Anomaly]:
    for one in placed:
        for key, length in one.operation.lengths.items():
            if one.places[key] != 2 * length - 1:
                why = f"its answer said that it made list {key} {length} long, and it is at {one.places[key] // 2}"
                yield Anomaly("values", why, (one.operation,))


def _check_whole(placed: Sequence[_Placed], final: Mapping[str, Operation]) -> Iterable[Anomaly]:
    for one in placed:
        for key in one.operation.keys:
            if key not in one.places:
                where = "+".join(one.places)
                why = f"{one.operation.value} is in list {where} and not in list {key}"
                yield Anomaly("whole", why, (one.operation, final[key]))


def _order_barriers(placed: Sequence[_Placed]) -> list[_Placed] | Anomaly:
    """Operations on several lists in the one order that all these lists have them in."""
    several = [one for one in placed if len(one.places) > 1]
    if several and len({frozenset(one.places) for one in several}) > 1:
        raise ValueError("operations on several lists are on the same ones")
    keys = sorted(several[0].places) if several else []
    several.sort(key=lambda one: [one.places[key] for key in keys])
    for one, other in pairwise(several):
        for key in keys:
            if one.places[key] > other.places[key]:
                first, second = one.operation.name, other.operation.name
                why = f"{first} is before {second} in list {keys[0]}, and after it in list {key}"
                return Anomaly("whole", why, (one.operation, other.operation))
    return several


# -- time --------------------------------------------------------------------------------------------------------------


def _check_time_of_lists(placed: Sequence[_Placed], final: Mapping[str, Operation]) -> Iterable[Anomaly]:
    for key in final:
        on_list = sorted((one for one in placed if key in one.places), key=lambda one: -one.places[key])
        earliest: _Placed | None = None  # of those with a later place the one that ended first
        waiting: list[_Placed] = []  # with the place that is looked at
        for one in on_list:
            if waiting and waiting[0].places[key] != one.places[key]:
                earliest = min([*waiting, *([earliest] if earliest else [])], key=lambda each: each.returned)
                waiting = []
            waiting.append(one)
            if earliest is not None and earliest.returned < one.operation.invoked:
                why = f"{one.operation.name} began after {earliest.operation.name} had ended, and is before it in list {key}"
                yield Anomaly("time", why, (earliest.operation, one.operation))
                break


def _check_time_between_lists(placed: Sequence[_Placed], barriers: Sequence[_Placed]) -> Iterable[Anomaly]:
    """Operations on one list each, with a barrier between them."""
    if not barriers:
        return
    columns = {key: [barrier.places[key] for barrier in barriers] for key in barriers[0].places}
    singles = [one for one in placed if len(one.places) == 1]
    alone = [(one, key, place) for one in singles for key, place in one.places.items() if key in columns]
    earliest: list[_Placed | None] = [None] * (len(barriers) + 1)  # by number of barriers before: who ended first
    for one, key, place in alone:
        before = bisect_left(columns[key], place)
        kept = earliest[before]
        if kept is None or one.returned < kept.returned:
            earliest[before] = one
    for at in range(len(barriers) - 1, -1, -1):
        here, later = earliest[at], earliest[at + 1]
        if later is not None and (here is None or later.returned < here.returned):
            earliest[at] = later
    for one, key, place in alone:
        not_after = bisect_right(columns[key], place)  # the barriers from here on are after it
        later = earliest[not_after + 1] if not_after < len(barriers) else None
        if later is not None and later.returned < one.operation.invoked:
            between = barriers[not_after].operation
            why = f"{one.operation.name} began after {later.operation.name} had ended, and {between.name} is between them"
            yield Anomaly("time", why, (later.operation, between, one.operation))
            return
