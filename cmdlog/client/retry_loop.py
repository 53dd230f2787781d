"""One request from its first attempt to its end, as a conversation: the steps go out, their results come in.

One rule: no clock, chance, socket or sleep here. A driver carries out each step, in a thread or in a task, and sends back its
result; so the synchronous and the asynchronous client are the same client.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.client.request import READY, Ask, Effect
from cmdlog.client.response import Attempt, AttemptFailure, Fate, judge
from cmdlog.client.retry import RetryPolicy, Tries, decide, patience_s
from cmdlog.client.server_set import ServerSet
from cmdlog.errors import CmdlogError, SessionExpired

ATTEMPT_S_MIN: Final = 0.001  # a time-out of 0 would mean none
READY_POLL_S: Final = 0.1
WORTH_ASKING: Final = frozenset((Fate.REFUSED, Fate.BUSY, Fate.UNKNOWN))

Clock = Callable[[], float]
Chance = Callable[[], float]
Rekey = Callable[[str, str], str | None]
"""A key and the server's `Date` in, a better key out; None: the key was not at fault."""


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


def exchange(
    ask: Ask,
    policy: RetryPolicy,
    *,
    servers: ServerSet,
    timeout_s: float,
    clock: Clock,
    chance: Chance,
    rekey: Rekey = lambda _key, _date: None,
) -> Steps:
    """Returns the JSON of the answer. Raises: CmdlogError."""
    deadline = clock() + timeout_s
    tries = Tries(began=servers.mark(), mark=servers.mark())
    while True:
        attempt = yield send(
            ask, policy, left_s=deadline - clock(), patience_s=patience_s(tries, policy, several=servers.several)
        )
        assert attempt is not None
        found = judge(attempt)
        if not isinstance(found, AttemptFailure):
            return found
        if not tries.uncertain and (key := better_key(ask, found, rekey)):
            ask, rekey = ask.under(key), lambda _key, _date: None
            continue
        fresh = found.elsewhere and servers.has_fresh(tries.mark)
        step = decide(found, tries, ask.effect, policy, left_s=deadline - clock(), chance=chance(), fresh=fresh)
        if isinstance(step, CmdlogError):
            step.idempotency_key = ask.key
            raise servers.name_failures(step, tries.began)
        if not fresh:
            yield Pause(step)
            tries.mark = servers.mark()


def await_ready(policy: RetryPolicy, *, servers: ServerSet, timeout_s: float, clock: Clock) -> Steps:
    """Asks until a server serves calls. Returns whether one does. Raises: CmdlogError, when asking again is pointless."""
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


def better_key(ask: Ask, failure: AttemptFailure, rekey: Rekey) -> str | None:
    """A key for a call whose fresh key was refused as expired: our clock is behind, and nothing was executed under that key."""
    return rekey(ask.key, failure.date) if ask.key is not None and isinstance(failure.error, SessionExpired) else None
