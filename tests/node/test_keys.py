"""Keys that wander between partitions are noticed, also after a restart, in bounded memory."""

from __future__ import annotations

from cmdlog.node.keys import EVERYWHERE, SLICES, KeyOwners


def key(n: int) -> bytes:
    """A fingerprint."""
    return n.to_bytes(8, "little") + bytes(8)


class Ticks:
    """A clock that stands until it is moved."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_first_partition_keeps_a_key() -> None:
    """A claim by another partition, or by a multi-partition call, names the first owner."""
    owners = KeyOwners(100, keys_max=10)
    assert owners.claim(key(1), 2) == 2
    assert owners.claim(key(1), 2) == 2
    assert owners.claim(key(1), 0) == 2
    assert owners.claim(key(1), EVERYWHERE) == 2


def test_a_key_of_a_multi_partition_call_is_known_again_after_a_restart() -> None:
    """Every state file remembers such a key: its retry is no wandering, and a single-partition use of it is."""
    owners = KeyOwners(100, keys_max=10)
    for partition in range(3):
        owners.load([key(7)], partition)
    owners.load([key(8)], 2)
    assert owners.claim(key(7), EVERYWHERE) == EVERYWHERE
    assert owners.claim(key(7), 0) == EVERYWHERE
    assert owners.claim(key(8), 2) == 2


def test_keys_live_for_the_window_and_not_much_longer() -> None:
    """A key is known for the whole window and forgotten within two slices after it."""
    clock = Ticks()
    owners = KeyOwners(160, keys_max=1000, clock=clock)
    owners.claim(key(1), 1)
    for n in range(2, 18):
        clock.now += 10
        owners.claim(key(n), 0)
    assert clock.now == 160
    assert owners.claim(key(1), 0) == 1
    for n in range(20, 24):
        clock.now += 10
        owners.claim(key(n), 0)
    assert owners.claim(key(1), 0) == 0
    assert len(owners) <= SLICES + 4


def test_a_full_table_takes_no_more_and_forgets_nothing() -> None:
    """Beyond `keys_max` new keys go through unrecorded; known ones stay known."""
    owners = KeyOwners(100, keys_max=3)
    for n in range(10):
        assert owners.claim(key(n), n % 2) == n % 2
    assert len(owners) == 3
    assert owners.claim(key(1), 0) == 1
    assert owners.claim(key(9), 0) == 0
