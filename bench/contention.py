"""Transfers between a few hot accounts: 64 clients with 40 calls each under way, here and in PostgreSQL, in turns.

The transfer suite that SpacetimeDB publishes (`templates/keynote-2` of its repository): 100,000 accounts, both of a transfer
drawn with a share of 1 / rank ** alpha, the second again while it is the first; a thousand million in each, amount 1. Alpha 0 is
uniform; with alpha 1.5 two of three transfers touch the hottest account. What a client sends: `bench/_windows.py`.

A bank's transfer stays within its branch, so a partition alone has one branch, and several have eight each, whose accounts are
drawn likewise. Run: `python bench/contention.py [--quick]`. What the ratios mean: bench/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # before this folder
os.environ["PYTHONPATH"] = sys.path[0]

import numpy as np

from bench._common import Bar, Bench, in_turns, make_parser, paired, tree_cpu_seconds, work_directory
from bench._nodes import Accounts
from bench._postgres import postgres
from bench._server import bank_server
from bench._windows import Call, WireName, run_windows
from cmdlog.client import Client

ACCOUNTS, SAVINGS, CHECKING = 100_000, 10_000, 1_000_000_000
BRANCHES_PER_PARTITION = 8  # of several
CLIENTS, WINDOW = 64, 40
DRAWN = 1 << 16  # then the calls begin again
WARM_UP_S = 0.3
UNIFORM, HOT = ALPHAS = 0.0, 1.5
OURS, THEIRS = "cmdlog", "PostgreSQL"


@dataclass(frozen=True, slots=True)
class Lane:
    """One server under one load."""

    wire: WireName
    port: int
    pid: int
    calls: list[Call]
    seconds: float  # of a round
    by_core: list[float] = field(default_factory=list)  # of each round, calls by CPU second of all its processes

    def __call__(self, _round: int) -> float:
        """Calls per second by the clock."""
        before = tree_cpu_seconds(self.pid)
        found = self.work(self.seconds)
        self.by_core.append(found["calls"] / (tree_cpu_seconds(self.pid) - before))
        return found["calls"] / found["seconds"]

    def work(self, seconds: float) -> dict[str, float]:
        return run_windows(self.wire, self.port, self.calls, clients=CLIENTS, window=WINDOW, seconds=seconds)


def main() -> None:
    options = make_parser("contention", "Transfers between a few hot accounts.").parse_args()
    bench = Bench("contention", options.seed, options.quick)
    bench.head()
    for partitions in sorted({1, max(1, (os.cpu_count() or 1) - 1)}):
        branches = 1 if partitions == 1 else BRANCHES_PER_PARTITION * partitions
        measure(bench, options, partitions, Accounts(branches, ACCOUNTS // branches, CHECKING))
    bench.write()


def draw(alpha: float, accounts: Accounts, seed: int) -> list[Call]:
    """Branch, source, target, amount of the calls; the account with the lowest number is the hottest."""
    chance = np.random.default_rng(seed)
    shares = np.cumsum((np.arange(accounts.customers) + 1.0) ** -alpha)

    def pick(count: int) -> Any:
        return np.searchsorted(shares, chance.random(count) * shares[-1], side="right")

    sources, targets = pick(DRAWN), pick(DRAWN)
    while (same := sources == targets).any():
        targets[same] = pick(int(same.sum()))
    branches = chance.integers(accounts.branches, size=DRAWN)
    found: list[Call] = np.stack([branches, sources, targets, np.ones_like(sources)], axis=1).tolist()
    return found


def measure(bench: Bench, options: argparse.Namespace, partitions: int, accounts: Accounts) -> None:
    """Both servers in turns, and whether all money is still there. Raises: RuntimeError."""
    rounds, seconds = (2, 1.5) if options.quick else (9, 5.0)
    bench.section(f"{CLIENTS} clients with {WINDOW} calls under way each, {ACCOUNTS:,} accounts, partitions: {partitions}")
    with (
        work_directory(options.dir) as folder,
        bank_server(folder / "serve", partitions=partitions, accounts=accounts) as (server, port),
        postgres(folder, seconds=1, seed=options.seed, accounts=accounts) as peer,
    ):
        loads = {alpha: draw(alpha, accounts, options.seed) for alpha in ALPHAS}
        lanes = {(OURS, alpha): Lane("cmdlog", port, server.pid, calls, seconds) for alpha, calls in loads.items()}
        if isinstance(peer, str):
            bench.note(f"{THEIRS} is left out: {peer}")
        else:
            lanes |= {(THEIRS, alpha): Lane("postgres", peer.port, peer.pid, calls, seconds) for alpha, calls in loads.items()}
        for lane in lanes.values():
            lane.work(WARM_UP_S)
        rates = in_turns(lanes, rounds)
        tell(bench, {"": rates, ", by busy core": {name: lane.by_core for name, lane in lanes.items()}})
        held = [sum(money for money, _count in Client(server.url).call("total"))]
        if not isinstance(peer, str):
            held.append(int(peer.query("SELECT sum(savings + checking) FROM accounts")))
    if set(held) != {accounts.branches * accounts.customers * (CHECKING + SAVINGS)}:
        raise RuntimeError(f"money was lost or made: {held}")


def tell(bench: Bench, found: Mapping[str, Mapping[tuple[str, float], list[float]]]) -> None:
    """By unit: every lane, and its quotients with the other alpha and the other server."""
    for unit, rates in found.items():
        for (server, alpha), values in rates.items():
            bench.rates(f"{server}, alpha {alpha:g}{unit}", values)
        for server in sorted({server for server, _alpha in rates}):
            fall = paired(rates[server, HOT], rates[server, UNIFORM])
            bench.ratio(f"{server}, alpha {HOT:g} / {UNIFORM:g}{unit}", fall, Bar(0.95) if server == OURS else None)
        for alpha in ALPHAS:
            if (THEIRS, alpha) in rates:
                bench.ratio(f"{OURS} / {THEIRS}, alpha {alpha:g}{unit}", paired(rates[OURS, alpha], rates[THEIRS, alpha]))


if __name__ == "__main__":
    main()
