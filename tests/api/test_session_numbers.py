"""Numbers of sessions over HTTP: the header, the members of a line, the end of a session, and what is refused unlogged."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from cmdlog.api.app import Api
from cmdlog.api.gate.problem import of_outcome
from cmdlog.api.routes.response_models import BatchCall
from cmdlog.node.outcome import CallOutcome, NotReady
from procedures.idempotency.known_outcome import Status, key_fingerprint, session_refusal
from procedures.idempotency.session_calls import sent_name
from tests.api.test_openapi import describe

Post = Callable[..., Any]
UUID = "01890a5d-ac96-774b-bcce-b302099a8057"
OTHER = "01890a5d-ac96-774b-bcce-b302099a8058"
CALL = ("/v1/procedures/put", b'{"item": 7}')
MANY = (1 << 64) - 2


def name(number: int, floor: int = 0, *, uuid: str = UUID) -> bytes:
    """What the node gets."""
    return sent_name(key_fingerprint("", uuid), number, floor)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (f"{UUID}; number=17; floor=12", name(17, 12)),
        (f"{UUID}; number=17", name(17)),
        (f"{UUID.upper()};number=1;floor=0", name(1)),
        (f"{UUID};\tnumber=1024", name(1024)),
        (f"{UUID}; number={MANY}; floor={MANY - 1}", name(MANY, MANY - 1)),
    ],
)
def test_number_and_floor_reach_the_node(node: Any, post: Post, value: str, expected: bytes) -> None:
    """As what a call of a session brings to the log; a UUID means the same in either case."""
    assert post(*CALL, headers=[("Cmdlog-Session", value)]).status == 200
    assert node.logged[0][2] == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        UUID,
        f"{UUID}; floor=1",
        f"{UUID}; number=0",
        f"{UUID}; number=5; floor=5",
        f"{UUID}; number=5; floor=6",
        f"{UUID}; number=1025; floor=0",
        f"{UUID}; number={MANY + 1}; floor={MANY}",
        f"{UUID}; number=-1",
        f"{UUID}; number=1.0",
        f"{UUID}; number=1; floor=0; more=1",
        f"{UUID}; floor=0; number=1",
        f"{UUID} number=1",
        "01890a5d-ac96-474b-bcce-b302099a8057; number=1",
        "order-18; number=1",
    ],
)
def test_what_is_no_number_in_its_window_is_refused(node: Any, post: Post, value: str) -> None:
    """422 before anything is logged: no UUID of version 7, no number, one at its floor, or too far above it."""
    answer = post(*CALL, headers=[("Cmdlog-Session", value)])
    assert (answer.status, answer.json()["problems"][0]["field"]) == (422, "Cmdlog-Session")
    assert node.logged == []


def test_key_and_session_together_are_refused(node: Any, post: Post) -> None:
    """Which of them counts must not be guessed; and the header comes once."""
    session = ("Cmdlog-Session", f"{UUID}; number=1")
    assert post(*CALL, headers=[session, ("Idempotency-Key", "order-18")]).status == 400
    assert post(*CALL, headers=[session, session]).status == 422
    assert node.logged == []


def entry(number: object = 1, **more: Any) -> bytes:
    """A line of a session."""
    return orjson.dumps({"procedure": "put", "params": {"item": 1}, "number": number, **more}) + b"\n"


def unnumbered(**more: Any) -> bytes:
    """A line that says which session, and not which call of it."""
    return orjson.dumps({"procedure": "put", "params": {"item": 1}, **more}) + b"\n"


def test_lines_have_numbers_in_the_session_of_the_header(node: Any, post: Post) -> None:
    """Or in one of their own, beside lines with keys and lines without names."""
    lines = [
        entry(13),
        entry(14, floor=13),
        entry(3, session=OTHER),
        entry(9, session=OTHER, floor=8, durability="async"),
        orjson.dumps({"procedure": "put", "params": {"item": 1}, "key": "order-18"}),
        b"\n" + orjson.dumps({"procedure": "put", "params": {"item": 1}}),
    ]
    answer = post("/v1/batch", b"".join(lines), headers=[("Cmdlog-Session", f"{UUID}; floor=12")])
    assert [line.get("result") for line in answer.lines()] == [1] * 6
    assert [key for _, _, key in node.logged] == [
        name(13, 12),
        name(14, 13),
        name(3, uuid=OTHER),
        name(9, 8, uuid=OTHER),
        key_fingerprint("", "order-18"),
        b"",
    ]


@pytest.mark.parametrize(
    "line",
    [
        entry(12),
        entry(12 + 1025),
        entry("13"),
        entry(13.0),
        entry(True),
        entry(None),
        entry(13, floor="12"),
        entry(13, floor=-1),
        entry(13, floor=True),
        entry(13, session="order-18"),
        entry(13, session=7),
        entry(13, key="order-18"),
        unnumbered(session=UUID),
        unnumbered(floor=1),
        unnumbered(session=UUID, key="order-18"),
    ],
)
def test_line_that_names_no_number_of_its_window_is_refused_alone(node: Any, post: Post, line: bytes) -> None:
    """Its neighbours are executed."""
    body = entry(20) + line.rstrip() + b"\n" + entry(21)
    answer = post("/v1/batch", body, headers=[("Cmdlog-Session", f"{UUID}; floor=12")])
    assert ["result" in line for line in answer.lines()] == [True, False, True]
    assert answer.lines()[1]["error"]["code"] == "invalid_parameters"
    assert [key for _, _, key in node.logged] == [name(20, 12), name(21, 12)]


@pytest.mark.parametrize(
    ("more", "given"),
    [({"session": UUID}, "`session`"), ({"floor": 1}, "`floor`"), ({"session": UUID, "floor": 1}, "`session` and `floor`")],
)
def test_line_that_lacks_its_number_is_told_so(post: Post, more: dict[str, Any], given: str) -> None:
    """Session and floor are known members, so it is the number that is at fault; other unknown members are named as before."""
    problems = [line["error"]["problems"] for line in post("/v1/batch", unnumbered(**more) + unnumbered(sesion=UUID)).lines()]
    assert [problem["field"] for [problem] in problems] == ["number", "sesion"]
    assert problems[0][0]["problem"] == f"is missing: a line with {given} says which of the session's calls it is"


@pytest.mark.parametrize(
    ("line", "field", "problem"),
    [
        (entry("13"), "number", "must be a whole number from 1"),
        (entry(13, floor="12"), "floor", "must be a whole number from 0"),
        (entry(13, floor=-1), "floor", "must be a whole number from 0"),
        (entry(0), "number", "number 0 must be above the floor 0, up to which the client has seen all outcomes"),
        (entry(1025), "number", "; a cmdlog client accepts `session_window=1024`"),
    ],
)
def test_line_is_told_the_range_that_the_server_takes(post: Post, line: bytes, field: str, problem: str) -> None:
    """A number counts from 1, a floor from 0."""
    (answer,) = post("/v1/batch", line, headers=[("Cmdlog-Session", UUID)]).lines()
    (found,) = answer["error"]["problems"]
    assert (found["field"], found["problem"].endswith(problem)) == (field, True)


@pytest.mark.parametrize("number", [(1 << 63) - 1, 1 << 63])
def test_number_of_a_line_ends_where_integers_of_json_do(node: Any, post: Post, number: int) -> None:
    """The header takes larger ones; the refusal states the range, and so does the description of the line."""
    (answer,) = post("/v1/batch", entry(number, session=UUID, floor=(1 << 63) - 2)).lines()
    limit = BatchCall.model_json_schema()["properties"]["number"]["exclusiveMaximum"]
    assert ("result" in answer, number < limit) == ((True, True) if number < 1 << 63 else (False, False))
    assert "result" in answer or "an integer outside of -2^63 to 2^63-1" in answer["error"]["detail"]


def described_pattern(route: str) -> str:
    """Of the header, as the description of the API states it."""
    described = describe()
    names = [one["$ref"].rpartition("/")[2] for one in described["paths"][route]["post"]["parameters"]]
    parameters = [described["components"]["parameters"][name] for name in names]
    pattern: str = next(one["schema"]["pattern"] for one in parameters if one["name"] == "Cmdlog-Session")
    return pattern


@pytest.mark.parametrize("space", ["", " ", "\t", " \t "])
def test_description_of_the_header_takes_what_the_server_takes(post: Post, space: str) -> None:
    """White space after a semicolon is optional."""
    one, many = f"{UUID};{space}number=2;{space}floor=1", f"{UUID};{space}floor=1"
    assert post(*CALL, headers=[("Cmdlog-Session", one)]).status == 200
    assert "result" in post("/v1/batch", entry(2), headers=[("Cmdlog-Session", many)]).lines()[0]
    assert re.search(described_pattern("/v1/procedures/put"), one)
    assert re.search(described_pattern("/v1/batch"), many)


def test_line_with_a_number_needs_a_session(node: Any, post: Post) -> None:
    """In the header or in the line; a header with a number is for single calls."""
    assert post("/v1/batch", entry(1)).lines()[0]["error"]["code"] == "invalid_parameters"
    for wrong in (f"{UUID}; number=1", "order-18", f"{UUID}; floor=x"):
        assert post("/v1/batch", entry(1), headers=[("Cmdlog-Session", wrong)]).status == 422
    assert node.logged == []


def test_session_ends_by_delete(app: Api, node: Any, ask_app: Any) -> None:
    """204, as often as it is asked for; what is no session is refused, and a node that does not lead says who does."""

    def delete(uuid: str) -> Any:
        return asyncio.run(ask_app(app, "DELETE", f"/v1/sessions/{uuid}"))

    assert [delete(UUID).status, delete(UUID.upper()).status] == [204, 204]
    assert delete(UUID).body == b""
    assert node.ended == [key_fingerprint("", UUID)] * 3
    assert delete("order-18").status == 422
    assert delete(f"{UUID}/x").status == 404
    node.sequencer.admission.refusal = NotReady("node 2 leads")
    assert delete(UUID).json()["code"] == "not_ready"


def test_refusals_of_a_session_have_the_codes_of_keys(node: Any, post: Post) -> None:
    """`session_expired`, `key_reused` and `sessions_full` with what the table says of a session."""
    for status, code, http in (
        (Status.SESSION_EXPIRED, "session_expired", 409),
        (Status.KEY_REUSED, "key_reused", 409),
        (Status.SESSIONS_FULL, "sessions_full", 503),
    ):
        node.outcome = lambda _route, _params, status=status: (status, b'{"message": "of a session"}')
        answer = post(*CALL, headers=[("Cmdlog-Session", f"{UUID}; number=1")])
        assert (answer.status, answer.json()["code"], answer.json()["detail"]) == (http, code, "of a session")


@pytest.mark.parametrize("status", [Status.SESSION_EXPIRED, Status.KEY_REUSED, Status.SESSIONS_FULL])
def test_refusal_before_any_transaction_names_none(status: Status) -> None:
    """The node knows that another partition owns the name: neither a member nor a header says that number 0 decided."""
    problem = of_outcome(CallOutcome(status, 0, session_refusal(status).body), None)
    assert "txn_id" not in problem.members()
    assert b"cmdlog-txn" not in dict(problem.headers(problem.body()))
    assert of_outcome(CallOutcome(status, 7, b""), None).members()["txn_id"] == "7"
