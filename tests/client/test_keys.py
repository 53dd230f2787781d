"""New idempotency keys: what a server reads in them, and whose clock they follow."""

from __future__ import annotations

import uuid
from email.utils import formatdate

import pytest

from cmdlog.client.keys import DATE_STEP_S, KeyGenerator, check_key, uuid7
from cmdlog.errors import InvalidParameters
from procedures.idempotency.known_outcome import holder_of, key_fingerprint, key_time_ms


def test_new_key_is_a_uuid_of_version_7_that_bears_its_time() -> None:
    """The standard library and the server's own table both read the time in it; no two are alike."""
    keys = KeyGenerator(wall=lambda: 1_700_000_000.123)
    made = {keys.new() for _ in range(1000)}
    assert len(made) == 1000
    for key in made:
        assert (uuid.UUID(key).version, uuid.UUID(key).variant) == (7, uuid.RFC_4122)
        assert key_time_ms(key_fingerprint("", key)) == 1_700_000_000_123


def test_every_bit_of_chance_counts() -> None:
    """74 of the 80 bits are in the key: flipping any of them makes another one."""
    chance = bytes(10)
    flipped = {uuid7(1, (1 << bit).to_bytes(10)) for bit in range(80)} - {uuid7(1, chance)}
    assert len(flipped) == 74


def test_key_follows_the_servers_clock_when_ours_is_behind() -> None:
    """A machine two hours behind makes keys of the server's time from the first `Date` on; one that is ahead stays."""
    now = 1_700_000_000.0
    keys = KeyGenerator(wall=lambda: now)
    old, older = keys.new(), keys.new()
    assert keys.better(old, formatdate(now - 7200, usegmt=True)) is None
    assert keys.better(old, formatdate(now + 2, usegmt=True)) is None
    better = keys.better(old, formatdate(now + 7200, usegmt=True))
    also_better = keys.better(older, formatdate(now + 7200, usegmt=True))
    for key in (better, also_better, keys.new()):
        assert key is not None
        assert key_time_ms(key_fingerprint("", key)) == (now + 7200 + DATE_STEP_S) * 1000
        assert keys.better(key, formatdate(now + 7200, usegmt=True)) is None, "a second refusal is not the clock's fault"


@pytest.mark.parametrize("date", ["", "yesterday", "Tue, 99 Foo 2026 00:00:00 GMT"])
def test_date_that_is_none_teaches_nothing(date: str) -> None:
    """A header that cannot be read leaves the keys as they are."""
    keys = KeyGenerator()
    assert keys.better(keys.new(), date) is None


@pytest.mark.parametrize("key", ["", "ä", "a\nb", "a b", "x" * 256, "\x7f"])
def test_key_that_no_header_can_carry_is_refused(key: str) -> None:
    """It is the caller's mistake, found before anything is sent."""
    with pytest.raises(InvalidParameters):
        check_key(key)
    assert check_key("order-17!~") == "order-17!~"


def test_fingerprint_says_whose_it_is() -> None:
    """All of one credential's, dated or not, and of sessions; another one has another holder, and no key of the first."""
    keys = ["order-1", "order-2", uuid7(1_700_000_000_123, bytes(10)), str(uuid.uuid4())]
    holders = {scope: {holder_of(key_fingerprint(scope, key)) for key in keys} for scope in ("", "shop", "till")}
    assert [len(found) for found in holders.values()] == [1, 1, 1]
    assert len(set.union(*holders.values())) == 3
