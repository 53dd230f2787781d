"""When a request is sent again, and what is reported when it is not. Pure: time left and chance are arguments.

One rule: nothing is ever executed twice. What may have been executed is sent again only if a second execution does no harm.

| fate of the attempt | reads | keyed | once |
|---|---|---|---|
| DECIDED, REJECTED, BROKEN | no | no | no |
| REFUSED | again | again | again |
| BUSY, UNKNOWN | again | again | no |

A deploy that takes longer than the patience with one attempt is under way when it is asked for again: that is waited for, too.

And nothing is claimed that is not known: once an attempt may have been executed, only an outcome that the key's table gives
settles the call. A rejection, a refusal or `session_expired` after it is reported as `OutcomeUnknown`.

Waits grow by powers of two to a cap, and chance takes a share of each ("full jitter"), so that callers who failed together do not
come back together. `Retry-After` is waited for in full, with the jitter on top. Of several servers each is asked once between two
waits (`server_set.py`); what one of them refuses for its certificate may go to another.

`exchange` is one request from its first attempt to its end, as a conversation: steps go out, their results come in. A driver
carries out each step, in a thread or in a task, so the synchronous and the asynchronous client are the same client.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.client.request import READY, Ask, Effect
from cmdlog.client.response import Attempt, AttemptFailure, Fate, judge
from cmdlog.client.server_set import ServerSet
from cmdlog.client.session import CallNames
from cmdlog.errors import CmdlogError, OutcomeUnknown, SessionExpired, Unreachable

DOUBLINGS_MAX: Final = 30  # of the wait; any cap is reached by then
UNDER_WAY: Final = frozenset(("deploy_under_way",))  # after an attempt without an answer it is that attempt, which takes long


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How patient a client is with one call; the total is the client's `timeout_s`."""

    connect_s: float = 5.0  # for a connection
    attempt_s: float = 20.0  # for an answer; a call that takes longer is asked for again, under its key
    backoff_first_s: float = 0.05
    backoff_max_s: float = 2.0
    attempts_max: int = 100  # of several servers: rounds
    failover_s: float = 3.0  # of several servers: silence of one before another is asked; doubles for a call that met silence
    refused_s: float = math.inf  # of a client all of whose attempts were refused a connection: nobody listens there

    def __post_init__(self) -> None:
        for name in ("connect_s", "attempt_s", "backoff_first_s", "backoff_max_s", "attempts_max", "failover_s", "refused_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be more than 0")


@dataclass(slots=True)
class Tries:
    """What happened to one call so far. The marks are those of `server_set.ServerSet`."""

    count: int = 0  # failures that were followed by a wait
    uncertain: bool = False  # an attempt may have been executed
    silences: int = 0
    began: int = 0  # mark of its beginning
    mark: int = 0  # of its last wait


Again = float
"""Seconds to wait before the next attempt."""


def decide(
    failure: AttemptFailure,
    tries: Tries,
    effect: Effect,
    policy: RetryPolicy,
    *,
    left_s: float,
    chance: float,
    fresh: bool = False,
) -> Again | CmdlogError:
    """The wait before the next attempt, or the error to raise. Counts the attempt in `tries`.

    `fresh`: the next attempt goes to a server that has not failed meanwhile, so it does not wait.
    """
    was_uncertain = tries.uncertain
    fresh = fresh and failure.elsewhere
    # What is under way may be our own earlier attempt, a deploy: it is asked for until the time is up, however often.
    is_ours = was_uncertain and effect is Effect.KEYED and failure.error.code in UNDER_WAY
    tries.count += not fresh
    tries.silences += failure.silent
    tries.uncertain = was_uncertain or (effect is not Effect.READS and failure.fate in (Fate.UNKNOWN, Fate.BROKEN))
    if is_ours or (_may_go_again(failure.fate, effect, fresh=fresh) and tries.count < policy.attempts_max):
        wait = 0.0 if fresh else pause(tries.count, policy, chance=chance) + (failure.retry_after_s or 0.0)
        if wait < left_s:
            return wait
    return truth(failure, effect, was_uncertain=was_uncertain)


def patience_s(tries: Tries, policy: RetryPolicy, *, several: bool) -> float:
    """How long an attempt may be silent. A call that takes long gets its time, also if all servers are asked in turn."""
    if not several:
        return policy.attempt_s
    return min(policy.attempt_s, policy.failover_s * (1 << min(tries.silences, DOUBLINGS_MAX)))


def pause(count: int, policy: RetryPolicy, *, chance: float) -> Again:
    """The wait after attempt `count`, from 1. `chance` is in [0, 1)."""
    return chance * min(policy.backoff_max_s, policy.backoff_first_s * (1 << min(count - 1, DOUBLINGS_MAX)))


def _may_go_again(fate: Fate, effect: Effect, *, fresh: bool) -> bool:
    if fate is Fate.REFUSED or (fate is Fate.REJECTED and fresh):  # that one server has a bad certificate says nothing of another
        return True
    return fate in (Fate.BUSY, Fate.UNKNOWN) and effect is not Effect.ONCE


def truth(failure: AttemptFailure, effect: Effect, *, was_uncertain: bool) -> CmdlogError:
    """The error that claims no more than is known."""
    error = failure.error
    if effect is Effect.READS:
        return _blamed(Unreachable(f"no answer: {error}"), error) if isinstance(error, OutcomeUnknown) else error
    if not was_uncertain or isinstance(error, OutcomeUnknown):
        return error
    if failure.fate is Fate.DECIDED and not isinstance(error, SessionExpired):
        return error
    told = OutcomeUnknown(f"an earlier attempt may have been executed, and then: {error}", retry_after_s=error.retry_after_s)
    return _blamed(told, error)


def _blamed(error: CmdlogError, cause: CmdlogError) -> CmdlogError:
    error.__cause__ = cause
    return error


Clock = Callable[[], float]
Chance = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryWorld:
    """What all calls of a client share."""

    policy: RetryPolicy
    servers: ServerSet
    names: CallNames
    clock: Clock
    chance: Chance


@dataclass(slots=True, kw_only=True)
class CallTries(Tries):
    """A call that is sent until it is settled, alone or as a line of a batch."""

    ask: Ask
    renames: bool  # its name was made here, and may be made again
    hurries: bool = False  # its next attempt does not wait
    known: bool = True  # whether it was executed; a caller who leaves has no name to ask by

    def after(self, failure: AttemptFailure, world: RetryWorld, *, left_s: float) -> Again | CmdlogError:
        """The wait before the next attempt, or what to report.

        A call that was refused as expired before any doubt goes again under another name, once: our clock is wrong, or the
        session has ended.
        """
        key = self.ask.key
        if key is not None and self.renames and not self.uncertain and isinstance(failure.error, SessionExpired):
            self.renames = False
            if (name := world.names.better(key, failure.date)) is not None:
                self.ask, self.hurries = self.ask.under(name), True
                return 0.0
        self.hurries = failure.elsewhere and world.servers.has_fresh(self.mark)
        step = decide(failure, self, self.ask.effect, world.policy, left_s=left_s, chance=world.chance(), fresh=self.hurries)
        if not isinstance(step, CmdlogError):
            return step
        self.known = not self.uncertain or (failure.fate is Fate.DECIDED and step is failure.error)
        # A number in a session whose outcome is known is over: the next call gets another one.
        step.idempotency_key = key if isinstance(key, str | None) else None if self.known else str(key)
        return world.servers.name_failures(step, self.began)


ATTEMPT_S_MIN: Final = 0.001  # a time-out of 0 would mean none
READY_POLL_S: Final = 0.1
WORTH_ASKING: Final = frozenset((Fate.REFUSED, Fate.BUSY, Fate.UNKNOWN))


@dataclass(frozen=True, slots=True)
class SendAttempt:
    """Make an attempt and send back its result."""

    ask: Ask
    connect_s: float
    attempt_s: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


Steps = Generator[SendAttempt | Pause, Attempt | None, Any]


def exchange(ask: Ask, world: RetryWorld, *, timeout_s: float, renames: bool = False) -> Steps:
    """Returns the JSON of the answer. `renames`: the call's name was made here, and may be made again. Raises: CmdlogError."""
    policy, servers, clock = world.policy, world.servers, world.clock
    began = clock()
    deadline, refused_until = began + timeout_s, began + min(timeout_s, policy.refused_s)
    call = CallTries(ask=ask, renames=renames, began=servers.mark(), mark=servers.mark())
    try:
        while True:
            attempt = yield send(
                call.ask, policy, left_s=deadline - clock(), patience_s=patience_s(call, policy, several=servers.several)
            )
            assert attempt is not None
            found = judge(attempt)
            if not isinstance(found, AttemptFailure):
                return found
            left_s = (refused_until if servers.only_refused else deadline) - clock()
            step = call.after(found, world, left_s=left_s)
            # Over; again at once, by a server that has not failed or under another name; or again after a wait.
            if isinstance(step, CmdlogError):
                raise step
            if not call.hurries:
                yield Pause(step)
                call.mark = servers.mark()
    finally:
        if call.ask.key is not None:
            world.names.finish(call.ask.key, known=call.known)


def await_ready(world: RetryWorld, *, timeout_s: float) -> Steps:
    """Asks until a server serves calls. Returns whether one does. Raises: CmdlogError, when asking again is pointless."""
    policy, servers, clock = world.policy, world.servers, world.clock
    deadline = clock() + timeout_s
    mark = servers.mark()
    while True:
        left_s = max(deadline - clock(), READY_POLL_S)
        attempt = yield send(READY, policy, left_s=left_s, patience_s=patience_s(Tries(), policy, several=servers.several))
        assert attempt is not None
        found = judge(attempt)
        if not isinstance(found, AttemptFailure):
            return True
        if found.fate not in WORTH_ASKING:
            raise found.error
        if found.elsewhere and servers.has_fresh(mark):
            continue
        if clock() + READY_POLL_S > deadline:
            return False
        yield Pause(READY_POLL_S)
        mark = servers.mark()


def send(ask: Ask, policy: RetryPolicy, *, left_s: float, patience_s: float) -> SendAttempt:
    """The next attempt, with no more time than is left. One that no other may follow gets all of it."""
    left_s = max(left_s, ATTEMPT_S_MIN)
    attempt_s = left_s if ask.effect is Effect.ONCE else min(patience_s, left_s)
    return SendAttempt(ask, min(policy.connect_s, patience_s, left_s), attempt_s)
