"""Idempotency keys in another number of partitions: what was answered stays answered, and no key runs twice.

One rule: a key that some old partition knew is known in every new partition to which a call under it may now be routed.

A key's row does not say by which value its call was routed, only the partition that it ran on. So the keys of an old partition
are *copied* to every new partition that has some of its slots: the retry goes to one of them and finds its answer, any other
request gets the error that the key is used. (A node knows that such a key has several homes:
`cmdlog.node.placing.key_owners`.) With 2 partitions instead of 1, each key is in both; the other way round each exists once.

Calls on all partitions were answered with a list of every partition's result. The list as it was is stored on the first
partition, nothing on the others, and `CombinedReplies` of `cmdlog.node.outcome` puts it together to the old answer. All
partitions know the same of these calls.

Rows keep what is left of their time: activity clocks differ between partitions, so the new ones are set to the highest, and the
times of rows are moved with them. Floors are the highest of all: a key that one partition may have forgotten runs nowhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Final

import apsw

from procedures.idempotency.key_table import FIGURES_ROW, Figures
from procedures.idempotency.known_outcome import KEY_BYTES, Fresh, KeyPolicy, KnownOutcome, Status, split_keys
from procedures.idempotency.packed_outcomes import pack_fresh, pick_outcomes, unpack_outcome_at
from procedures.storage.state import rows_of
from procedures.storage.state_file import connect
from replay.errors import ReshapeRefused

_ROWS: Final = "SELECT idx, due, clock, keys, outcomes FROM _cmdlog_keys WHERE idx > 0"
_PUT: Final = "INSERT INTO _cmdlog_keys VALUES (?, ?, ?, ?, ?)"
DISAGREEMENT: Final = (
    "the partitions do not agree on the multi-partition calls they know; recover to a transaction up to which all of them are "
    "complete"
)

Stored = tuple[int, int, int, bytes, bytes | None]  # a row of `_cmdlog_keys`


@dataclass(frozen=True, slots=True)
class ClockLag:
    """What the activity clocks of an old partition lack to the highest ones; milliseconds."""

    single: int
    shared: int  # of calls on all partitions


@dataclass(frozen=True, slots=True)
class KeptKeys:
    """The idempotency keys that the old partitions know."""

    sources: Sequence[str]
    policy: KeyPolicy
    figures: Sequence[Figures]
    clocks: Sequence[int]
    rows_max: int  # at most so many rows come to one partition
    txn_id_max: int

    def write(self, connection: apsw.Connection, partition: int, parents: Sequence[int]) -> int:
        """Fills the table of a new partition; returns its activity clock. Raises: ReshapeRefused when it has no room."""
        filling = _Filling(self, connection, merges=len(parents) > 1)
        connection.execute("BEGIN")
        for kept in (True, False):  # what is still answered comes before what is only remembered
            for source in parents:
                filling.single(source, kept=kept)
        if filling.count > self.policy.keys_max:
            raise ReshapeRefused(
                f"partition {partition} would know {filling.count} idempotency keys of the old partitions "
                f"{', '.join(map(str, parents))}, and keys_max is {self.policy.keys_max}; use more partitions, "
                f"preferably a multiple of {len(self.sources)}, or raise keys_max in the old shape first"
            )
        for several in _together(self.sources):
            filling.shared(several, first=partition == 0)
        figures = self._highest()
        if figures != Figures():
            connection.execute("INSERT INTO _cmdlog_keys VALUES (?, 0, 0, x'', ?)", (FIGURES_ROW, figures.pack()))
        connection.execute("COMMIT")
        return max(self.clocks)

    def lags(self) -> list[ClockLag]:
        """Of each old partition."""
        shared = [figures.shared_clock for figures in self.figures]
        return [ClockLag(max(self.clocks) - one, max(shared) - other) for one, other in zip(self.clocks, shared, strict=True)]

    def _highest(self) -> Figures:
        names = ("floor", "shared_floor", "shared_clock", "shared_last")
        return Figures(*(max(getattr(figures, name) for figures in self.figures) for name in names))


def open_keys(sources: Sequence[str], policy: KeyPolicy) -> KeptKeys:
    """Reads what is needed before any table is written."""
    figures, clocks, rows, txn_ids = [], [], 0, []
    for source in sources:
        with closing(connect(source, apsw.SQLITE_OPEN_READWRITE)) as connection:
            figures.append(Figures.of(connection))
            ((clock, txn_id),) = rows_of(connection, "SELECT clock, txn_id FROM _cmdlog_meta")
            rows += rows_of(connection, "SELECT count(*) FROM _cmdlog_keys")[0][0]
            clocks.append(clock)
            txn_ids.append(txn_id)
    return KeptKeys(sources, policy, figures, clocks, rows, max(txn_ids))


class _Filling:
    """One table that is being written."""

    def __init__(self, keys: KeptKeys, connection: apsw.Connection, *, merges: bool) -> None:
        self._of, self._connection, self._merges, self._lags = keys, connection, merges, keys.lags()
        self._known: set[bytes] = set()  # only when several partitions' keys meet: copies of one key may be among them
        self._idx = FIGURES_ROW
        self.count = 0

    def single(self, source: int, *, kept: bool) -> None:
        """The keys of single-partition calls of an old partition."""
        later = self._lags[source].single
        where = f"clock >= 0 AND outcomes IS {'NOT ' if kept else ''}NULL"
        with closing(connect(self._of.sources[source], apsw.SQLITE_OPEN_READWRITE)) as connection:
            for row in connection.execute(f"{_ROWS} AND {where} ORDER BY idx"):
                _, due, clock, keys, outcomes = row
                keys, outcomes = self._without_known(keys, outcomes)
                if keys:
                    self._put(due + later, clock + later, keys, outcomes)
                    self.count += len(keys) // KEY_BYTES

    def shared(self, rows: Sequence[Stored], *, first: bool) -> None:
        """A call on all partitions, as every old partition knows it."""
        later = self._lags[0].shared
        _, due, clock, keys, _ = rows[0]
        packed = [row[4] for row in rows if row[4] is not None]
        outcomes = combined_outcomes(packed, 1, first=first) if len(packed) == len(rows) else None
        self._put(due + later, clock - later, keys, outcomes)

    def _without_known(self, keys: bytes, outcomes: bytes | None) -> tuple[bytes, bytes | None]:
        """Omits copies of keys that are already there."""
        if not self._merges:
            return keys, outcomes
        several = split_keys(keys)
        if self._known.isdisjoint(several):
            self._known.update(several)
            return keys, outcomes
        new = [at for at, key in enumerate(several) if key not in self._known]
        left = b"".join(several[at] for at in new)
        self._known.update(several)
        return left, None if outcomes is None else pick_outcomes(outcomes, new)

    def _put(self, due: int, clock: int, keys: bytes, outcomes: bytes | None) -> None:
        self._idx += 1
        self._connection.execute(_PUT, (self._idx, due, clock, keys, outcomes))


def _together(sources: Sequence[str]) -> Iterator[Sequence[Stored]]:
    """The rows of calls on all partitions, side by side. Raises: ReshapeRefused when the partitions know different ones."""
    with ExitStack() as stack:
        connections = [stack.enter_context(closing(connect(source, apsw.SQLITE_OPEN_READWRITE))) for source in sources]
        cursors = [connection.execute(f"{_ROWS} AND clock < 0 ORDER BY idx") for connection in connections]
        while any(rows := [next(cursor, None) for cursor in cursors]):
            whole = [row for row in rows if row is not None]
            if len(whole) < len(rows) or len({row[3] for row in whole}) > 1:
                raise ReshapeRefused(DISAGREEMENT)
            yield whole


def combined_outcomes(packed: Sequence[bytes], count: int, *, first: bool) -> bytes:
    """The partitions' outcomes of the same calls as one partition stores them, so that together they make the same answers."""
    fresh = Fresh()
    for at in range(count):
        outcomes = [unpack_outcome_at(one, at) for one in packed]
        failed = next((outcome for outcome in outcomes if outcome.status != Status.OK), None)
        body = b",".join(outcome.body for outcome in outcomes if outcome.body) if first else b""
        it = failed or KnownOutcome(Status.OK, outcomes[0].txn_id, body, outcomes[0].request)
        fresh.add(b"%d" % at, it.request, it.status, it.txn_id, it.body)
    return pack_fresh(fresh)
