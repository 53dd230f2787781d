"""What differs between seeds: sizes, rates, limits. Each kind of fault is present in some seeds and absent in others.

One rule: drawn once, from the seed alone; nothing else in the simulation decides how bad the weather is. (A mix of everything at
medium strength hides what one fault alone would show: Groce et al., "Swarm Testing", 2012.)
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from cmdlog.raft import RaftSettings

_RATES: Final = (0.5, 0.8, 1.0, 1.3, 2.0)  # of clocks, where they differ

THINK_UNITS_MAX: Final = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Swarm:
    """One seed's world. Rates are chances per unit of time; 0 means never."""

    voters: int
    nodes: int  # the voters at first, and spare ones
    clients: int
    keys: int
    think_units_max: int  # between two operations of a client
    settings: RaftSettings
    patience: tuple[int, ...]
    rates: tuple[float, ...]  # ticks per tick of real time, per node
    loss: float
    doubling: float
    stray: float  # share of messages that come very late
    delay_units_max: int
    sync_units_max: int
    copy_units_max: int
    copy_failure: float
    kept_entries_max: int
    partitions: float
    crashes: float
    pauses: float
    transfers: float
    changes: float
    snapshots: float
    torn_rounds: float  # crashes behind a finished write, before what was built on it leaves
    wipes: float
    delay_units_min: int = 1
    sync_units_min: int = 0


def draw(seed: int) -> Swarm:
    """The world of a seed."""
    rng = random.Random(f"swarm {seed}")
    voters = rng.choice((1, 2, 3, 3, 3, 3, 4, 5, 5))
    nodes = voters + rng.choice((0, 0, 1, 2))

    def sometimes(*values: float) -> float:
        return rng.choice(values) if rng.random() < 0.5 else 0.0

    settings = _settings(rng)
    rates = _RATES if rng.random() < 0.3 else (1.0,)
    return Swarm(
        voters=voters,
        nodes=nodes,
        clients=rng.randrange(1, 6),
        keys=rng.randrange(1, 4),
        think_units_max=THINK_UNITS_MAX,
        settings=settings,
        patience=tuple(rng.choice((0, 0, 0, 1, 2)) for _ in range(nodes)),
        rates=tuple(rng.choice(rates) for _ in range(nodes)),
        loss=sometimes(0.02, 0.1, 0.3),
        doubling=sometimes(0.05, 0.3),
        stray=sometimes(0.01, 0.05),
        delay_units_max=rng.choice((1, 2, 4, 12)),
        sync_units_max=rng.choice((0, 1, 4, 20)),
        copy_units_max=rng.choice((2, 20, 100)),
        copy_failure=sometimes(0.2, 0.5),
        kept_entries_max=rng.choice((0, 3, 10)),
        partitions=sometimes(0.002, 0.01),
        crashes=sometimes(0.001, 0.005, 0.01),
        pauses=sometimes(0.001, 0.005),
        transfers=sometimes(0.001, 0.01),
        changes=sometimes(0.002, 0.02),
        snapshots=sometimes(0.01, 0.05),
        torn_rounds=sometimes(0.001, 0.01),
        wipes=rng.choice((0.0005, 0.002)) if voters >= 3 and rng.random() < 0.25 else 0.0,
    )


def _settings(rng: random.Random) -> RaftSettings:
    return RaftSettings(
        pre_vote=rng.random() < 0.8,
        check_quorum=rng.random() < 0.8,
        append_entries_max=rng.choice((1, 3, 16, 1024)),
        append_bytes_max=rng.choice((20, 200, 1 << 20)),
        window_messages_max=rng.choice((1, 2, 8, 64)),
        proposed_bytes_max=rng.choice((60, 1 << 20)),
        ready_bytes_max=rng.choice((10, 40, 8 << 20)),
        log_bytes_max=rng.choice((20, 100, 64 << 20)),
        fetch_bytes_max=rng.choice((10, 40, 4 << 20)),
        copy_ticks_max=rng.choice((20, 12_000)),
        promotion_entries_max=rng.choice((2, 1000)),
    )
