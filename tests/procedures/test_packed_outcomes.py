"""Packed outcomes of session calls: each comes back with the hash of its request, however they were packed."""

from __future__ import annotations

import random
from typing import Any

import pytest

from procedures.errors import StateRefused
from procedures.idempotency.known_outcome import Status
from procedures.idempotency.packed_outcomes import TXN_STEP, NumberedCalls, pack_numbered, pick_outcomes, unpack_outcome_at
from procedures.wire.sent_request import sent_hash


def calls(seed: int) -> tuple[NumberedCalls, list[Any], list[int]]:
    """Some calls, their parameters and seeds."""
    chance = random.Random(seed)
    count = chance.randint(1, 30)
    params: list[Any] = [[at, "text", None, 1.5, {"a": [at]}][: chance.randint(0, 5)] for at in range(count)]
    seeds = [chance.randrange(1 << 32) for _ in range(count)]
    step = TXN_STEP if seed % 2 else 5 * TXN_STEP
    ended = (
        bytearray(chance.choice([0, 0, 1, 2]) if seed % 3 else 0 for _ in range(count)),
        [1000 + step * at for at in range(count)],
        [b"x" * chance.choice([0, 1, 300]) for _ in range(count)],
    )
    return NumberedCalls([b""] * count, seeds, params, hashed=False, ended=ended), params, seeds


@pytest.mark.parametrize("seed", range(30))
def test_every_outcome_comes_back(seed: int) -> None:
    """Also from what was picked of them, and from what was picked of that."""
    packed_calls, params, seeds = calls(seed)
    packed = pack_numbered(packed_calls)
    whole = [unpack_outcome_at(packed, at) for at in range(len(params))]
    assert [it.body for it in whole] == packed_calls.bodies
    assert [it.txn_id for it in whole] == packed_calls.txn_ids
    assert bytes(it.status for it in whole) == bytes(packed_calls.statuses)
    assert [it.request for it in whole] == [sent_hash(seed, each) for seed, each in zip(seeds, params, strict=True)]
    chosen = list(range(0, len(params), 2))
    picked = pick_outcomes(packed, chosen)
    assert [unpack_outcome_at(picked, at) for at in range(len(chosen))] == [whole[at] for at in chosen]
    assert unpack_outcome_at(pick_outcomes(picked, [0]), 0) == whole[0]


def test_damage_is_refused() -> None:
    """A row that is cut, or asked for more than it holds."""
    packed = pack_numbered(calls(1)[0])
    for broken, at in ((packed[:20], 3), (packed, 1000), (b"", 0), (packed[:-1], 0)):
        with pytest.raises(StateRefused):
            unpack_outcome_at(broken, at)
    assert unpack_outcome_at(packed, 0).status in set(Status)
