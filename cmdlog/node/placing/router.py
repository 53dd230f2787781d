"""From a call with bound parameters to its place in a stream: partition, size, idempotency key, promise of durability.

One rule: a call is either refused with nothing logged, or its `done` is called exactly once.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from cmdlog.node.outcome import (
    CallOutcome,
    CallRefused,
    CallTooLarge,
    CodeChanged,
    CombinedReplies,
    Done,
    Durability,
    Reply,
    UnknownOutcome,
)
from cmdlog.node.placing.key_owners import KeyOwners
from cmdlog.node.placing.session_owners import EVERYWHERE, EXPIRED, FULL
from cmdlog.node.sequencing.flight import CallRow
from cmdlog.node.sequencing.sequencer import Sequencer
from cmdlog.node.settings import Settings
from cmdlog.node.slot_map import Route, SlotMap, follow_route, make_routes
from cmdlog.node.telemetry.stage_timings import StageTimings
from cmdlog.wal.format.batch import NO_KEY
from procedures import Database
from procedures.declaration.hash_slots import slot_of
from procedures.idempotency.known_outcome import KEY_BYTES, REFUSALS, SESSION_REFUSALS, Status
from procedures.idempotency.session_calls import SENT
from procedures.wire.sent_request import call_text

_SHARE_TAKEN: Final = {
    single: orjson.dumps({"code": "sessions_full", "message": f"this credential holds its share of the {what}; {todo}"})
    for single, what, todo in (
        (True, "idempotency keys", "try again when some of its keys have expired"),
        (False, "sessions", "end some, or try again when some have been idle"),
    )
}
_NOTHING_STORED: Final = (Status.SESSION_EXPIRED, Status.SESSIONS_FULL)

Placed = tuple[Route, list[Any], bytes, Done, Durability | None]  # None: as the node's setting says
Encoded = tuple[Route, int, bytes, bytes, Done, Durability | None]
"""Route, partition (-1 for all), parameters as a batch takes them, key, done, durability: a call as another node has bound it."""


class BoundCode:
    """What calls are bound to now: the procedures of one version of the code. Any thread."""

    def __init__(self, db: Database, meter: StageTimings, *, catalog: int) -> None:
        """`catalog`: the version; 0 where the calls of every version run."""
        self.db, self._meter = db, meter
        self.routes: Mapping[str, Route] = make_routes(db, catalog)

    def bind(self, db: Database, catalog: int = 0) -> None:
        """Calls are bound to this code from now on."""
        self._meter.serve_procedures([procedure.name for procedure in db.procedure_list])
        self.db, self.routes = db, make_routes(db, catalog)


class Router:
    """Thread-safe, as the sequencer and the keys are."""

    def __init__(
        self,
        settings: Settings,
        sequencer: Sequencer,
        keys: KeyOwners,
        meter: StageTimings,
        bound: BoundCode,
    ) -> None:
        """`bound`: the code that calls are bound to now."""
        self._bound, self.keys = bound, keys
        self.slots = SlotMap(settings.partitions)
        self._sequencer, self._keys, self._meter = sequencer, keys, meter
        self._partitions, self._call_bytes_max = settings.partitions, settings.call_bytes_max
        self._lax = settings.durability == "async"
        self._idents = itertools.count(1)

    def place(self, route: Route, params: list[Any], key: bytes, done: Done, durability: Durability | None) -> int | None:
        """Places one call; its partition, None for all of them. Raises: CallRefused."""
        at = route.procedure.partition_at
        partition = -1 if at is None else self.slots.partition_by_slot[slot_of(params[at])]
        body = orjson.dumps(params) if type(params) is list else encode_sent(route, params, key)
        self._place_bound((route, partition, body, key, done, durability))
        return None if route.everywhere else partition

    def place_many(self, calls: Sequence[Placed]) -> list[int | None]:
        """Places calls in order. A refusal of all of them raises Refused; that of one is given to its `done`."""
        by_slot = self.slots.partition_by_slot
        texts = [
            orjson.dumps(params) if type(params) is list else encode_sent(route, params, key)
            for route, params, key, _, _ in calls
        ]
        encoded = [
            (route, -1 if (at := route.procedure.partition_at) is None else by_slot[slot_of(params[at])], text, key, done, lax)
            for (route, params, key, done, lax), text in zip(calls, texts, strict=True)
        ]
        self.place_encoded(encoded)
        return [None if call[1] < 0 else call[1] for call in encoded]

    def place_encoded(self, calls: Sequence[Encoded]) -> None:
        """`place_many`, of calls whose parameters are encoded."""
        owners = self._claim_together(calls)
        if owners and owners == [call[1] for call in calls] and self._add_together(calls):
            return
        given: list[Encoded] = []
        plain: list[CallRow] = []  # the same as the sequencer takes them
        refused_calls: list[tuple[Done, CallRefused]] = []
        elsewhere: list[tuple[Route, Done, CallOutcome]] = []
        limit, lax_default, claim, settling = self._call_bytes_max, self._lax, self._keys.claim, self._settling
        for at, call in enumerate(calls):
            route, partition, body, key, done, durability = call
            if route.everywhere or route.read_only:
                if plain:
                    self._add_plain(given, plain, first=len(plain) + len(refused_calls) + len(elsewhere) == at)
                    given, plain = [], []
                self._place_or_reply(call)
            elif len(body) > limit:
                refused_calls.append((done, self._too_large(body)))
            elif key and (owner := owners[at] if owners else claim(key, partition)) != partition:
                elsewhere.append((route, done, _unclaimed(key, owner)))
            else:
                lax = lax_default if durability is None else durability == "async"
                given.append(call)
                plain.append((partition, route.number, body, key or NO_KEY, done if owners else settling(key, done), lax))
        if plain:
            self._add_plain(given, plain, first=len(plain) + len(refused_calls) + len(elsewhere) == len(calls))
        for done, refusal in refused_calls:
            done(refusal)
        for route, done, outcome in elsewhere:
            self._answer_here(route, done, outcome)

    def _claim_together(self, calls: Sequence[Encoded]) -> list[int]:
        """The owner of each name, if these calls are of the usual kind; else [], and each needs a look.

        Usual are logged calls on one partition each, bound to one version of the code, all without names or all of sessions.
        Without a name its partition owns a call.
        """
        keys, partitions = [call[3] for call in calls], [call[1] for call in calls]
        kinds = {id(call[0]): call[0] for call in calls}.values()
        if len({route.catalog for route in kinds}) != 1 or any(route.everywhere or route.read_only for route in kinds):
            return []
        if max([len(call[2]) for call in calls]) > self._call_bytes_max:
            return []
        if not any(keys):
            return partitions
        return self._keys.sessions.claim_all(keys, partitions) if set(map(len, keys)) == {SENT.size} else []

    def _add_together(self, calls: Sequence[Encoded]) -> bool:
        """Places calls of the usual kind, which own their names; False where other code runs by now. Raises: CallRefused."""
        lax = self._lax
        rows = [
            (partition, route.number, body, key or NO_KEY, done, lax if durability is None else durability == "async")
            for route, partition, body, key, done, durability in calls
        ]
        try:
            self._sequencer.intake.add_many(rows, catalog=calls[0][0].catalog)
        except CodeChanged:
            return False
        return True

    def end_session(self, session: bytes) -> None:
        """Its client has ended it: a later call under it is refused, and what is kept of it may go."""
        self._sequencer.intake.end_session(session, self._keys.sessions.end(session))

    def _place_bound(self, call: Encoded) -> None:
        """Places one call; one of replaced code is bound to the code that runs. Raises: CallRefused."""
        while True:
            route, partition, body, key, done, durability = call
            lax = self._lax if durability is None else durability == "async"
            try:
                if route.everywhere:
                    return self._place_everywhere(route, body, key, self._counted(route, done), lax=lax)
                if route.read_only:
                    return self._sequencer.reads.place(
                        partition, next(self._idents), _read_of(route, body), done, procedure=route.number, lax=lax
                    )
                if len(body) > self._call_bytes_max:
                    raise self._too_large(body)
                if not key:
                    return self._sequencer.intake.add(partition, route.number, body, NO_KEY, done, lax=lax, catalog=route.catalog)
                return self._place_named(call, lax=lax)
            except CodeChanged:
                call = self._rebound(call)

    def _rebound(self, call: Encoded) -> Encoded:
        """The call, bound to the code that runs. Raises: CodeChanged, where that declares it differently."""
        route = follow_route(call[0], self._bound.routes)
        if route is None:
            raise CodeChanged(f"procedure {call[0].name!r} was deployed with another declaration; look at it and call again")
        return (route, *call[1:])

    def _place_named(self, call: Encoded, *, lax: bool) -> None:
        """Places a call that may be a repetition, if its name is its partition's. Raises: CallRefused."""
        route, partition, body, key, done, _ = call
        if (owner := self._keys.claim(key, partition)) != partition:
            self._answer_here(route, done, _unclaimed(key, owner))
            return
        settled = self._settling(key, done)
        try:
            self._sequencer.intake.add(partition, route.number, body, key, settled, lax=lax, catalog=route.catalog)
        except CallRefused:
            self._unclaim(key)
            raise

    def place_stale(self, route: Route, params: list[Any], done: Done) -> int | None:
        """Places a read of what this node has run, leader or not; its partition, None for all of them. Raises: CallRefused.

        `done` gets an outcome with `as_of`. Each partition is read at its own place: at a common one it might wait for others.
        """
        calls, place = _read_of(route, orjson.dumps(params)), self._sequencer.reads.place
        if not route.everywhere:
            partition = self.slots.partition_of(route.procedure, params)
            dated = _dated(partition, done)
            place(partition, next(self._idents), calls, dated, procedure=route.number, lax=True, stale=True)
            return partition
        for partition, slot in enumerate(CombinedReplies(self._partitions, self._counted(route, done), read=True).slots()):
            try:
                place(partition, next(self._idents), calls, _dated(partition, slot), procedure=-1, lax=True, stale=True)
            except CallRefused as refusal:
                slot(refusal)
        return None

    def _add_plain(self, given: Sequence[Encoded], calls: Sequence[CallRow], *, first: bool) -> None:
        """Places calls, all or none. Raises: CallRefused when they are the `first`; else each `done` is called with it.

        Where some are bound to replaced code, each is placed by itself.
        """
        catalogs = {call[0].catalog for call in given}
        try:
            if len(catalogs) > 1:
                raise CodeChanged
            self._sequencer.intake.add_many(calls, catalog=catalogs.pop())
        except CodeChanged:
            for each, call in zip(given, calls, strict=True):
                self._unclaim(call[3])
                self._place_or_reply(each)
        except CallRefused as refusal:
            if first:
                for call in calls:
                    self._unclaim(call[3])
                raise
            for call in calls:
                call[4](refusal.again())

    def _place_or_reply(self, call: Encoded) -> None:
        try:
            self._place_bound(call)
        except CallRefused as refusal:
            call[4](refusal)

    def _place_everywhere(self, route: Route, body: bytes, key: bytes, done: Done, *, lax: bool) -> None:
        count = self._partitions
        if route.read_only:
            idents = [next(self._idents) for _ in range(count)]
            self._sequencer.reads.place_everywhere(
                idents, _read_of(route, body), CombinedReplies(count, done, read=True).slots(), lax=lax
            )
            return
        if key and (owner := self._keys.claim(key, EVERYWHERE)) != EVERYWHERE:
            done(_unclaimed(key, owner))
            return
        try:
            slots = CombinedReplies(count, self._settling(key, done), each=route.procedure.each).slots()
            self._sequencer.intake.add_everywhere(route.number, body, key or NO_KEY, slots, lax=lax, catalog=route.catalog)
        except CallRefused:
            self._unclaim(key)
            raise

    def _settling(self, key: bytes, done: Done) -> Done:
        """Tells the index of keys what became of the call."""
        if len(key) != KEY_BYTES:
            return done

        def settle_key(reply: Reply) -> None:
            stored = reply.status not in _NOTHING_STORED if isinstance(reply, CallOutcome) else isinstance(reply, UnknownOutcome)
            self._keys.release_key(key, stored=stored)
            done(reply)

        return settle_key

    def _unclaim(self, key: bytes) -> None:
        """The call is not placed: nothing of it will be stored."""
        if len(key) == KEY_BYTES and key != NO_KEY:
            self._keys.release_key(key, stored=False)

    def _counted(self, route: Route, done: Done) -> Done:
        """Counts the one outcome that the partitions' outcomes make."""

        def count(reply: Reply) -> None:
            if isinstance(reply, CallOutcome):
                self._meter.count((route.number,), (reply.status,))
            elif isinstance(reply, UnknownOutcome):
                self._meter.unknown((route.number,))
            done(reply)

        return count

    def _answer_here(self, route: Route, done: Done, outcome: CallOutcome) -> None:
        self._meter.count((route.number,), (outcome.status,))
        done(outcome)

    def _too_large(self, body: bytes) -> CallTooLarge:
        return CallTooLarge(f"the parameters take {len(body)} bytes, limit call_bytes_max={self._call_bytes_max}")


def encode_sent(route: Route, params: list[Any], key: bytes) -> bytes:
    """Parameters whose caller sent something else, as a batch takes them: with a hash of that, where the call has a name."""
    return call_text(params) if key and not route.read_only else orjson.dumps(params)


def _unclaimed(key: bytes, owner: int) -> CallOutcome:
    """The answer to a call whose name belongs to another one, or to none."""
    single = len(key) == KEY_BYTES
    if owner == FULL:
        return CallOutcome(Status.SESSIONS_FULL, 0, _SHARE_TAKEN[single])
    status = Status.SESSION_EXPIRED if owner == EXPIRED else Status.KEY_REUSED
    return CallOutcome(status, 0, (REFUSALS if single else SESSION_REFUSALS)[status])


def _dated(partition: int, done: Done) -> Done:
    """Adds to an outcome as of what it was read."""

    def date_outcome(reply: Reply) -> None:
        done(reply._replace(as_of={partition: reply.txn_id}) if isinstance(reply, CallOutcome) else reply)

    return date_outcome


def _read_of(route: Route, body: bytes) -> bytes:
    """A read as its site gets it: a list of one call, with the version of its code."""
    return b"[[%d,%b,%d]]" % (route.number, body, route.catalog)
