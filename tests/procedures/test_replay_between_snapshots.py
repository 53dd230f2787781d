"""What a replay does with calls on all partitions that lie between the snapshots of two partitions: what the live run did.

Generated histories of one partition, with keys, client sessions, retries, skips, entries that are passed over, and windows so
short that names are forgotten. A copy of the state at any entry, opened again and brought on in groups of any size, does with
every later batch what the state did that never stopped.
"""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from procedures.execution.executor import Applied, Executor, Invocations, KeyPolicy
from procedures.storage.state import PartitionState
from tests.procedures.sites import Site, counters

HISTORIES: Final = 25
HISTORIES_MANY: Final = 10_000
ENTRIES: Final = 40
DB: Final = counters()
POLICY: Final = KeyPolicy(window_ms=12, forget_ms=9, keys_max=40, clock_lead_max_ms=8)

Entry = Invocations | tuple[int, int, int]
"""A batch, or index, term and checksum of an entry without calls."""


class NamedHistory:
    """Gives entry after entry to a state that never stops."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.site = Site(folder / "live.db", DB, policy=POLICY)
        self.entries: list[Entry] = []
        self.did: list[Applied | None] = []
        self._names = [self.rng.randbytes(16) for _ in range(5)]
        self._sessions = {self.rng.randbytes(16): [0, 0] for _ in range(2)}  # -> last number, floor

    def run(self, *, copies: list[int]) -> None:
        """All entries; before those of these numbers the state is copied."""
        for number in range(ENTRIES):
            if number in copies:
                self.copy(number)
            self._step()

    def path_of(self, number: int) -> Path:
        """Of the copy before that entry."""
        return self.site.path.with_name(f"copy-{number}.db")

    def copy(self, number: int) -> None:
        """The state as a snapshot has it."""
        connection = self.site.state.connection
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(self.site.path, self.path_of(number))

    def _step(self) -> None:
        rng, site = self.rng, self.site
        site.milliseconds += rng.choice([0, 0, 1, 5, 30])
        if rng.random() < 0.2:  # of no calls, or void
            entry = site.state.position.index + 1, 1, 7
            site.executor.advance(index=entry[0], term=entry[1], checksum=entry[2])
            self.entries.append(entry)
            self.did.append(None)
            return
        batch = self._batch()
        self.entries.append(batch)
        self.did.append(site.executor.apply(batch))

    def _batch(self) -> Invocations:
        rng = self.rng
        everywhere = rng.random() < 0.5
        calls: list[tuple[str, dict[str, Any]]] = []
        for _ in range(1 if everywhere else rng.randint(1, 3)):
            name = rng.choice(["count", "count", "count_then_raise", "count_then_abort"])
            calls.append(
                ("add_note", {"number": rng.randint(1, 6), "text": "x"}) if everywhere else (name, {"name": "a", "by": 1})
            )
        names, floors = self._draw_names(len(calls))
        skips = [0] if rng.random() < 0.1 else []
        return self.site.batch(calls, keys=names, skips=skips, floors=floors)

    def _draw_names(self, count: int) -> tuple[list[bytes] | None, dict[bytes, int]]:
        rng, kind = self.rng, self.rng.random()
        if kind < 0.2:
            return None, {}
        if kind < 0.6:
            return [rng.choice([*self._names, bytes(16)]) for _ in range(count)], {}
        session, state = rng.choice(list(self._sessions.items()))
        names = []
        for _ in range(count):
            again = state[0] > state[1] and rng.random() < 0.3
            state[0] += not again
            names.append(session + struct.pack("<Q", rng.randint(state[1] + 1, state[0]) if again else state[0]))
        state[1] = rng.randint(state[1], max(state[1], state[0] - 3))
        return names, {session: state[1]}


def replays(history: NamedHistory, number: int) -> Iterator[tuple[int, Applied | None]]:
    """What a copy does with the entries after it, in groups; the number of each entry."""
    rng = history.rng
    state = PartitionState.open(history.path_of(number), partition=0)
    executor = Executor(
        state, lambda _version: DB, digest_rows=True, millis_of=lambda txn: txn >> 21, progress=None, key_policy=POLICY
    )
    left = 0
    for at, entry in enumerate(history.entries[number:], number):
        if left == 0:
            executor.end_group()
            executor.begin_group()
            left = rng.randint(1, 8)
        left -= 1
        if isinstance(entry, Invocations):
            yield at, executor.apply(replace(entry))
        else:
            executor.end_group()
            executor.advance(index=entry[0], term=entry[1], checksum=entry[2])
            left = 0
            yield at, None
    executor.end_group()
    executor.close()
    state.close()


def check_history(folder: Path, seed: int) -> None:
    """One history, and two copies of it."""
    folder.mkdir(exist_ok=True)
    copies = sorted(random.Random(seed).sample(range(ENTRIES), 2))
    history = NamedHistory(folder, seed)
    history.run(copies=copies)
    for number in copies:
        for at, applied in replays(history, number):
            live = history.did[at]
            assert (live is None) == (applied is None)
            if live is not None and applied is not None:
                found = applied.statuses, applied.bodies, applied.result_hashes, applied.rows_digest
                assert found == (live.statuses, live.bodies, live.result_hashes, live.rows_digest), (seed, number, at)
    history.site.close()


@pytest.mark.slow
def test_a_copy_does_what_the_state_did_that_never_stopped(tmp_path: Path) -> None:
    """Outcomes and digests are equal, call for call."""
    for seed in range(HISTORIES):
        check_history(tmp_path / str(seed), seed)


@pytest.mark.torture
@pytest.mark.timeout(0)
def test_many_copies(tmp_path: Path) -> None:
    """As `make torture` runs them."""
    for seed in range(HISTORIES, HISTORIES_MANY):
        check_history(tmp_path / "one", seed)
        shutil.rmtree(tmp_path / "one")
