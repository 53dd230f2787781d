"""Keys and sessions side by side in one partition."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from procedures.execution.executor import Status
from procedures.idempotency.known_calls import all_numbered, split_fresh
from procedures.idempotency.known_outcome import NO_KEY, Fresh, KeyPolicy, key_fingerprint
from tests.procedures.sites import START_MS, Site, counters, uuid7

MakeSite = Callable[..., Site]
KEY = key_fingerprint("me", "key")
SESSION = key_fingerprint("me", uuid7(START_MS))
NUMBERED = SESSION + (1).to_bytes(8, "little")


def test_one_batch_may_have_both(make_site: MakeSite) -> None:
    """A key, a number and a call without a name: the first two are answered again, also after a restart and in any mixture."""
    site = make_site(counters(), name="both.db")
    call = ("count", {"name": "a", "by": 1})
    first = site.apply(call, call, call, keys=[KEY, NUMBERED, NO_KEY], floors={SESSION: 0})
    assert first.bodies == [b"1", b"2", b"3"]
    site.close()
    site = make_site(counters(), name="both.db")
    again = site.apply(call, call, call, keys=[NUMBERED, NO_KEY, KEY], floors={SESSION: 0})
    assert again.bodies == [b"2", b"4", b"1"]
    assert [again.txn_ids[0], again.txn_ids[2]] == [first.txn_ids[1], first.txn_ids[0]]


def test_digest_has_the_floor_of_tables_without_rows(make_site: MakeSite) -> None:
    """Once every key is forgotten, batches without names ask no table, and their digests still tell a state that refuses old keys
    from one that never had any, also after it was opened again."""
    policy, call = KeyPolicy(window_ms=5, forget_ms=5), ("count", {"name": "a", "by": 1})
    keyed, plain = (make_site(counters(), name=f"{name}.db", policy=policy) for name in ("keyed", "plain"))
    keyed.apply(call, keys=[key_fingerprint("me", uuid7(START_MS))])
    plain.apply(call)
    digests = [[site.apply(call).rows_digest for site in (keyed, plain)] for _ in range(12)]
    assert keyed.executor._known.idle
    assert digests[-1][0] != digests[-1][1]
    keyed.close()
    again = make_site(counters(), name="keyed.db", policy=policy)
    assert again.executor._known.share == keyed.executor._known.share
    assert plain.apply(call).rows_digest != again.apply(call).rows_digest


def test_a_call_that_raises_is_kept_either_way(make_site: MakeSite) -> None:
    """A batch that runs again with savepoints writes the same rows as one that ran with them from the beginning."""
    sites = [make_site(counters(), name=f"{number}.db") for number in range(2)]
    sites[1].executor._savepoint_batches = 5
    calls = [("count", {"name": "a", "by": 1}), ("count_then_raise", {"name": "a", "by": 1}), ("count", {"name": "b", "by": 1})]
    names = [SESSION + number.to_bytes(8, "little") for number in (1, 2, 3)]
    done = [site.apply(*calls, keys=names, floors={SESSION: 0}) for site in sites]
    assert done[0] == done[1]
    straight = [("count", {"name": "c", "by": 1})]
    sites[0].executor._savepoint_batches = 0
    later = [site.apply(*straight, keys=[SESSION + (4).to_bytes(8, "little")], floors={SESSION: 0}) for site in sites]
    assert later[0] == later[1]
    assert sites[0].dump() == sites[1].dump()
    assert list(done[0].statuses) == [Status.OK, Status.FAILED, Status.OK]


def test_outcomes_are_split_by_the_kind_of_name() -> None:
    """A fresh outcome goes to the table that its name belongs to."""
    fresh = Fresh()
    fresh.add(KEY, 1, 0, 5, b"one")
    assert split_fresh(fresh) == (fresh, None)
    fresh.add(NUMBERED, 2, 0, 6, b"two")
    fresh.parameters[NUMBERED] = (3, ["x"])
    keys, numbered = split_fresh(fresh)
    assert list(keys.keys) == [KEY]
    assert numbered is not None
    assert (list(numbered.keys), numbered.bodies) == ([NUMBERED], [b"two"])


@pytest.mark.parametrize(("names", "numbered"), [([KEY], False), ([NUMBERED, NUMBERED], True), ([NUMBERED, NO_KEY], False)])
def test_which_batches_have_numbers_alone(names: list[bytes], *, numbered: bool) -> None:
    """Every call of them is a session's."""
    assert all_numbered(names) is numbered
