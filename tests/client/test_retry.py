"""The table of retries: nothing is executed twice, and nothing is claimed that is not known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise, product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmdlog.client.request import Ask, Effect, call_ask, read_ask
from cmdlog.client.response import Attempt, AttemptFailure, Fate, Lost, Response, judge
from cmdlog.client.retry import (
    Pause,
    RetryPolicy,
    RetryWorld,
    SendAttempt,
    Tries,
    await_ready,
    decide,
    exchange,
    patience_s,
    pause,
)
from cmdlog.client.server_set import DEFAULT_URL, ServerSet, base_urls
from cmdlog.errors import (
    CallError,
    CmdlogError,
    OutcomeUnknown,
    RequestRefused,
    ServerFault,
    SessionExpired,
    Unavailable,
    Unreachable,
)
from tests.client.renaming import Renaming

POLICY = RetryPolicy()


def world_of(**given: Any) -> RetryWorld:
    """Of a client with one address, whose clock stands still."""
    usual = {
        "policy": POLICY, "servers": ServerSet(base_urls(DEFAULT_URL)), "names": Renaming(), "clock": lambda: 0.0,
        "chance": lambda: 0.5,
    }  # fmt: skip
    return RetryWorld(**{**usual, **given})


AGAIN = {(Fate.REFUSED, effect) for effect in Effect} | set(product((Fate.BUSY, Fate.UNKNOWN), (Effect.READS, Effect.KEYED)))


@pytest.mark.parametrize(("fate", "effect"), list(product(Fate, Effect)))
def test_table_is_followed(fate: Fate, effect: Effect) -> None:
    """Each cell of the table in `retry.py`: again or not, on the first attempt and on a later one."""
    for before in (0, 3):
        step = decide(AttemptFailure(fate, CmdlogError("x")), Tries(before), effect, POLICY, left_s=60.0, chance=0.5)
        assert isinstance(step, float) == ((fate, effect) in AGAIN)


def test_deploy_that_takes_longer_than_an_attempt_is_waited_for() -> None:
    """What is under way then is our own, however often it has been asked for; without an earlier attempt it is another's."""
    under_way = AttemptFailure(Fate.REJECTED, RequestRefused("another deploy is under way", code="deploy_under_way"))
    for effect in Effect:
        assert isinstance(decide(under_way, Tries(), effect, POLICY, left_s=60.0, chance=0.5), RequestRefused)
    for count in (1, 500):
        asked = Tries(count, uncertain=True)
        assert decide(under_way, asked, Effect.KEYED, POLICY, left_s=60.0, chance=0.5) == pause(count + 1, POLICY, chance=0.5)
        assert isinstance(decide(under_way, asked, Effect.KEYED, POLICY, left_s=0.0, chance=0.5), OutcomeUnknown)


@pytest.mark.parametrize(("left_s", "after_s", "count"), [(0.0, None, 0), (1.0, 1.0, 0), (5.0, 60.0, 0), (60.0, None, 99)])
def test_no_wait_is_begun_that_cannot_end_in_time(left_s: float, after_s: float | None, count: int) -> None:
    """When time or attempts are used up, or the server asks for more patience than there is, the error comes at once."""
    failure = AttemptFailure(Fate.REFUSED, Unavailable("full", code="log_full"), after_s)
    step = decide(failure, Tries(count), Effect.KEYED, POLICY, left_s=left_s, chance=0.9)
    assert isinstance(step, Unavailable)
    assert step.code == "log_full"


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 30))
def test_wait_is_jittered_capped_and_at_least_what_the_server_asks(count: int, chance: float, after_s: float | None) -> None:
    """Full jitter below a cap that doubles, on top of `Retry-After`."""
    failure = AttemptFailure(Fate.REFUSED, Unavailable("x"), after_s)
    step = decide(failure, Tries(count - 1), Effect.KEYED, RetryPolicy(attempts_max=1000), left_s=1e9, chance=chance)
    assert isinstance(step, float)
    asked = after_s or 0.0
    assert asked <= step <= asked + min(POLICY.backoff_max_s, POLICY.backoff_first_s * 2.0 ** (count - 1))


def test_wait_grows_to_its_cap() -> None:
    """The longest wait doubles with each attempt until the cap holds it."""
    longest = [pause(count, POLICY, chance=1.0) for count in range(1, 40)]
    assert longest[:3] == [0.05, 0.1, 0.2]
    assert all(a <= b for a, b in pairwise(longest))
    assert longest[-1] == POLICY.backoff_max_s


@pytest.mark.parametrize(
    "name", ["connect_s", "attempt_s", "backoff_first_s", "backoff_max_s", "attempts_max", "failover_s", "refused_s"]
)
def test_policy_without_patience_is_refused(name: str) -> None:
    """Nothing and less than nothing are no times."""
    for value in (0, -1):
        with pytest.raises(ValueError, match=name):
            replace(POLICY, **{name: value})


# What can become of one attempt, in a world whose server executes what reaches it, and remembers keys.
EVENTS = (
    "not connected",
    "not ready",
    "busy",
    "lost before execution",
    "lost after execution",
    "gateway, not executed",
    "gateway, executed",
    "unknown, executed",
    "broken, not executed",
    "broken, executed",
    "duplicated, lost",
    "token revoked",
    "procedure gone",
    "forgotten",
    "aborted",
    "answered",
)


SEEN: dict[str, Attempt] = {
    "not connected": Lost(reached=False, reason="refused"),
    "not ready": Response(503, {"code": "not_ready", "status": 503}),
    "busy": Response(429, None, about="busy"),
    "lost before execution": Lost(reached=True, reason="reset"),
    "lost after execution": Lost(reached=True, reason="reset"),
    "duplicated, lost": Lost(reached=True, reason="reset"),
    "gateway, not executed": Response(502, None, about="Bad Gateway"),
    "gateway, executed": Response(502, None, about="Bad Gateway"),
    "unknown, executed": Response(504, {"code": "outcome_unknown", "status": 504}),
    "broken, not executed": Response(500, {"code": "internal_error", "status": 500}),
    "broken, executed": Response(500, {"code": "internal_error", "status": 500}),
    "token revoked": Response(401, {"code": "unauthenticated", "status": 401}),
    "procedure gone": Response(404, {"code": "unknown_procedure", "status": 404}),
}
"""What the client sees; of other events, what the server answers."""


@dataclass
class World:
    """A server that executes, answers and forgets, behind a network that loses."""

    effect: Effect
    executions: int = 0
    outcome: str = ""  # under the key: "" nothing yet, "result", "aborted", "forgotten"

    def deliver(self, aborts: bool = False) -> Attempt:
        """The request reaches the state machine: executed, or answered from the key's table."""
        if self.effect is Effect.READS:
            return Response(200, {"ok": True})
        if self.effect is Effect.ONCE or not self.outcome:
            self.executions += not aborts
            self.outcome = "aborted" if aborts else "result"
        if self.outcome == "result":
            return Response(200, {"ok": True})
        code = "aborted" if self.outcome == "aborted" else "session_expired"
        return Response(409, {"code": code, "status": 409, "detail": code})

    def forget(self) -> None:
        """The key's window is over: the outcome is dropped, the key stays refused."""
        if self.effect is Effect.KEYED:
            self.outcome = "forgotten"

    def attempt(self, event: str) -> Attempt:
        """What the client sees of an attempt to which `event` happens."""
        if event == "forgotten":
            self.forget()
        if event.endswith((", executed", "after execution", "duplicated, lost")):
            self.deliver()
        if event == "duplicated, lost" and self.effect is Effect.KEYED:
            self.deliver()
        seen = SEEN.get(event)
        return self.deliver(aborts=event == "aborted") if seen is None else seen


@dataclass
class Run:
    """An exchange carried out in a world, with a clock that only waits move."""

    world: World
    now: float = 0.0
    attempts: int = 0
    waits: list[float] = field(default_factory=list)
    names: Renaming = field(default_factory=Renaming)

    def carry_out(self, ask: Ask, events: Iterator[str], *, timeout_s: float = 1e9) -> object:
        """What the caller gets: the result or the error."""
        policy = RetryPolicy(attempts_max=10**6)
        steps = exchange(ask, world_of(policy=policy, clock=lambda: self.now, names=self.names), timeout_s=timeout_s)
        came_of_it: Attempt | None = None
        try:
            while True:
                step = steps.send(came_of_it)
                if isinstance(step, Pause):
                    self.waits.append(step.seconds)
                    self.now += step.seconds
                    came_of_it = None
                else:
                    assert isinstance(step, SendAttempt)
                    self.attempts += 1
                    came_of_it = self.world.attempt(next(events))
        except StopIteration as end:
            return end.value
        except CmdlogError as error:
            return error


ASKS = {
    Effect.READS: read_ask("/v1/status"),
    Effect.KEYED: call_ask("bump", {"id": 1}, key="k"),
    Effect.ONCE: call_ask("bump", {"id": 1}, key=None),
}


@given(st.sampled_from(Effect), st.lists(st.sampled_from(EVENTS), max_size=12))
def test_call_is_executed_once_at_most_and_the_truth_is_told(effect: Effect, events: list[str]) -> None:
    """Whatever happens to its attempts: a result means one execution, a plain error none, and doubt is told as doubt."""
    run = Run(World(effect))
    told = run.carry_out(ASKS[effect], iter([*events, "answered"]))
    executions = run.world.executions
    assert executions <= 1
    if effect is Effect.READS:
        assert not isinstance(told, OutcomeUnknown)
    elif not isinstance(told, CmdlogError):
        assert executions == 1
    elif isinstance(told, Unavailable | RequestRefused) or (isinstance(told, CallError) and not isinstance(told, SessionExpired)):
        assert executions == 0, told
    elif isinstance(told, SessionExpired):
        assert executions == 0, "the key was forgotten before the first attempt"
    else:
        assert isinstance(told, OutcomeUnknown | ServerFault), told


@given(st.lists(st.sampled_from(EVENTS), max_size=12), st.floats(0.01, 3.0))
def test_time_is_up_when_it_is_up(events: list[str], timeout_s: float) -> None:
    """The waits of a call never exceed its time, and what is told then is still true."""
    run = Run(World(Effect.KEYED))
    told = run.carry_out(ASKS[Effect.KEYED], iter([*events, *(["lost after execution"] * 500)]), timeout_s=timeout_s)
    assert sum(run.waits) <= timeout_s
    assert run.world.executions <= 1
    if isinstance(told, Unavailable | RequestRefused):
        assert run.world.executions == 0


def test_expired_session_after_doubt_is_doubt() -> None:
    """A retry whose key was forgotten meanwhile is never told as "not executed", nor executed again."""
    run = Run(World(Effect.KEYED))
    told = run.carry_out(ASKS[Effect.KEYED], iter(["lost after execution", "forgotten"]))
    assert isinstance(told, OutcomeUnknown)
    assert isinstance(told.__cause__, SessionExpired)
    assert (run.attempts, run.world.executions) == (2, 1)


def test_fresh_key_that_expired_at_once_is_replaced_once() -> None:
    """With our clock behind, the first refusal as expired leads to one better key; a second one is told."""
    world = world_of(names=Renaming(lambda name, date: f"better {name} {date}"))
    steps = exchange(ASKS[Effect.KEYED], world, timeout_s=9.0, renames=True)
    expired = Response(409, {"code": "session_expired", "status": 409}, date="now")
    first = next(steps)
    second = steps.send(expired)
    assert isinstance(first, SendAttempt)
    assert isinstance(second, SendAttempt)
    assert (first.ask.key, second.ask.key) == ("k", "better k now")
    with pytest.raises(SessionExpired):
        steps.send(expired)


def test_fresh_key_is_not_replaced_once_there_is_doubt() -> None:
    """After an attempt that may have been executed the key stays: another one would be another call."""
    names = Renaming(lambda _name, _date: "another")
    steps = exchange(ASKS[Effect.KEYED], world_of(names=names), timeout_s=9.0, renames=True)
    next(steps)
    assert isinstance(steps.send(Lost(reached=True, reason="reset")), Pause)
    again = next(steps)
    assert isinstance(again, SendAttempt)
    assert again.ask.key == "k"
    with pytest.raises(OutcomeUnknown):
        steps.send(Response(409, {"code": "session_expired", "status": 409}))
    assert names.finished == [("k", False)]


NOBODY = Lost(reached=False, reason="nobody listens there", refused=True)


@pytest.mark.parametrize(("answered", "waits_s"), [(None, 3.0), (Response(503, {"code": "not_ready"}), 60.0)])
def test_only_a_server_that_never_listened_is_given_up_soon(answered: Attempt | None, waits_s: float) -> None:
    """Refused connections alone end with `refused_s`; a server that did anything else before is waited for."""
    now = 0.0
    world = world_of(policy=RetryPolicy(refused_s=3.0), clock=lambda: now)
    servers = world.servers
    if answered is not None:
        servers.note_attempt(servers.preferred, answered)
    steps = exchange(ASKS[Effect.KEYED], world, timeout_s=60.0)

    def attempt_until_it_ends() -> None:
        nonlocal now
        while True:
            next(steps)
            step = steps.send(servers.note_attempt(servers.preferred, NOBODY))
            assert isinstance(step, Pause)
            now += step.seconds

    with pytest.raises(Unreachable, match="nobody listens there"):
        attempt_until_it_ends()
    assert waits_s - POLICY.backoff_max_s < now < waits_s


ELSEWHERE = Response(503, {"code": "not_ready", "status": 503}, retry_after_s=5.0)


def test_fresh_server_is_asked_without_a_wait() -> None:
    """Such an attempt is no round: it neither waits, as the last server asked, nor counts against `attempts_max`."""
    failure, tries = judge(ELSEWHERE), Tries()
    assert isinstance(failure, AttemptFailure)
    policy = RetryPolicy(attempts_max=1)
    for effect in Effect:
        assert decide(failure, tries, effect, policy, left_s=60.0, chance=0.9, fresh=True) == 0.0
    assert tries.count == 0
    assert isinstance(decide(failure, tries, Effect.KEYED, policy, left_s=60.0, chance=0.9), Unavailable)
    assert isinstance(decide(failure, Tries(), Effect.KEYED, POLICY, left_s=0.0, chance=0.9, fresh=True), Unavailable), (
        "time is up"
    )


@pytest.mark.parametrize(("fate", "effect"), list(product(Fate, Effect)))
def test_table_is_followed_elsewhere(fate: Fate, effect: Effect) -> None:
    """Of several servers, too, nothing is sent again that may be executed twice; a refusal of one of them goes to the next."""
    failure = AttemptFailure(fate, CmdlogError("x"), elsewhere=True)
    step = decide(failure, Tries(), effect, POLICY, left_s=60.0, chance=0.5, fresh=True)
    assert (step == 0.0) == ((fate, effect) in AGAIN or fate is Fate.REJECTED)
    own = decide(replace(failure, elsewhere=False), Tries(), effect, POLICY, left_s=60.0, chance=0.5, fresh=True)
    assert (own != 0.0, isinstance(own, float)) == (True, (fate, effect) in AGAIN), "what all servers share is waited for"


def test_patience_with_several_servers_grows_with_silence() -> None:
    """A call that takes longer than a server may be silent gets its time at last, and no more than one server gives."""
    policy, tries, told = RetryPolicy(attempt_s=20.0, failover_s=3.0), Tries(), []
    lost = judge(Lost(reached=True, reason="no answer for 3 s"))
    assert isinstance(lost, AttemptFailure)
    for _ in range(4):
        told.append(patience_s(tries, policy, several=True))
        decide(lost, tries, Effect.KEYED, policy, left_s=60.0, chance=0.5)
    assert told == [3.0, 6.0, 12.0, 20.0]
    assert patience_s(Tries(), policy, several=False) == 20.0


def test_attempt_with_several_servers_leaves_time_for_the_others() -> None:
    """A call without a key, which no other attempt may follow, gets all of it."""
    servers = ServerSet(base_urls(["http://a", "http://b"]))
    for effect, attempt_s in ((Effect.KEYED, 3.0), (Effect.READS, 3.0), (Effect.ONCE, 9.0)):
        steps = exchange(ASKS[effect], world_of(servers=servers), timeout_s=9.0)
        step = next(steps)
        assert isinstance(step, SendAttempt)
        assert (step.attempt_s, step.connect_s) == (attempt_s, 3.0)


def test_readiness_of_any_server_will_do() -> None:
    """Each is asked once before the answer is no."""
    servers = ServerSet(base_urls(["http://a", "http://b", "http://c"]))
    steps = await_ready(world_of(servers=servers), timeout_s=0.0)
    next(steps)
    for at in (0, 1):
        assert servers.preferred.at == at
        assert isinstance(steps.send(servers.note_attempt(servers.preferred, ELSEWHERE)), SendAttempt)
    with pytest.raises(StopIteration) as told:
        steps.send(servers.note_attempt(servers.preferred, Response(200, {"ready": True})))
    assert told.value.value is True
