"""One call over HTTP: what gets in, what comes out, and that nothing wrong reaches the log."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import orjson
import pytest

from cmdlog.api.app import Api
from cmdlog.api.gate.problem import PLACE_FORGOTTEN, SKIP_FORGOTTEN, Problem
from cmdlog.api.gate.request import check_origin
from cmdlog.node.outcome import CallRefused, CallTooLarge, DiskFullRefusal, LogFullRefusal, NotReady, Overloaded, UnknownOutcome
from procedures.execution.outcome_bodies import SKIPPED
from procedures.idempotency.known_outcome import Status, key_fingerprint
from tests.api.conftest import OLD_TXN

Post = Callable[..., Any]


def test_result_comes_with_its_transaction_and_partition(node: Any, post: Post) -> None:
    """A call that worked answers 200 with the result as the procedure encoded it and the id as text."""
    answer = post("/v1/procedures/put", b'{"item": 7}')
    assert answer.status == 200
    assert answer.json() == {"txn_id": "1001", "partition": answer.json()["partition"], "result": 7}
    assert answer.headers["cmdlog-txn"] == "1001"
    assert node.logged == [("put", [7, 1.0, None, ""], b"")]


def test_call_on_all_partitions_names_none(post: Post) -> None:
    """A multi-partition call answers with `partition: null`."""
    assert post("/v1/procedures/set_price", b'{"price": 3}').json()["partition"] is None


def test_key_and_echoed_transaction_reach_the_node(node: Any, post: Post) -> None:
    """The idempotency key arrives as its fingerprint, the echoed transaction as a number."""
    headers = [("Idempotency-Key", "order-1"), ("Cmdlog-Txn", "12345")]
    assert post("/v1/procedures/put", b'{"item": 7}', headers=headers).status == 200
    assert node.logged[0][2] == key_fingerprint("", "order-1")
    assert node.seen_txn == 12345


DATED = {
    "as_of": {"0": str(OLD_TXN + 1024), "1": str(OLD_TXN)},
    "as_of_time": "2023-11-14T22:13:20.250Z",
}


def test_stale_read_says_as_of_what_it_read(node: Any, post: Post) -> None:
    """Per partition, and the time of the oldest; the transaction that the caller has seen reaches the node."""
    answer = post("/v1/procedures/get?consistency=stale", b'{"item": 7}', headers=[("Cmdlog-Txn", "12345")])
    assert answer.json() == {"txn_id": str(OLD_TXN), "partition": 0, "result": 7, **DATED}
    assert answer.headers["cmdlog-txn"] == str(OLD_TXN)
    assert node.seen_txn == 12345
    assert node.logged == []


def test_stale_read_that_is_refused_keeps_its_code(node: Any, post: Post) -> None:
    """A replica may be behind what the caller has seen."""
    node.refuse = lambda calls: NotReady("behind")
    answer = post("/v1/procedures/get?consistency=stale", b'{"item": 7}')
    assert (answer.status, answer.json()["code"]) == (503, "not_ready")


@pytest.mark.parametrize("query", ["", "?", "?consistency=linearizable", "?other=stale", "?x=1&consistency=linearizable"])
def test_read_is_linearizable_unless_asked_otherwise(post: Post, query: str) -> None:
    """Nothing is said of the time of its state: it is the newest."""
    assert set(post(f"/v1/procedures/get{query}", b'{"item": 7}').json()) == {"txn_id", "partition", "result"}


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("put", "consistency=stale"),
        ("get", "consistency="),
        ("get", "consistency=STALE"),
        ("get", "consistency=stale&consistency=stale"),
        ("get", "consistency=linearizable&consistency=stale"),
        ("get", "consistency=%ff"),
    ],
)
def test_consistency_that_cannot_be_meant_is_refused(node: Any, post: Post, name: str, query: str) -> None:
    """A call that writes is never stale, and a word that is not known must not be ignored: the reader may rely on it."""
    answer = post(f"/v1/procedures/{name}?{query}", b'{"item": 7}')
    assert answer.status == 422
    assert answer.json()["problems"][0]["field"] == "consistency"
    assert node.logged == []


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        (
            Status.ABORTED,
            {"code": "no_stock", "message": "none left"},
            (409, {"code": "aborted", "abort_code": "no_stock", "detail": "none left"}),
        ),
        (
            Status.FAILED,
            {"type": "ValueError", "message": "bad"},
            (500, {"code": "procedure_failed", "error": "ValueError", "detail": "bad"}),
        ),
        (Status.KEY_REUSED, None, (409, {"code": "key_reused"})),
        (Status.SESSION_EXPIRED, None, (409, {"code": "session_expired"})),
        (Status.SESSIONS_FULL, None, (503, {"code": "sessions_full"})),
    ],
)
def test_outcome_without_result_is_a_problem(node: Any, post: Post, status: int, body: Any, told: tuple[int, Any]) -> None:
    """Every outcome that is no result has its own code and the transaction that decided it."""
    http, wanted = told
    node.outcome = lambda route, params: (status, orjson.dumps(body))
    answer = post("/v1/procedures/put", b'{"item": 7}')
    assert answer.status == http
    assert answer.headers["content-type"] == "application/problem+json"
    assert {**answer.json(), **wanted, "txn_id": "1001"} == answer.json()
    assert ("retry-after" in answer.headers) == (http == 503)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ({"type": "ValueError", "message": "bad"}, PLACE_FORGOTTEN),
        ({"type": "SQLError", "message": "not authorized to use function: CURRENT_TIMESTAMP"}, "tx.now"),
        (orjson.loads(SKIPPED), SKIP_FORGOTTEN),
    ],
)
def test_failure_of_before_a_restart_says_where_to_look(node: Any, post: Post, body: Any, hint: str) -> None:
    """The outcome alone has no place: the answer says so, or what its text still tells; of a skipped call it has no reason."""
    node.outcome = lambda route, params: (Status.FAILED, orjson.dumps(body))
    problem = post("/v1/procedures/put", b'{"item": 7}').json()
    assert hint in problem["hint"]
    assert "file" not in problem


@pytest.mark.parametrize(
    ("refused", "http", "code"),
    [
        (NotReady("starting"), 503, "not_ready"),
        (Overloaded("too many"), 503, "not_ready"),
        (LogFullRefusal("full"), 503, "log_full"),
        (DiskFullRefusal("full"), 503, "disk_full"),
        (CallTooLarge("big"), 413, "too_large"),
        (UnknownOutcome("gone"), 504, "outcome_unknown"),
    ],
)
def test_refusal_keeps_its_code(node: Any, post: Post, refused: CallRefused, http: int, code: str) -> None:
    """What the node refuses comes out under the code and status that the refusal names; Retry-After where waiting helps."""
    node.refuse = lambda calls: refused
    answer = post("/v1/procedures/put", b'{"item": 7}')
    assert (answer.status, answer.json()["code"]) == (http, code)
    assert ("retry-after" in answer.headers) == (refused.retry_after_s is not None)


BAD_BODIES: list[tuple[str, bytes]] = [
    ("empty", b""),
    ("not JSON", b"{"),
    ("array", b"[7]"),
    ("string", b'"item"'),
    ("null", b"null"),
    ("invalid UTF-8", b'{"item": "\xff"}'),
    ("UTF-16", '{"item": 7}'.encode("utf-16")),
    ("byte order mark", b'\xef\xbb\xbf{"item": 7}'),
    ("NaN", b'{"item": NaN}'),
    ("infinity", b'{"item": 7, "amount": 1e999}'),
    ("integer of 65 bits", b'{"item": 18446744073709551616}'),
    ("integer beyond SQLite", b'{"item": 9223372036854775808}'),
    ("integer of 5000 digits", b'{"item": ' + b"9" * 5000 + b"}"),
    ("fraction", b'{"item": 7.5}'),
    ("boolean", b'{"item": true}'),
    ("text", b'{"item": "7"}'),
    ("nested 1000 deep", b'{"item": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
    ("nested 100000 deep", b'{"item": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ("lone surrogate", b'{"item": 7, "tags": ["\\ud800"]}'),
    ("unknown parameter", b'{"item": 7, "itme": 8}'),
    ("missing parameter", b'{"amount": 7}'),
    ("wrong element", b'{"item": 7, "tags": [1]}'),
    ("bad base64", b'{"item": 7, "raw": "***"}'),
    ("two values", b'{"item": 7}{"item": 8}'),
    ("trailing NUL", b'{"item": 7}\0'),
]


@pytest.mark.parametrize("body", [body for _, body in BAD_BODIES], ids=[name for name, _ in BAD_BODIES])
def test_bad_body_is_refused_before_the_log(node: Any, post: Post, body: bytes) -> None:
    """Every misfit gets 422 `invalid_parameters` with the fields at fault, and the node never hears of it."""
    answer = post("/v1/procedures/put", body)
    assert (answer.status, answer.json()["code"]) == (422, "invalid_parameters")
    assert answer.json()["problems"]
    assert node.logged == []


@pytest.mark.parametrize(
    ("headers", "http", "code"),
    [
        ([("Idempotency-Key", "")], 422, "invalid_parameters"),
        ([("Idempotency-Key", "x" * 256)], 422, "invalid_parameters"),
        ([("Idempotency-Key", "a b")], 422, "invalid_parameters"),
        ([("Idempotency-Key", "\xe9")], 422, "invalid_parameters"),
        ([("Idempotency-Key", "a"), ("Idempotency-Key", "b")], 422, "invalid_parameters"),
        ([("Cmdlog-Txn", "")], 422, "invalid_parameters"),
        ([("Cmdlog-Txn", "-1")], 422, "invalid_parameters"),
        ([("Cmdlog-Txn", "1" * 19)], 200, ""),
        ([("Cmdlog-Txn", "9" * 19)], 422, "invalid_parameters"),
        ([("Cmdlog-Txn", "1" * 5000)], 422, "invalid_parameters"),
        ([("Cmdlog-Txn", "\xb2")], 422, "invalid_parameters"),
        ([("Origin", "http://evil.example")], 403, "forbidden"),
        ([("Origin", "null")], 403, "forbidden"),
        ([("Sec-Fetch-Site", "cross-site")], 403, "forbidden"),
        ([("Sec-Fetch-Site", "same-origin")], 200, ""),
        ([("Origin", "http://localhost:8642")], 200, ""),
        ([("Origin", "http://localhost:8643")], 403, "forbidden"),
    ],
)
def test_bad_header_is_refused_before_the_log(
    node: Any, post: Post, headers: list[tuple[str, str]], http: int, code: str
) -> None:
    """A header that cannot be meant gets a 4xx and nothing is called."""
    answer = post("/v1/procedures/put", b'{"item": 7}', headers=headers)
    assert answer.status == http
    assert answer.json().get("code", "") == code
    assert len(node.logged) == (http == 200)


@pytest.mark.parametrize(
    "site", ["localhost", "localhost:1", "127.0.0.1:8642", "[::1]:8642", "books.example", "localhost.evil.example"]
)
def test_a_page_under_a_foreign_name_needs_a_token(site: str) -> None:
    """A name that was made to resolve to loopback (DNS rebinding) is in Origin and Host alike; only a token tells it apart."""
    picked = {b"origin": f"http://{site}".encode(), b"host": site.encode()}
    check_origin(picked, authenticated=True)
    with pytest.raises(Problem) if site.endswith("example") else nullcontext():
        check_origin(picked, authenticated=False)


@pytest.mark.parametrize("more", [{b"origin": b"http://evil.example"}, {b"sec-fetch-site": b"cross-site"}])
def test_what_was_admitted_once_is_not_admitted_for_another_site(app: Api, more: dict[bytes, bytes]) -> None:
    """The gate remembers what it has judged, with all headers that it looks at."""
    picked = {b"host": b"localhost"}
    for _ in range(2):
        app.admit_call("/v1/procedures/put", picked)
        with pytest.raises(Problem):
            app.admit_call("/v1/procedures/put", {**picked, **more})


@pytest.mark.parametrize(
    "name", ["", "nothing", "put/", "../put", "PUT", "put\0", "\ufffd", "x" * 5000, "_sql; drop table items"]
)
def test_unknown_procedure_is_not_found(node: Any, post: Post, name: str) -> None:
    """Names come from an allow-list; everything else is 404 `unknown_procedure`."""
    answer = post(f"/v1/procedures/{name}", b"{}")
    assert (answer.status, answer.json()["code"]) == (404, "unknown_procedure")
    assert node.logged == []


def test_limit_counts_the_bytes_that_arrive(node: Any, settings: Any, post: Post) -> None:
    """A body over call_bytes_max is 413 however it is cut and whatever its Content-Length claims."""
    chunk = b" " * (settings.call_bytes_max // 4)
    answer = post("/v1/procedures/put", [chunk] * 5, headers=[("Content-Length", "2")])
    assert (answer.status, answer.json()["code"]) == (413, "too_large")
    assert answer.headers["connection"] == "close"
    assert node.logged == []


def test_client_that_leaves_early_calls_nothing(node: Any, post: Post) -> None:
    """Half a request is no call, and nobody is answered."""
    assert post("/v1/procedures/put", iter([])).status == 0
    assert node.logged == []
