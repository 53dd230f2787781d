"""Changed keys: nothing that changed since a cut is missing, and what is held is bounded."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from procedures.idempotency.known_outcome import key_fingerprint
from procedures.storage import changed_keys as module
from procedures.storage.changed_keys import FREED_PER_BATCH, Changes, Part, estimate_keys
from procedures.storage.state import Position
from tests.procedures.sites import Site, counters


def at(index: int) -> Position:
    """A position."""
    return Position(index, 1, 7, index << 21)


def keys_of(parts: list[Part] | None, table: str) -> set[object]:
    """The union of a table's keys."""
    assert parts is not None
    return {key for part in parts for key in part.get(table, ())}


def rows(*keys: object) -> dict[object, None]:
    """Touched rows, which were not there before."""
    return dict.fromkeys(keys)


def test_nothing_is_gathered_before_the_first_cut() -> None:
    """And what changed since it is not known."""
    changes = Changes()
    changes.add_rows("t", rows(1))
    assert not changes.gathering
    assert changes.since(at(0)) is None


def test_changes_since_a_cut_are_those_of_all_intervals_behind_it() -> None:
    """Of each of the cuts that are kept, and of no other position."""
    changes = Changes()
    for index, key in ((1, "a"), (2, "b"), (3, "c")):
        changes.cut(at(index), keep=range(9))
        changes.add_rows("t", rows(key))
    assert keys_of(changes.since(at(1)), "t") == {"a", "b", "c"}
    assert keys_of(changes.since(at(3)), "t") == {"c"}
    assert changes.since(at(4)) is None
    assert changes.since(Position(2, 2, 7, 2 << 21)) is None, "another term is another state"


def test_cut_that_nobody_needs_joins_the_interval_before_it() -> None:
    """What changed since an older cut still holds all; the oldest one is dropped with its keys."""
    changes = Changes()
    for index, key in ((1, "a"), (2, "b"), (3, "c")):
        changes.cut(at(index), keep=range(9))
        changes.add_rows("t", rows(key))
    changes.cut(at(4), keep=(2,))
    assert changes.since(at(1)) is None
    assert changes.since(at(3)) is None
    assert keys_of(changes.since(at(2)), "t") == {"b", "c"}
    assert keys_of(changes.since(at(4)), "t") == set()


def test_cut_at_the_same_position_replaces_the_one_before() -> None:
    """An idle partition is cut again and again, and holds one interval."""
    changes = Changes()
    changes.cut(at(1), keep=(1,))
    changes.add_rows("t", rows("a"))
    for _ in range(3):
        changes.cut(at(2), keep=(1, 2))
    assert keys_of(changes.since(at(1)), "t") == {"a"}
    assert keys_of(changes.since(at(2)), "t") == set()


def test_too_many_keys_end_the_gathering_until_the_next_cut() -> None:
    """Memory is bounded; a delta of that many rows would not pay anyway."""
    changes = Changes(keys_max=10)
    changes.cut(at(1), keep=())
    changes.add_rows("t", rows(*range(6)))
    changes.add_rows("u", rows(*range(4)))
    assert changes.keys == 10
    changes.add_rows("u", rows(*range(5)))
    assert not changes.gathering
    assert changes.keys == 0
    assert changes.since(at(1)) is None
    changes.cut(at(2), keep=(1,))
    changes.add_rows("t", rows(1))
    assert keys_of(changes.since(at(2)), "t") == {1}


def test_large_set_is_followed_by_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every key is held once, and no set is larger than its most by more than a batch."""
    monkeypatch.setattr(module, "SET_KEYS_MAX", 10)
    chance, changes, expected = random.Random(1), Changes(), set()
    changes.cut(at(1), keep=())
    for _ in range(50):
        some = [chance.randrange(60) for _ in range(4)]
        changes.add_rows("t", rows(*some))
        changes.add_rows("u", rows(1))
        expected |= set(some)
    parts = changes.since(at(1))
    assert keys_of(parts, "t") == expected
    assert changes.keys == len(expected) + 1
    assert parts is not None
    assert max(len(keys) for part in parts for keys in part.values()) <= 13
    changes.cut(at(2), keep=(1,))
    changes.add_rows("t", rows(1))
    assert keys_of(changes.since(at(2)), "t") == {1}


def test_keys_that_are_dropped_are_freed_little_by_little() -> None:
    """No batch pays for all of them."""
    changes = Changes()
    changes.cut(at(1), keep=())
    changes.add_rows("t", rows(*range(3 * FREED_PER_BATCH)))
    dropped = changes.since(at(1))
    assert dropped is not None
    changes.cut(at(2), keep=())
    lengths = []
    for _ in range(4):
        lengths.append(len(dropped[0]["t"]))
        changes.add_rows("t", rows())
    assert lengths == [3 * FREED_PER_BATCH, 2 * FREED_PER_BATCH, FREED_PER_BATCH, 0]


def test_keys_under_a_delta_are_not_freed_when_they_are_forgotten() -> None:
    """Whoever listens is still reading them."""
    changes = Changes()
    changes.cut(at(1), keep=())
    changes.add_rows("t", rows(1, 2))
    held = changes.since(at(1))
    changes.cut(at(2), keep=(1,))
    changes.watch = lambda _table, _rows: None
    changes.schema_changed()
    changes.add_rows("t", rows())
    assert keys_of(held, "t") == {1, 2}
    assert changes.schemas == 1


def test_estimate_counts_a_key_of_two_intervals_once() -> None:
    """Of a sample, so about."""
    same, other = {"t": set(range(10_000))}, {"t": set(range(10_000, 20_000)), "u": {1}}
    assert estimate_keys([same, {"t": set(range(10_000))}]) == 10_000
    assert estimate_keys([same, other]) == 20_001
    assert estimate_keys([]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_executor_tells_every_changed_row_and_key(make_site: Callable[..., Site], seed: int) -> None:
    """Whatever differs between two states of the file is among the keys; with aborts, failures and repeated keys."""
    chance, site = random.Random(seed), make_site(counters())
    changes = site.executor.gather_changes()
    assert changes is not None
    assert site.executor.changes is changes
    changes.cut(site.state.position, keep=())
    start, before = site.state.position, dict.fromkeys(site.dump())
    for number in range(30):
        names = [chance.choice("abcdefgh") for _ in range(chance.randrange(1, 5))]
        calls = [(chance.choice(("count", "count_then_raise", "count_then_abort")), {"name": name, "by": 1}) for name in names]
        keys = [key_fingerprint("me", f"{number % 20}-{n}") for n in range(len(calls))] if number % 3 else None
        site.apply(*calls, keys=keys)
    changed = {(row[0], row[1]) for row in set(before) ^ set(site.dump())}
    parts = changes.since(start)
    assert {key for table, key in changed if table == "counters"} <= keys_of(parts, "counters")
    assert {key for table, key in changed if table == "_cmdlog_keys"} <= keys_of(parts, "_cmdlog_keys")
    assert {table for table, _ in changed} == {"counters", "_cmdlog_keys", "_cmdlog_meta"}


def test_executor_without_row_digests_cannot_tell(make_site: Callable[..., Site]) -> None:
    """The hook that tells is that of the digest."""
    site = make_site(counters(), digest_rows=False)
    assert site.executor.gather_changes() is None
    assert site.executor.changes is None
