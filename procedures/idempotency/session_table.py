"""The client sessions of one partition: which numbers are known, which floors hold, and when a session is forgotten.

Rules for a call of a session, first match wins:

1. the session is unknown, and was made before one that was forgotten: SESSION_EXPIRED, it may be that one;
2. the session is unknown, and there are `sessions_max`: SESSIONS_FULL;
3. its number is not above the floor: SESSION_EXPIRED; its client has said that it knows the outcome;
4. its number is known: the same request gets the stored outcome, another one KEY_REUSED;
5. otherwise it runs, and its result, abort or failure is kept until the floor passes its number.

A session exists from its first call on. Each of its calls brings the floor along, which holds before the batch's calls run. The
node lets no number further above its floor than `session_window`, so no session holds many more outcomes than that.

**On disk** it is a log: a batch writes one row with the outcomes of its calls and the floors of their sessions, and nothing else
is changed for them. A row is needed while it holds an outcome above its session's floor, or is the *latest* to mention a session;
then it is deleted. So the work of a batch does not grow with its sessions. A row that is still needed `SHRINK_AFTER` batches
later is written once more, with what is needed of it.

**Forgetting.** Rows are in the order of the activity clock (`key_table`). One older than `session_idle_ms` is the latest of
sessions that are idle: these are forgotten, and the floor of rule 1 rises above the times at which they were made. Activity never
runs ahead of the transactions' time, so no session younger than `session_idle_ms` is refused by it. One that claims a later time
is *carried over*: its outcomes go, its floor is ENDED, and it is remembered for another while. (One that claims to be made more
than `forget_ms` from now is refused by rule 1: a wrong clock must not fill the table.) A session that its client has ended is
likewise one with the floor ENDED.

Calls on all partitions are judged in a table of their own, as with keys and for the same reason (`key_table`). All of this is a
function of the state and the batch.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import compress
from typing import Final

import google_crc32c

from procedures.idempotency.held_sessions import HeldRow, KnownNumbers, KnownSession, SessionChanges, numbers_of
from procedures.idempotency.known_outcome import (
    Fresh,
    KeyPolicy,
    KnownOutcome,
    Status,
    key_time_ms,
    session_refusal,
)
from procedures.idempotency.packed_outcomes import NumberedCalls, pack_numbered, pick_outcomes
from procedures.idempotency.session_calls import ENDED, split_names
from procedures.idempotency.session_row import (
    SHARED_FIGURES,
    SINGLE_FIGURES,
    Forgotten,
    SessionRow,
    Stage,
    delete_row,
    forgotten_of,
    outcomes_of,
    put_forgotten,
    put_row,
    stored_outcome,
)
from procedures.storage.state import PartitionState

SHRINK_AFTER: Final = 64  # batches after which a row is written once more, if it is still needed
ROWS_PER_BATCH: Final = 4  # that are shrunk, and that are looked at for idle sessions: a batch adds one
_MASK: Final = (1 << 64) - 1
_FACTOR: Final = 0xBF58476D1CE4E5B9
_crc, _crc32 = google_crc32c.value, zlib.crc32


class SessionTable:
    """The sessions of one kind of calls. `shared`: calls on all partitions.

    Attributes:
        digest: of all rows, 0 for a table that was never used.
        written: checksum of the outcomes that the running batch stored.
    """

    def __init__(self, state: PartitionState, *, shared: bool, rows: Iterable[SessionRow]) -> None:
        self._state, self._shared = state, shared
        self._figures = SHARED_FIGURES if shared else SINGLE_FIGURES
        self._sessions: dict[bytes, KnownSession] = {}
        self._rows: dict[int, HeldRow] = {}
        self._new: deque[int] = deque()  # rows of stage NEW, ascending; some may be deleted
        self._aging: deque[int] = deque()  # rows younger than OLD, ascending; some may be deleted
        self._refused: dict[bytes, Status] = {}  # sessions of the running batch that do not come into being
        self._absent: set[bytes] = set()  # sessions that the running batch ends, and that are unknown
        self._forgotten = forgotten_of(state.connection, self._figures)
        self._changes = SessionChanges(self._forgotten)
        self.digest = _forgotten_digest(self._forgotten)
        self._load(rows)

    def __len__(self) -> int:
        return len(self._sessions)

    @property
    def written(self) -> int:
        return self._changes.written

    @property
    def has_rows(self) -> bool:
        """Whether a batch that names no session may change the table: it ages rows, and deletes them."""
        return bool(self._rows)

    def _load(self, rows: Iterable[SessionRow]) -> None:
        loaded = list(rows)
        for row in loaded:
            if row.stage != Stage.OLD:
                self._mention(row)
        for row in loaded:
            self._hold(row, _row_digest(row.idx, row.clock, row.stage, row.pack()), numbers_of(row))
        self.digest &= _MASK

    def _mention(self, row: SessionRow) -> None:
        """The row is the latest that names its sessions."""
        for session, floor in zip(row.sessions, row.floors, strict=True):
            known = self._sessions.get(session)
            if known is None:
                self._sessions[session] = KnownSession(floor, row.idx)
            else:
                known.floor, known.latest = floor, row.idx

    def _hold(self, row: SessionRow, digest: int, numbers: Mapping[bytes, tuple[int, ...]]) -> None:
        """A row of the state, whose sessions are known: their outcomes above the floors, and what it is needed for."""
        uses = 0
        for session, several in numbers.items():
            known = self._sessions.get(session)
            if known is not None and max(several) > known.floor:
                known.add_chunk(row.idx, several)
                uses += 1
        latest = tuple(session for session in row.sessions if self._latest_of(session) == row.idx)
        clock = -1 - row.clock if self._shared else row.clock
        self._rows[row.idx] = HeldRow(clock, digest, uses + len(latest), latest, row.stage)
        self.digest += digest
        if row.stage == Stage.NEW:
            self._new.append(row.idx)
        if row.stage != Stage.OLD:
            self._aging.append(row.idx)

    def _latest_of(self, session: bytes) -> int:
        known = self._sessions.get(session)
        return known.latest if known is not None else 0

    # -- judging ---------------------------------------------------------------------------------------------------------

    def begin_batch(self, floors: Mapping[bytes, int], txn_ms: int, policy: KeyPolicy) -> None:
        """The sessions of a batch, with the floors that its calls brought: which of them may come into being."""
        self._refused, self._absent = {}, set()
        room = policy.sessions_max - len(self._sessions)
        for session, floor in floors.items():
            if session in self._sessions:
                continue
            born = key_time_ms(session) or 0
            if floor == ENDED:
                self._absent.add(session)
            elif born < self._forgotten.born or born > txn_ms + policy.forget_ms:
                self._refused[session] = Status.SESSION_EXPIRED
            elif room <= 0:
                self._refused[session] = Status.SESSIONS_FULL
            else:
                room -= 1

    def runs_plainly(self, names: Sequence[bytes], floors: Mapping[bytes, int]) -> bool:
        """Whether rule 5 holds for every call of the batch that `begin_batch` has begun."""
        if self._refused:
            return False
        sessions, numbers = split_names(names)
        if len(floors) == 1:
            return self._all_new(sessions[0], numbers, floors[sessions[0]])
        # `floors` may name sessions without a call in the batch, which were ended: their number says nothing of repetitions.
        if len(set(sessions)) < len(numbers) and len(set(zip(sessions, numbers, strict=True))) < len(numbers):
            return False
        for session, number in zip(sessions, numbers, strict=True):
            known = self._sessions.get(session)
            if number <= floors[session] or (known is not None and known.has_used(number)):
                return False
        return True

    def _all_new(self, session: bytes, numbers: Sequence[int], floor: int) -> bool:
        known = self._sessions.get(session)
        if len(set(numbers)) != len(numbers):
            return False
        if known is None:
            return min(numbers) > floor
        return min(numbers) > max(floor, known.floor) and not known.knows_any(numbers)

    def judge(
        self, name: bytes, request: int, fresh: Fresh, *, floors: Mapping[bytes, int], former: Callable[[], Iterable[int]]
    ) -> KnownOutcome | None:
        """The answer that rules 1 to 4 give; None: the call runs. `fresh` holds the outcomes of this batch so far."""
        (session,), (number,) = split_names((name,))
        if session in self._refused:
            return session_refusal(self._refused[session])
        known = self._sessions.get(session)
        floor = max(floors[session], known.floor) if known is not None else floors[session]
        if number <= floor:
            return session_refusal(Status.SESSION_EXPIRED)
        found = fresh.get(name)
        if found is None and known is not None and (idx := known.row_of(number)):
            found = stored_outcome(self._state.connection, idx, session, number)
        if found is None:
            return None
        return found if found.request == request or found.request in former() else session_refusal(Status.KEY_REUSED)

    # -- storing ---------------------------------------------------------------------------------------------------------

    def store(
        self,
        index: int,
        calls: NumberedCalls | None,
        *,
        floors: Mapping[bytes, int],
        clock: int,
        txn_ms: int,
        policy: KeyPolicy,
    ) -> None:
        """Writes what a batch brought and forgets what is idle, in the open transaction; `accept` follows its COMMIT."""
        changes = self._changes = SessionChanges(self._forgotten)
        self._age(floors, clock, txn_ms, policy)
        self._drop_passed(floors)
        self._add(index, calls, floors, clock)
        # A row that nothing needs goes; of the others those that are due are written once more.
        for idx, lost in changes.uses.items():
            if lost == self._rows[idx].uses:
                self._delete(idx)
        self._shrink(index)
        for idx, stage in changes.due.items():
            if idx not in changes.deleted:
                self._rewrite(idx, stage)
        if changes.forgotten != self._forgotten:
            put_forgotten(self._state.connection, self._figures, changes.forgotten)
            changes.digest += _forgotten_digest(changes.forgotten) - _forgotten_digest(self._forgotten)

    def _drop_passed(self, floors: Mapping[bytes, int]) -> None:
        uses = self._changes.uses
        for session, floor in floors.items():
            known = self._sessions.get(session)
            if known is not None:
                uses[known.latest] += 1
                if known.chunks and floor > known.floor and (passed := known.passed(floor)):
                    self._drop(session, passed)

    def _drop(self, session: bytes, chunks: list[KnownNumbers]) -> None:
        self._changes.dropped.append((session, chunks))
        for chunk in chunks:
            self._changes.uses[chunk.idx] += 1

    def _add(self, index: int, calls: NumberedCalls | None, floors: Mapping[bytes, int], clock: int) -> None:
        """The row of the batch: every session that it names and that exists, and those that are carried over."""
        changes = self._changes
        mentioned = self._mentioned(floors)
        if not mentioned:
            return
        known = map(self._sessions.get, mentioned)
        after = [f if of is None or f > of.floor else of.floor for f, of in zip(mentioned.values(), known, strict=True)]
        named = tuple(mentioned)
        sessions, numbers = split_names(calls.keys) if calls is not None else ((), ())
        if len(named) == 1:
            ordinals: tuple[int, ...] = (0,) * len(numbers)
        elif sessions == named:  # a call of each
            ordinals = tuple(range(len(named)))
        else:
            places = {session: at for at, session in enumerate(named)}
            ordinals = tuple([places[session] for session in sessions])
        since = -1 - clock if self._shared else clock
        row = changes.row = SessionRow(index, since, Stage.NEW, named, tuple(after), ordinals, numbers)
        packed = pack_numbered(calls) if calls is not None else b""
        put = put_row(self._state.connection, row, packed)
        changes.numbers = numbers_of(row)
        digest = _row_digest(index, since, Stage.NEW, put)
        changes.rewritten[index] = HeldRow(clock, digest, len(changes.numbers) + len(mentioned), row.sessions, Stage.NEW)
        changes.digest += digest
        changes.written = int(_crc(packed)) << 32 | _crc32(packed)

    def _mentioned(self, floors: Mapping[bytes, int]) -> Mapping[bytes, int]:
        """The sessions that the batch's row names, with the floors that they get at least."""
        carried = self._changes.carried
        if not self._refused and not self._absent and not carried:
            return floors
        mentioned = {s: floor for s, floor in floors.items() if s not in self._refused and s not in self._absent}
        mentioned.update(dict.fromkeys(carried, ENDED))
        return mentioned

    def _shrink(self, index: int) -> None:
        """Rows that are old enough are written once more."""
        for idx in self._new:
            if idx > index - SHRINK_AFTER or self._changes.shrunk == ROWS_PER_BATCH:
                return
            self._changes.shrunk += 1
            if idx in self._rows and self._rows[idx].stage == Stage.NEW:
                self._changes.due.setdefault(idx, Stage.SHRUNK)

    def _age(self, floors: Mapping[bytes, int], clock: int, txn_ms: int, policy: KeyPolicy) -> None:
        """Forgets the sessions that are idle, which the batch does not name; the rows that are their latest are due."""
        changes = self._changes
        for idx in self._aging:
            row = self._rows.get(idx)
            if row is not None and (row.clock + policy.session_idle_ms > clock or len(changes.due) == ROWS_PER_BATCH):
                return
            changes.aged += 1
            if row is None:
                continue
            changes.due[idx] = Stage.OLD
            for session in row.sessions:
                known = self._sessions.get(session)
                if known is not None and known.latest == idx and session not in floors:
                    self._forget(session, known, txn_ms, policy)

    def _forget(self, session: bytes, known: KnownSession, txn_ms: int, policy: KeyPolicy) -> None:
        changes, born = self._changes, key_time_ms(session) or 0
        changes.uses[known.latest] += 1
        self._drop(session, known.chunks)
        if txn_ms < born + policy.session_idle_ms:
            changes.carried.append(session)
        else:
            changes.ended.append(session)
            changes.forgotten = Forgotten(max(changes.forgotten.born, born + 1))

    def _rewrite(self, idx: int, stage: Stage) -> None:
        """The row with what is needed of it at this point of the batch, or no row."""
        changes, held = self._changes, self._rows[idx]
        gone = set(changes.ended) | set(changes.carried)
        named = {} if changes.row is None else dict.fromkeys(changes.row.sessions)
        row, outcomes = outcomes_of(self._state.connection, idx)
        latest = [s for s in held.sessions if self._latest_of(s) == idx and s not in gone and s not in named]
        dropped = {(session, chunk.idx) for session, chunks in changes.dropped for chunk in chunks}
        alive = {s for s in set(row.sessions) if s not in gone and (s, idx) not in dropped and self._holds(s, idx)}
        keep = [row.sessions[ordinal] in alive for ordinal in row.ordinals]
        if not latest and not any(keep):
            self._delete(idx)
            return
        positions = list(compress(range(len(keep)), keep))
        mentioned = dict.fromkeys([*latest, *(row.sessions[row.ordinals[at]] for at in positions)])
        places = {session: at for at, session in enumerate(mentioned)}
        floors = dict(zip(row.sessions, row.floors, strict=True))
        left = SessionRow(
            idx,
            row.clock,
            stage,
            tuple(mentioned),
            tuple([floors[session] for session in mentioned]),
            tuple([places[row.sessions[row.ordinals[at]]] for at in positions]),
            tuple([row.numbers[at] for at in positions]),
        )
        calls = put_row(self._state.connection, left, pick_outcomes(outcomes, positions))
        digest = _row_digest(idx, row.clock, stage, calls)
        changes.rewritten[idx] = HeldRow(held.clock, digest, held.uses, tuple(latest), stage)
        changes.digest += digest - held.digest

    def _holds(self, session: bytes, idx: int) -> bool:
        known = self._sessions.get(session)
        return known is not None and any(chunk.idx == idx for chunk in known.chunks)

    def _delete(self, idx: int) -> None:
        delete_row(self._state.connection, idx)
        self._changes.deleted.add(idx)
        self._changes.digest -= self._rows[idx].digest

    def accept(self) -> None:
        """The transaction of `store` is committed."""
        changes = self._changes
        self._take_from(self._aging, changes.aged)
        self._take_from(self._new, changes.shrunk)
        for session, chunks in changes.dropped:
            self._sessions[session].drop(chunks)
        for session in changes.ended:
            del self._sessions[session]
        self._rows.update(changes.rewritten)
        for idx, lost in changes.uses.items():
            self._rows[idx].uses -= lost
        for idx in changes.deleted:
            del self._rows[idx]
        if changes.row is not None:
            self._learn(changes.row)
        self._forgotten = changes.forgotten
        self.digest = (self.digest + changes.digest) & _MASK

    def _take_from(self, queue: deque[int], count: int) -> None:
        for _ in range(count):
            queue.popleft()

    def _learn(self, row: SessionRow) -> None:
        """The row that was added."""
        self._mention(row)
        for session, numbers in self._changes.numbers.items():
            self._sessions[session].add_chunk(row.idx, numbers)
        self._new.append(row.idx)
        self._aging.append(row.idx)


def _row_digest(idx: int, clock: int, stage: int, calls: bytes) -> int:
    return (int(_crc(calls)) << 32 | _crc32(calls)) + (idx * 5 + clock * 3 + stage + 1) * _FACTOR


def _forgotten_digest(forgotten: Forgotten) -> int:
    return forgotten.born * _FACTOR & _MASK
