"""Requests generated from the server's own description: what it allows is accepted, what it forbids refused, nothing is a 5xx."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.generation.feedback import FeedbackSources
from schemathesis.pytest._test_builder import build_operation_test
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import ADMIN
from cmdlog.api.gate.session_numbers import SESSION_UUID
from cmdlog.api.routes.openapi import Description
from cmdlog.node.slot_map import make_routes
from tests.api.every_type import db
from tests.api.running import TOKENS, Running
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow

HEADERS = {"Authorization": f"Bearer {TOKENS[ADMIN]}"}
CASES = 6  # of an operation that takes parameters
CASES_WITHOUT_INPUT = 2
CASES_FOR_MINUTES = 2000
TAKES_PARAMETERS = re.compile(r"^[A-Z]+ /v1/(batch|query|procedures/.+|cluster/(unsafe-recover|.+/.+))$")
TXN_SEEN = 10**18  # greater ones may be ahead of the server's clock, which refuses them
COSTLY = {"POST /v1/snapshots": 5}  # a snapshot of every partition takes a second
PHASES = (Phase.generate,)  # what fails is found again with the seed; to shrink it over HTTP takes minutes
PHASES_FOR_MINUTES = (Phase.explicit, Phase.generate)  # also what covers each that a parameter may be
NOT_MEANT = {
    "/v1/batch": [negative_data_rejection],  # what is wrong with a line is said in its place, with status 200
    "/v1/procedures/fail": [not_a_server_error],  # a procedure that raises is answered with 500
    "/v1/deploy": [positive_data_acceptance],  # a bundle is what `cmdlog deploy` makes, or there is none
    "/v1/query": [positive_data_acceptance],  # a schema does not say which SQL is right
}
INT_LIMIT = 1 << 63
SESSION = re.compile(rf"({SESSION_UUID})(?:;[ \t]*number=([0-9]{{1,20}}))?(?:;[ \t]*floor=([0-9]{{1,20}}))?", re.ASCII)


def describe() -> dict[str, Any]:
    """The description of a server with credentials, without the stream that does not end."""
    node = SimpleNamespace(routes=make_routes(db))
    service: Any = SimpleNamespace(gatekeeper=SimpleNamespace(required=True), maybe_node=node)  # as far as it asks
    described: dict[str, Any] = orjson.loads(orjson.dumps(Description(service, version="0").get()))
    del described["paths"]["/v1/events"]
    return described


def for_schemathesis(described: dict[str, Any]) -> dict[str, Any]:
    """In answers it spells `prefixItems` as drafts before 2020-12 do, and then refuses its own spelling.

    So it is told what the members may be, not in which order; tests of the codecs hold the order.
    """
    for name, schema in described["components"]["schemas"].items():
        if name.endswith("Answer"):
            loosen_tuples(schema)
    return described


def loosen_tuples(value: Any) -> None:
    """Wherever they stand."""
    if type(value) is dict:
        if "prefixItems" in value:
            value["items"] = {"anyOf": value.pop("prefixItems")}
        for inner in value.values():
            loosen_tuples(inner)
    elif type(value) is list:
        for inner in value:
            loosen_tuples(inner)


def as_numbers_are_sent(value: Any) -> Any:
    """JSON schema calls 7.0 an integer, and 10^30 a number of any kind; clients write 7, and 1e30."""
    if type(value) is float and value.is_integer() and abs(value) < INT_LIMIT:
        return int(value)
    if type(value) is int and not -INT_LIMIT <= value < INT_LIMIT:
        return float(value) if abs(value) < 10**300 else 0.5
    if type(value) is list:
        return [as_numbers_are_sent(inner) for inner in value]
    if type(value) is dict:
        return {name: as_numbers_are_sent(inner) for name, inner in value.items()}
    return value


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`cmdlog serve` of the application with every type, behind a credential; at the end it must not have logged a defect."""
    running = Running(tmp_path_factory.mktemp("server"))
    try:
        yield running.url
    finally:
        running.stop()
    assert "request_failed" not in running.logged()
    assert not any(token in running.logged() for token in TOKENS.values())


@schemathesis.serializer("application/x-ndjson")
def write_line_of_batch(_context: Any, value: Any) -> bytes:
    """A batch of one line."""
    return json.dumps(value).encode() + b"\n"


schemathesis.openapi.format("decimal", st.decimals(-(10**20), 10**20, places=4).map(str))
CONFIG = SchemathesisConfig.from_dict(
    {
        "request-timeout": PATIENCE_S,  # its own ten seconds are met on a machine that is busy enough
        "generation": {"allow-x00": False, "deterministic": True},
    }
)
SCHEMA = schemathesis.openapi.from_dict(for_schemathesis(describe()), config=CONFIG)
OPERATIONS = [f"{method.upper()} {path}" for path, methods in SCHEMA.raw_schema["paths"].items() for method in methods]
SENT: Counter[str] = Counter()


@SCHEMA.hook
def map_body(_context: Any, body: Any) -> Any:
    """Numbers as clients write them."""
    return as_numbers_are_sent(body)


@SCHEMA.hook
def map_headers(_context: Any, headers: Any) -> Any:
    """Transaction ids that somebody may have seen."""
    txn = (headers or {}).get("Cmdlog-Txn", "")
    if type(txn) is str and txn.isascii() and txn.isdigit() and TXN_SEEN < int(txn) < INT_LIMIT:
        headers["Cmdlog-Txn"] = str(int(txn) % TXN_SEEN)
    return headers


def name_once(case: Any) -> None:
    """A call has a number above its floor, or a key: what a schema cannot say of a header and of two."""
    headers = case.headers or {}
    session = headers.get("Cmdlog-Session", "")
    if type(session) is str and (found := SESSION.fullmatch(session)):
        uuid, number, floor = found.groups()
        low = int(floor or 0) % TXN_SEEN
        numbered = "" if number is None else f"; number={low + 1 + int(number) % 1024}"
        headers["Cmdlog-Session"] = f"{uuid}{numbered}; floor={low}"
        headers.pop("Idempotency-Key", None)
    elif session == "0":  # beside an example of a body the headers get this, whatever their pattern
        del headers["Cmdlog-Session"]


def query_names(method: str, path: str) -> set[str]:
    """The parameters of the address that the operation declares."""
    declared = SCHEMA.raw_schema["paths"][path].get(method.lower(), {}).get("parameters", ())
    return {parameter["name"] for parameter in declared if parameter.get("in") == "query"}


def check(case: Any, url: str) -> None:
    """Sends one request and applies every check that means something for its route."""
    label = f"{case.method} {case.path}"
    if SENT[label] >= COSTLY.get(label, sys.maxsize) or set(case.query or ()) - query_names(case.method, case.path):
        return  # a parameter of the address that nobody declares is ignored, which a description cannot say
    SENT[label] += 1
    name_once(case)
    answer = case.call(base_url=url, headers=HEADERS)
    if case.path == "/v1/batch" and answer.status_code == 200:
        check_lines(answer.content)
    case.validate_response(answer, excluded_checks=NOT_MEANT.get(case.path, []))


def check_lines(content: bytes) -> None:
    """Whatever a line is, its answer is a result or a documented error of the caller's."""
    for line in content.splitlines():
        told = orjson.loads(line)
        assert told.keys() == {"txn_id", "partition", "result"} or 400 <= CODES[told["error"]["code"]][0] < 500


def cases(count: int) -> settings:
    """So many of each operation."""
    phases = PHASES_FOR_MINUTES if count == CASES_FOR_MINUTES else PHASES
    return settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), phases=phases)


def send_cases(label: str, count: int, url: str) -> None:
    """So many of one operation. They are made here: at the collection, every process would make those of all for seconds."""
    method, path = label.split()

    @cases(count)
    def send(case: Any) -> None:
        check(case, url)

    operation = SCHEMA[path][method]
    build_operation_test(config=SCHEMA.config, operation=operation, test_func=send, given_kwargs={}, feedback=FeedbackSources())()


@pytest.mark.parametrize("label", [label for label in OPERATIONS if TAKES_PARAMETERS.match(label)])
def test_requests_by_the_description_are_answered_by_it(label: str, server: str) -> None:
    """Valid requests are accepted, others refused; every answer's status, type, headers and body are described."""
    send_cases(label, CASES, server)


@pytest.mark.parametrize("label", [label for label in OPERATIONS if not TAKES_PARAMETERS.match(label)])
def test_routes_without_parameters_are_as_described(label: str, server: str) -> None:
    """The same for those that only tell something."""
    send_cases(label, CASES_WITHOUT_INPUT, server)


@pytest.mark.fuzz
@pytest.mark.parametrize("label", OPERATIONS)
def test_the_same_for_minutes(label: str, server: str) -> None:
    """Many times as many of each operation."""
    send_cases(label, CASES_FOR_MINUTES, server)


def test_server_gives_the_description_that_is_tested(server: str) -> None:
    """The generated requests are from what clients read."""
    given = httpx.get(f"{server}/openapi.json", headers=HEADERS).json()
    del given["paths"]["/v1/events"]
    expected = describe()
    assert given["paths"] == expected["paths"]
    assert given["components"] == expected["components"]
