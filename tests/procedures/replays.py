"""A log of calls that use all that a procedure may, and the ways to run it: as a node does, and as every replay does."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import apsw

from procedures.execution.executor import Applied, Executor, Invocations, KeyPolicy
from procedures.idempotency.known_outcome import NO_KEY, key_fingerprint
from procedures.idempotency.session_calls import ENDED, NAME_BYTES, SESSION_BYTES, call_names
from procedures.migration.stated_change import StatedChange
from procedures.storage.state import PartitionState
from snapshot.capture.delta import DeltaCapture, apply_deltas
from tests.procedures.replayed_app import NAMES, TAGS, db
from tests.procedures.sites import START_MS, txn_at, uuid7

NUMBERS = {procedure.name: number for number, procedure in enumerate(db.procedure_list)}
POLICY = KeyPolicy(window_ms=400, forget_ms=600, keys_max=40, stored_result_bytes_max=200, session_idle_ms=500, sessions_max=6)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the log: a batch, or (None) one that changes no rows; and the policy that holds from it on."""

    index: int
    batch: Invocations | None
    policy: KeyPolicy


def make_log(seed: int, entries: int) -> list[Entry]:
    """What some clients could have called."""
    chance = random.Random(seed)
    policy, milliseconds = POLICY, START_MS
    log: list[Entry] = []
    named: dict[bytes, tuple[str, dict[str, Any]]] = {}
    for index in range(2, entries + 2):
        if chance.random() < 0.03:
            policy = replace(
                POLICY,
                window_ms=chance.choice((50, 400, 900)),
                keys_max=chance.choice((8, 40)),
                session_idle_ms=chance.choice((100, 500, 900)),
                sessions_max=chance.choice((2, 6)),
            )
        milliseconds += chance.choice((1, 1, 30, 200))
        kind = chance.random()
        count = 1 if kind < 0.3 else chance.randrange(2, 9)
        calls = [("everywhere", {"number": chance.randrange(4)})] if kind < 0.1 else [_call(chance) for _ in range(count)]
        batch = None if kind > 0.95 else _batch(chance, index, milliseconds, calls, named)
        log.append(Entry(index, batch, policy))
    return log


def _call(chance: random.Random) -> tuple[str, dict[str, Any]]:
    name = chance.choice(("take", "take", "put", "put", "replace_seat", "partly", "remove", "refuse", "long_answer"))
    if chance.random() < 0.1:
        name = chance.choice(("spoil", "spoil", "close_numbers"))
    params: dict[str, Any] = {"who": chance.choice(NAMES)}
    if name in ("put", "replace_seat", "remove"):
        params["tag"] = chance.choice(TAGS)
    if name == "put":
        params["amount"] = chance.choice((0.1, 0.2, 1e16, -1e16, 3.5, -0.0))
    return name, params


def _batch(
    chance: random.Random, index: int, milliseconds: int, calls: list[tuple[str, dict[str, Any]]], named: dict[bytes, Any]
) -> Invocations:
    keys, floors = None, dict[bytes, int]()
    if chance.random() < 0.8:
        kinds = chance.choice(("keys", "sessions", "both"))
        keys = [_name(chance, index, at, kinds, floors) for at in range(len(calls))]
        if calls[0][0] != "everywhere":
            _repeat_some(chance, keys, calls, named, floors)
    if chance.random() < 0.05:
        floors[_session(chance, index)] = ENDED
    skips = frozenset([chance.randrange(len(calls))]) if chance.random() < 0.05 else frozenset()
    return Invocations(
        index=index,
        term=1,
        checksum=index * 7,
        catalog=1,
        txn_ids=[txn_at(milliseconds, counter) for counter in range(len(calls))],
        procedures=[NUMBERS[name] for name, _ in calls],
        params=[db.procedures[name].bind(params) for name, params in calls],
        keys=keys,
        floors=floors,
        skips=skips,
    )


def _name(chance: random.Random, index: int, at: int, kinds: str, floors: dict[bytes, int]) -> bytes:
    """What some client could have named its call; the floors of the batch rise with it."""
    if chance.random() < 0.3:
        return NO_KEY
    near = chance.randrange(max(1, index - 6), index + 3) * 8 + at  # some are used again, by the same request or another one
    if kinds == "keys" or (kinds == "both" and chance.random() < 0.5):
        return key_fingerprint("me", str(near))
    session = _session(chance, index)
    floors[session] = max(floors.get(session, 0), near - chance.randrange(10, 120))
    return call_names([(session, near)])[0]


def _repeat_some(
    chance: random.Random,
    keys: list[bytes],
    calls: list[tuple[str, dict[str, Any]]],
    named: dict[bytes, Any],
    floors: dict[bytes, int],
) -> None:
    """Some calls become retries of earlier ones; those that do not may be retried later."""
    for at in range(len(calls)):
        if named and chance.random() < 0.15:
            keys[at], calls[at] = chance.choice(list(named.items())[-30:])
            if len(keys[at]) == NAME_BYTES:
                floors.setdefault(keys[at][:SESSION_BYTES], 0)
        elif any(keys[at]):
            named.setdefault(keys[at], calls[at])


def _session(chance: random.Random, index: int) -> bytes:
    """One of a few that are in use about then; some claim to be made later than they are, and some far too late."""
    period = index // 12
    born = START_MS + 600 * period + chance.choice((0, 0, 300, 300, 500, 5000))
    return key_fingerprint("me", uuid7(born, chance.randrange(2)))


Told = tuple[bytes, list[bytes], list[int], list[int], int]  # what an entry's calls answered, and the digest of its rows


def _told(applied: Applied) -> Told:
    return bytes(applied.statuses), applied.bodies, applied.result_hashes, list(applied.txn_ids), applied.rows_digest


@dataclass(slots=True)
class Way:
    """A state file and the executor on it, which may be closed and opened between two entries."""

    path: Path
    digest_rows: bool = True
    told: dict[int, Told] = field(default_factory=dict)
    state: PartitionState = field(init=False)
    executor: Executor = field(init=False)

    def __post_init__(self) -> None:
        self.open()

    def open(self) -> None:
        """With a policy that is wrong until the next entry says the right one."""
        self.state = PartitionState.open(self.path, partition=0)
        self.executor = Executor(
            self.state, lambda _: db, digest_rows=self.digest_rows, millis_of=lambda txn: txn >> 21, progress=None
        )
        if self.state.position.index == 0:
            txn_id = txn_at(START_MS - 1)
            self.executor.apply_schema(
                index=1, term=1, checksum=7, txn_id=txn_id, change=StatedChange(tuple(db.schema_statements()))
            )

    def take(self, entry: Entry) -> None:
        self.executor.key_policy = entry.policy
        if entry.batch is None:
            self.executor.advance(index=entry.index, term=1, checksum=0)
        else:
            self.told[entry.index] = _told(self.executor.apply(entry.batch))

    def close(self) -> None:
        self.executor.close()
        self.state.close()

    def dump(self) -> dict[str, list[tuple[Any, ...]]]:
        """All tables, in an order that all of them have: that of their keys."""
        rows = self.state.connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        return {str(name): self.state.connection.execute(f'SELECT * FROM "{name}"').fetchall() for (name,) in rows}  # noqa: S608


def run_live(path: Path, log: Sequence[Entry], seed: int) -> Iterator[tuple[Way, Entry]]:
    """As a node does: restarts between, some entries in a group, now and then a batch tried without savepoints, or not."""
    chance = random.Random(seed)
    with closing(Way(path)) as way:
        grouped = False
        for entry in log:
            if chance.random() < 0.1:
                way.executor.end_group()
                way.close()
                way.open()
                grouped = False
            elif chance.random() < 0.1:
                way.executor.end_group() if grouped else way.executor.begin_group()
                grouped = not grouped
            way.executor._savepoint_batches = chance.choice((0, 0, 1, 16))
            way.take(entry)
            if not grouped:
                yield way, entry
        way.executor.end_group()
        yield way, log[-1]


def run_replay(way: Way, log: Sequence[Entry], *, group: int) -> None:
    """As a replay does: from where the state stands, so many entries in a transaction."""
    for entry in log:
        if entry.index <= way.state.position.index:
            continue
        if group and entry.index % group == 0:
            way.executor.end_group()
            way.executor.begin_group()
        way.take(entry)
    way.executor.end_group()


def make_image(way: Way, path: Path) -> None:
    """A copy of the state, as a snapshot takes it."""
    with closing(apsw.Connection(str(path))) as target, target.backup("main", way.state.connection, "main") as backup:
        while not backup.done:
            backup.step(100)


def make_delta(way: Way, since: Any, path: Path) -> None:
    """What changed since that position."""
    changes = way.executor.changes
    assert changes is not None
    parts = changes.since(since)
    assert parts is not None
    changes.cut(way.state.position, keep=(since.index,))
    capture = DeltaCapture(way.state, changes, parts, str(path))
    while not capture.step():
        pass
    assert capture.report().get("error") is None, capture.report()


def with_delta(base: Path, delta: Path, position: Any) -> Path:
    """The image with the delta in it."""
    whole = base.with_suffix(".whole")
    shutil.copyfile(base, whole)
    apply_deltas(str(whole), [str(delta)], position)
    return whole
