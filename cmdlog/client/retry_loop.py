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
from cmdlog.client.session import CallName, CallNames
from cmdlog.errors import CmdlogError, SessionExpired

ATTEMPT_S_MIN: Final = 0.001  # a time-out of 0 would mean none
READY_POLL_S: Final = 0.1
WORTH_ASKING: Final = frozenset((Fate.REFUSED, Fate.BUSY, Fate.UNKNOWN))

Clock = Callable[[], float]
Chance = Callable[[], float]


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
    names: CallNames,
    renames: bool = False,
) -> Steps:
    """Returns the JSON of the answer. `renames`: the call's name was made here, and may be made again. Raises: CmdlogError."""
    began = clock()
    deadline, refused_until = began + timeout_s, began + min(timeout_s, policy.refused_s)
    tries = Tries(began=servers.mark(), mark=servers.mark())
    known = True  # a caller who leaves has no name to ask by
    try:
        while True:
            attempt = yield send(
                ask, policy, left_s=deadline - clock(), patience_s=patience_s(tries, policy, several=servers.several)
            )
            assert attempt is not None
            found = judge(attempt)
            if not isinstance(found, AttemptFailure):
                return found
            if renames and not tries.uncertain and (name := better_name(ask, found, names)):
                ask, renames = ask.under(name), False
                continue
            fresh = found.elsewhere and servers.has_fresh(tries.mark)
            left_s = (refused_until if servers.only_refused else deadline) - clock()
            step = decide(found, tries, ask.effect, policy, left_s=left_s, chance=chance(), fresh=fresh)
            if isinstance(step, CmdlogError):
                known = is_known(found, tries, step)
                step.idempotency_key = key_to_ask_by(ask, known=known)
                raise servers.name_failures(step, tries.began)
            if not fresh:
                yield Pause(step)
                tries.mark = servers.mark()
    finally:
        if ask.key is not None:
            names.finish(ask.key, known=known)


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


def better_name(ask: Ask, failure: AttemptFailure, names: CallNames) -> CallName | None:
    """A name for a call that was refused as expired before any doubt: our clock is wrong, or the session has ended."""
    return names.better(ask.key, failure.date) if ask.key is not None and isinstance(failure.error, SessionExpired) else None


def is_known(failure: AttemptFailure, tries: Tries, error: CmdlogError) -> bool:
    """Whether the error that a call ends with leaves no doubt whether it was executed."""
    return not tries.uncertain or (failure.fate is Fate.DECIDED and error is failure.error)


def key_to_ask_by(ask: Ask, *, known: bool) -> str | None:
    """With what a call can be repeated. A number in a session whose outcome is known is over: the next call gets another one."""
    if ask.key is None or isinstance(ask.key, str):
        return ask.key
    return None if known else str(ask.key)
