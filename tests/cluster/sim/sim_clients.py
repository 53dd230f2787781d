"""Clients of a simulated cluster: appends and reads, with names and without, each retried at any node while nothing is known.

One rule: what they write down is what they know. A request may arrive late, or never, and so may its answer; a client that has
lost patience asks another node under the same name, or leaves the outcome unknown. Half of the clients name their calls by keys,
half by the numbers of the product's own client sessions.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from cmdlog.api.gate.session_numbers import named_call
from cmdlog.client.session import WINDOW, ClientSessions, NumberedCall
from cmdlog.node.outcome import CallOutcome, CallRefused, Reply, UnknownOutcome
from procedures.idempotency.known_outcome import Status, key_fingerprint
from tests.cluster.histories.list_history import Operation
from tests.cluster.lists_app import list_names
from tests.cluster.sim.list_sites import ROUTES, SKIPPED
from tests.cluster.sim.sim_member import PARTITIONS

if TYPE_CHECKING:
    from tests.cluster.sim.sim_cluster import SimCluster

LISTS: Final = tuple(list_names(PARTITIONS))
PATIENCE_TICKS: Final = 25
BEGAN_S: Final = 1_767_225_600.0  # when the clients' sessions are made
SCOPE: Final = "sim"


@dataclass(slots=True)
class Attempt:
    """One request of an operation, at one node."""

    operation: Operation
    node: int
    known: str = ""  # "refused", "unknown", "done"


@dataclass(slots=True)
class Asked:
    """An operation under way."""

    operation: Operation
    procedure: str
    params: list[Any]
    name: bytes | NumberedCall  # by which a retry is known
    attempts: list[Attempt] = field(default_factory=list)
    asked_at: int = 0  # tick of the last attempt


class SimClient:
    """Has one operation under way at a time."""

    def __init__(self, world: SimCluster, number: int) -> None:
        self.world, self.number = world, number
        self.under_way: Asked | None = None
        self.stopped = False  # begins nothing new
        self.node = 1  # that took its last call
        self._count = itertools.count(1)
        self._sessions = ClientSessions(
            wall=lambda: BEGAN_S + world.ticks / 100,
            clock=lambda: world.ticks / 100,
            entropy=world.rng.randbytes,
            pid=lambda: number,
        )

    def step(self) -> None:
        """Begins something, or loses patience."""
        asked = self.under_way
        if asked is None:
            if not self.stopped:
                self._begin()
        elif all(attempt.known for attempt in asked.attempts) or self.world.ticks - asked.asked_at > PATIENCE_TICKS:
            self._go_on(asked)

    def ask(self, procedure: str, *params: Any, keyed: bool = True) -> Operation:
        """Begins this operation."""
        rng, history = self.world.rng, self.world.history
        route, name = ROUTES[procedure], f"c{self.number}.{next(self._count)}"
        lists = LISTS if route.everywhere else (str(params[0]),)
        operation = history.read(name, *lists) if route.read_only else history.append(name, int(params[-1]), *lists)
        named = self._new_name(name) if keyed and not route.read_only else b""
        self.under_way = Asked(operation, procedure, list(params), named)
        self._send(self.under_way, self.node if rng.random() < 0.7 else rng.choice(sorted(self.world.machines)))
        return operation

    def _new_name(self, operation: str) -> bytes | NumberedCall:
        return self._sessions.new() if self.number % 2 else key_fingerprint(SCOPE, operation)

    def _end(self, asked: Asked, *, known: bool) -> None:
        """The operation is over. `known`: it has an answer, or no request of it can still arrive."""
        self.under_way = None
        if isinstance(asked.name, NumberedCall):
            self._sessions.finish(asked.name, known=known)

    def _begin(self) -> None:
        rng = self.world.rng
        choice, one = rng.random(), rng.choice(LISTS)
        value, keyed = next(self.world.values), rng.random() < 0.8
        if choice < 0.5:
            self.ask("append", one, value, keyed=keyed)
        elif choice < 0.7:
            self.ask("append_all", value, keyed=keyed)
        elif choice < 0.9:
            self.ask("values", one)
        else:
            self.ask("values_of_all")

    def _go_on(self, asked: Asked) -> None:
        """Nothing was refused for good, and nothing is known: once more, elsewhere, where that is safe."""
        rng, operation = self.world.rng, asked.operation
        harmless = all(attempt.known == "refused" for attempt in asked.attempts)
        if (harmless or asked.name) and (rng.random() < 0.85 or self.stopped) and len(asked.attempts) < 40:
            self._send(asked, rng.choice(sorted(self.world.machines)))
            return
        if harmless or operation.value is None:
            self.world.history.refused(operation)
        self._end(asked, known=harmless)

    def _send(self, asked: Asked, node: int) -> None:
        attempt = Attempt(asked.operation, node)
        asked.attempts.append(attempt)
        asked.asked_at = self.world.ticks
        name = asked.name
        sent = name if isinstance(name, bytes) else named_call(SCOPE, name.header().encode(), WINDOW)
        self.world.send_request(node, lambda: self._arrive(asked, attempt, sent), lambda: self._refused(attempt))

    def _refused(self, attempt: Attempt) -> None:
        attempt.known = "refused"

    def _arrive(self, asked: Asked, attempt: Attempt, name: bytes) -> None:
        """The request is at its node."""
        life = self.world.members[attempt.node]

        def done(reply: Reply) -> None:
            self.world.send_answer(life, lambda: self._take(asked, attempt, reply))

        try:
            life.call(ROUTES[asked.procedure], asked.params, name, done)
        except CallRefused as refusal:
            done(refusal)

    def _take(self, asked: Asked, attempt: Attempt, reply: Reply) -> None:
        """An answer arrives; it may be to something that this client has given up."""
        attempt.known = (
            "done" if isinstance(reply, CallOutcome) else "unknown" if isinstance(reply, UnknownOutcome) else "refused"
        )
        self.world.happened[f"answer {attempt.known}"] += 1
        if self.under_way is not asked or not isinstance(reply, CallOutcome):
            return
        operation = asked.operation
        self._end(asked, known=True)
        if reply.status != Status.OK:
            assert reply.body == SKIPPED, f"{operation}: {reply}"
            others = [each for each in asked.attempts if each is not attempt and each.known != "refused"]
            if not others:  # else one of them may be run yet
                self.world.history.refused(operation)
            return
        self.node = attempt.node
        body = orjson.loads(reply.body)
        found = body if isinstance(body, list) and ROUTES[asked.procedure].everywhere else [body]
        merged: dict[str, Any] = {}
        for part in found:
            merged |= part if isinstance(part, dict) else {operation.keys[0]: part}
        if operation.value is None:
            self.world.history.done(operation, {name: merged[name] for name in operation.keys})
        else:
            self.world.history.done(operation, lengths=merged)
