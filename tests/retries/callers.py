"""The ways in which a caller names a call, so that its retry is known: each sends requests and says what was answered."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import httpx

from cmdlog import Client
from cmdlog.client import Call
from cmdlog.errors import CmdlogError
from tests.retries.program import spelled


@dataclass(frozen=True)
class Sent:
    """One call; `session` is a UUID of version 7 of its own."""

    procedure: str
    params: Mapping[str, Any]
    key: str
    session: str


Answer = str
"""A result, or the code of what went wrong."""
Send = Callable[[str, Sequence[Sent], random.Random], list[Answer]]


def _post(url: str, calls: Sequence[Sent], chance: random.Random, headers: Callable[[Sent], dict[str, str]]) -> list[Answer]:
    with httpx.Client(base_url=url, timeout=120) as client:
        answers = [
            client.post(f"/v1/procedures/{call.procedure}", content=spelled(call.params, chance), headers=headers(call)).json()
            for call in calls
        ]
    return [_answer(answer) for answer in answers]


def _answer(answer: Mapping[str, Any]) -> Answer:
    answer = answer.get("error", answer)
    return str(answer.get("result", answer.get("code")))


def by_key(url: str, calls: Sequence[Sent], chance: random.Random) -> list[Answer]:
    """Single calls, each with a key."""
    return _post(url, calls, chance, lambda call: {"Idempotency-Key": call.key})


def by_session(url: str, calls: Sequence[Sent], chance: random.Random) -> list[Answer]:
    """Single calls, each with a number in a session."""
    return _post(url, calls, chance, lambda call: {"Cmdlog-Session": f"{call.session}; number=3; floor=1"})


def _batch(url: str, calls: Sequence[Sent], chance: random.Random, name: Callable[[Sent], str]) -> list[Answer]:
    lines = [
        f'{{"procedure":"{call.procedure}", "params":{spelled(call.params, chance)}, {name(call)}}}'.encode() for call in calls
    ]
    answers = httpx.post(f"{url}/v1/batch", content=b"\n".join(lines), timeout=120).text.splitlines()
    return [_answer(json.loads(answer)) for answer in answers]


def by_key_of_line(url: str, calls: Sequence[Sent], chance: random.Random) -> list[Answer]:
    """A batch whose lines have keys."""
    return _batch(url, calls, chance, lambda call: f'"key": "{call.key}"')


def by_number_of_line(url: str, calls: Sequence[Sent], chance: random.Random) -> list[Answer]:
    """A batch whose lines have sessions and numbers."""
    return _batch(url, calls, chance, lambda call: f'"session": "{call.session}", "number": 7, "floor": 2')


def by_client(url: str, calls: Sequence[Sent], chance: random.Random) -> list[Answer]:
    """The client's calls, half of them in a batch."""
    half = chance.randrange(len(calls) + 1)
    with Client(url) as client:
        many = list(client.batch([Call(call.procedure, call.params, call.key) for call in calls[half:]]))
        single = [_outcome(client, call) for call in calls[:half]]
    return [*single, *(one.code if isinstance(one, CmdlogError) else str(one.value) for one in many)]


def _outcome(client: Client, call: Sent) -> Answer:
    try:
        return str(client.invoke(call.procedure, call.params, idempotency_key=call.key).value)
    except CmdlogError as error:
        return error.code


SHAPES: Final[Mapping[str, Send]] = {
    send.__name__: send for send in (by_key, by_session, by_key_of_line, by_number_of_line, by_client)
}
