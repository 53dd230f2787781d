"""Histories by seed: what may happen to a small cluster, at random, until everything stops.

One rule: the same seed makes the same history. `History` plays it and keeps it legal; here is only what happens next.

    python -m tests.replay.histories --seeds 2000 [--recover]     holds authority, and recovery, to as many of them
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from cmdlog.wal.errors import WalError
from procedures.errors import ProceduresError
from replay.engine import CatalogMissing
from replay.errors import Incomplete, NoLogs, ReplayError
from tests.replay import damage
from tests.replay.historycheck import (
    balances_of_chosen,
    check_any,
    check_copied,
    check_notes,
    check_spoiled,
    entries_of,
    held_by,
    notes_of_chosen,
    recovered,
)
from tests.replay.historymembers import STAGES, History

__all__ = ["History", "check_seed", "random_history", "recover_seed"]

STEPS_MAX = 60


def random_history(folder: Path, seed: int, *, steps: int | None = None, nodes: int | None = None) -> History:
    """A history of some steps; everything has stopped."""
    rng = random.Random(seed)
    count = nodes or rng.choice([1, 2, 3, 3, 3, 3, 4, 5])
    history = History(folder, count, rng.randint(1, 4), seed, rng.choice([32 << 10, 64 << 10]))
    for number in history.nodes:
        history.skews_ms[number] = rng.choice([0, 0, 0, -5000, 40, 3_600_000])
    player = _Player(history, rng)
    for _ in range(rng.randint(5, STEPS_MAX) if steps is None else steps):
        player.step()
    history.finish(killed=[n for n in history.nodes if rng.random() < 0.3])
    return history


def check_seed(folder: Path, seed: int) -> tuple[History, int, int]:
    """Writes a history, reads it back, and holds authority to it. Returns how many verdicts were proved, of how many."""
    history = random_history(folder, seed)
    for node in history.nodes.values():
        assert entries_of(node.directory) == held_by(node), f"{node.directory} does not hold what was replicated to it"
    rng = random.Random(seed)
    proved, judged = check_any(history, rng)
    check_copied(history, rng)
    if orderly := history.orderly:
        more, of = check_spoiled(history, rng, orderly)
        proved, judged = proved + more, judged + of
    return history, proved, judged


def recover_seed(folder: Path, seed: int) -> bool:
    """Recovers a random history from some or all of its directories, with damage that can be told from a torn end in some.

    It is refused only where something may be missing, and never recovered without all that was acknowledged. Returns whether it
    was recovered.
    """
    folder.mkdir()
    history = random_history(folder / "h", seed)
    rng = random.Random(seed)
    given = sorted(
        rng.sample(sorted(history.nodes), rng.randint(1, len(history.nodes)) if rng.random() < 0.4 else len(history.nodes))
    )
    orderly = [number for number in history.orderly if number in given]
    victims = rng.sample(orderly, min(len(orderly), rng.choice([0, 1, 1, 2])))
    told = [spoil_one(history, victim, rng) for victim in victims]
    voters = min(len(history.members(group)[0]) for group in history.groups)
    must = history.is_settled and len(given) == len(history.nodes) and (not told or (len(told) == 1 and voters >= 3))
    try:
        plan, balances = recovered([history.directory_of(number) for number in given], folder / "out", history.partitions)
    except (Incomplete, NoLogs, CatalogMissing) as refused:
        if must and "in no log at hand" not in str(refused):
            raise AssertionError(f"seed {seed}: {given}, {told}: {refused}") from refused
        return False
    except (ReplayError, WalError, ProceduresError) as refused:
        raise AssertionError(f"seed {seed}: {given}, {told}: {type(refused).__name__}: {refused}") from refused
    chosen = {choice.group: choice.chosen for choice in plan.choices}
    assert balances == balances_of_chosen(history, chosen), f"seed {seed}: {given}, {told}"
    notes = notes_of_chosen(history, chosen)
    check_notes(history, folder / "out", notes.values())
    assert all(choice.last_index >= history.truth.last(choice.group) for choice in plan.choices), f"seed {seed}: {given}, {told}"
    return True


def spoil_one(history: History, victim: int, rng: random.Random) -> str:
    """Damage somewhere in a node's log."""
    return damage.spoil_segment(rng.choice(damage.segments(history.directory_of(victim))), rng)


class _Player:
    """Decides by chance what happens next."""

    def __init__(self, history: History, rng: random.Random) -> None:
        self._history, self._rng = history, rng
        self._coming: int | None = None  # the node whose return is under way
        self._steps: list[tuple[int, Callable[[], object]]] = [
            (30, self._work),
            (8, self._elect),
            (12, self._heal),
            (6, self._stale_leader),
            (6, self._stop_or_start),
            (6, self._snapshot),
            (5, self._fail),
            (5, self._return),
            (2, self._lose_disk),
            (2, self._resize),
            (2, self._code),
            (3, self._tell_faults),
            (10, self._everywhere),
            (3, self._copy),
        ]

    def step(self) -> None:
        """One thing happens."""
        weights = [weight for weight, _ in self._steps]
        self._rng.choices([act for _, act in self._steps], weights)[0]()

    def _some(self, share: float = 0.7) -> list[int]:
        return [number for number in self._history.nodes if self._rng.random() < share]

    def _group(self) -> int:
        return self._rng.choice(self._history.groups)

    def _work(self) -> None:
        """Some batches, replicated to some nodes, counted and told by chance."""
        history, rng = self._history, self._rng
        for _ in range(rng.randint(1, 6)):
            partition = rng.randrange(history.partitions)
            for _ in range(rng.randint(1, 3)):
                history.deposits(partition, rng.randint(1, 5))
            for number in self._some():
                last = history.nodes[history.leader(partition)].group(partition).last_index
                history.replicate(partition, number, upto=last - rng.choice([0, 0, 0, 1, 2]))
            if rng.random() < 0.9:
                history.advance(partition)
            for number in self._some(0.4):
                history.mark(partition, number)

    def _everywhere(self) -> None:
        """A node leads all partitions and appends multi-partition calls, which are replicated in part; it may end then."""
        history, rng = self._history, self._rng
        number = rng.choice(list(history.nodes))
        if not history.take_over(number, self._some(0.95)):
            return
        for _ in range(rng.randint(1, 3)):
            history.everywhere()
            for partition in range(history.partitions):
                if rng.random() < 0.6:
                    history.deposits(partition, rng.randint(1, 3))
                if rng.random() < 0.7:
                    history.spread(partition, self._some(0.7), marks=rng.random() < 0.5)
        if rng.random() < 0.4:
            history.nodes[number].stop(orderly=rng.random() < 0.5)

    def _elect(self) -> None:
        group = self._group()
        candidate = self._rng.choice(list(self._history.nodes))
        if self._history.elect(group, candidate, self._some(0.85)) and self._rng.random() < 0.7:
            self._history.spread(group, self._some())

    def _heal(self) -> None:
        """Some processes start again, and what can be replicated is."""
        history = self._history
        for number in self._some(0.8):
            if not history.nodes[number].up:
                history.nodes[number].start()
        for group in history.groups:
            leader = history.nodes[history.leader(group)]
            if not leader.up or leader.silent:
                self._lead_elsewhere(leader.number)
            if self._rng.random() < 0.8:
                history.spread(group, self._some(0.9), marks=self._rng.random() < 0.5)

    def _stale_leader(self) -> None:
        """One that no longer leads, or that nobody hears, goes on appending."""
        group = self._rng.randrange(self._history.partitions)
        number = self._rng.choice(list(self._history.leads[group]))
        node, term = self._history.nodes[number], self._history.leads[group][number]
        if node.up and not node.silent and node.group(group).term == term:
            for _ in range(self._rng.randint(1, 4)):
                self._history.deposits(group, self._rng.randint(1, 3), by=number)
            for other in self._some(0.3):
                self._history.replicate(group, other, by=number)
            if self._rng.random() < 0.5:
                self._history.advance(group, by=number)

    def _stop_or_start(self) -> None:
        number = self._rng.choice(list(self._history.nodes))
        node = self._history.nodes[number]
        if node.up:
            node.stop(orderly=self._rng.random() < 0.5)
        else:
            node.start()

    def _snapshot(self) -> None:
        for number in self._some(0.4):
            self._history.snapshot(number, self._rng.randrange(self._history.partitions))

    def _lead_elsewhere(self, number: int) -> None:
        for group in self._history.groups:
            if self._history.leader(group) == number:
                others = [n for n in self._history.nodes if n != number]
                self._rng.shuffle(others)
                any(self._history.elect(group, other, others) for other in others)

    def _fail(self) -> None:
        """A node is declared failed; it may be down, cut off, or just slow."""
        history = self._history
        lost = [n for n, node in history.nodes.items() if node.silent and n not in history.failed]
        number = self._rng.choice(lost or list(history.nodes))
        if number in history.failed or number == self._coming:
            return
        if not lost and self._rng.random() < 0.7:
            history.nodes[number].stop(orderly=self._rng.random() < 0.5)
        self._lead_elsewhere(number)
        history.declare_failed(number, self._some(0.9))

    def _return(self) -> None:
        """A failed node comes back, perhaps only a part of the way; only one at a time."""
        history = self._history
        if self._coming is None and history.failed:
            self._coming = self._rng.choice(sorted(history.failed))
        if self._coming is None or self._coming not in history.nodes:
            return
        upto = self._rng.choice([*STAGES, "done", "done", "done"])
        if history.rejoin(self._coming, upto, self._some(0.9)) and upto == "done":
            self._coming = None

    def _lose_disk(self) -> None:
        history = self._history
        number = self._rng.choice(list(history.nodes))
        if len(history.nodes) > 1 and number != self._coming and sum(n.silent for n in history.nodes.values()) == 0:
            history.lose_disk(number)

    def _resize(self) -> None:
        history = self._history
        if self._rng.random() < 0.5 and len(history.nodes) < 5:
            if history.add_node(max(history.nodes) + 1, promote=self._rng.random() < 0.6):
                return
        elif len(history.nodes) > 2:
            number = self._rng.choice(list(history.nodes))
            self._lead_elsewhere(number)
            if number != self._coming:
                history.remove_node(number)

    def _copy(self) -> None:
        self._history.take_copy(self._rng.choice(list(self._history.nodes)))

    def _code(self) -> None:
        self._history.change_code(self._rng.choice([2, 3, 5, 7]))

    def _tell_faults(self) -> None:
        self._history.tell_faults(self._some(0.5))


def main() -> int:
    """Long runs, one folder per seed, removed when it was right."""
    parser = argparse.ArgumentParser(description="Writes random histories and holds authority to them.")
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--recover", action="store_true", help="carry recoveries out, too")
    asked = parser.parse_args()
    began, calls, proved, judged, recovered_count, bad = time.monotonic(), 0, 0, 0, 0, 0
    for seed in range(asked.first, asked.first + asked.seeds):
        with tempfile.TemporaryDirectory() as folder:
            try:
                history, good, of = check_seed(Path(folder) / "history", seed)
                recovered_count += asked.recover and recover_seed(Path(folder) / "recovery", seed)
            except AssertionError as error:
                bad += 1
                print(f"seed {seed}: {error}", flush=True)
            else:
                calls, proved, judged = calls + len(history.acknowledged), proved + good, judged + of
    took = time.monotonic() - began
    print(
        f"{asked.seeds} histories with {calls} acknowledged calls, {proved} of {judged} verdicts proved, {took:.1f} s: {bad} bad"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
