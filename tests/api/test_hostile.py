"""Attacks on a running server: refused with a code, nothing logged, nothing told, and what is accepted is kept to the bit."""

from __future__ import annotations

import gzip
import json
import os
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest
import zstandard

from cmdlog.api.gate.problem import CODES
from cmdlog.api.gate.route_table import ADMIN, INVOKE
from cmdlog.client.session import uuid7
from tests.api.running import EXPIRED, OTHER, TOKENS, Running

pytestmark = pytest.mark.slow

CANARY = "canary7f3a9b"
GOOD = TOKENS[ADMIN]
LIMITS = ("--call-bytes-max", "64KiB", "--keys-max", "40", "--query-timeout-s", "1", "--queries-max", "1",
          "--slow-call-ms", "1")  # fmt: skip
BODIES = {
    "call": b'{"item": 1, "name": "x"}',
    "batch": b'{"procedure": "put", "params": {"item": 1}}\n',
    "query": b'{"sql": "select 1"}',
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for all tests that leave it running."""
    running = Running(tmp_path_factory.mktemp("server"), *LIMITS)
    try:
        yield running
    finally:
        running.kill()


def over_numbers(select: str) -> str:
    """A SELECT over all natural numbers, `n`."""
    return f"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) {select}"  # noqa: S608 - SQL is what is tested


def request(method: str, path: str, body: bytes = b"", headers: Any = ()) -> bytes:
    """A request as bytes, the connection to be closed after it."""
    head = [f"{method} {path} HTTP/1.1".encode(), b"Host: localhost", b"Connection: close", b"Content-Length: %d" % len(body)]
    return b"\r\n".join([*head, *headers, b"", body])


def answer_of(server: Running, method: str, path: str, body: bytes = b"", headers: Any = ()) -> tuple[int, bytes, bytes]:
    """Status, head and body."""
    head, _, content = server.raw(request(method, path, body, headers)).partition(b"\r\n\r\n")
    return int(head.split(b" ", 2)[1]), head.lower(), content


EDGES: list[tuple[str, str, str]] = [
    ("-0.0", "0", '"plain"'),
    ("5e-324", "9223372036854775807", '"\\u202e\\u200f bidi"'),
    ("-2.2250738585072011e-308", "-9223372036854775808", '"e\\u0301 and \\u00e9"'),
    ("1.7976931348623157e308", "9007199254740993", '"\\ud83d\\ude00 \U0001f9d1\u200d\U0001f680"'),
    ("0.1", "9007199254740991", '"\'; DROP TABLE kept; --"'),
    ("1e22", "-9007199254740993", '"\\u007f\\u0001\\n\\"\\\\"'),
    ("123456789.123456789", "0", '"\\uffff\\ufffd"'),
]


def test_what_is_accepted_survives_log_and_replay_to_the_bit(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Denormals, 2^53 + 1, the ends of 64 bits, bidi, both normal forms, 4-byte characters: the same inside, in SQL, in answers,
    and after a kill and a replay. -0.0 arrives as it is; the one thing that SQLite does not keep is its sign.
    """
    server = Running(tmp_path_factory.mktemp("edges"))
    try:
        told = []
        for item, (real, whole, text) in enumerate(EDGES):
            body = f'{{"item": {item}, "real": {real}, "whole": {whole}, "text": {text}, "raw": "AP8="}}'.encode()
            answer = server.post("/v1/procedures/keep", content=body)
            inside = [float(real).hex(), whole, json.loads(text).encode().hex(), "00ff"]
            assert answer.json()["result"] == inside
            told.append([float(real) + 0.0, int(whole), json.loads(text), "AP8="])
        rows = [server.call("kept_row", item=item) for item in range(len(EDGES))]
        assert repr(rows) == repr(told)
        query = {"sql": "SELECT real, whole, text, raw FROM kept ORDER BY id"}
        read = server.post("/v1/query", query).json()["rows"]
        assert sorted(map(repr, read)) == sorted(map(repr, told))
        server.kill()
        for state in (server.folder / "data" / "state").glob("*.sqlite*"):
            state.unlink()  # so that everything is rebuilt
        server.start()
        assert repr([server.call("kept_row", item=item) for item in range(len(EDGES))]) == repr(told)
    finally:
        server.kill()


BAD_TEXTS = [
    b"", b"[]", b"null", b"{", b'{"item": 1, "item": 2}', b'{"item": NaN}', b'{"item": Infinity}', b'{"item": 1e999}',
    b'{"item": 9223372036854775808}', b'{"item": 18446744073709551616}', b'{"item": ' + b"9" * 5000 + b"}",
    b'{"item": 1.' + b"0" * 5000 + b"}", b'{"item": 1, "name": "\\ud800"}', b'{"item": 1, "name": "\\u0000"}',
    b'{"item": 1, "name": "\xff"}', b'{"item": 1, "name": "\x00"}', b'{"item": 1, "na\\u0000me": 1}', b'{"item": true}',
    b'{"item": "1"}', b'{"item": 1.5}', b'{"item": ' + b"[" * 65 + b"]" * 65 + b"}",
    b'{"item": ' + b"[" * 500 + b"]" * 500 + b"}", b"[" * 30_000 + b"]" * 30_000, b'{"a":' * 10_000,
    b'{"item": 1}{"item": 2}', b'{"item": 1} \x00', b"\xef\xbb\xbf{}",
    '{"item": 1}'.encode("utf-16"), '{"item": 1}'.encode("utf-32"), b'{"__proto__": {"item": 1}}',
    b'{"item": 1, "\\u0069tem": 2}',
]  # fmt: skip


def test_malformed_json_is_refused_everywhere_and_logs_nothing(server: Running) -> None:
    """Calls, queries and batch lines: 4xx with a code, the log stays where it is, and the server goes on."""
    before = server.committed()
    for text in BAD_TEXTS:
        for path in ("/v1/procedures/put", "/v1/query"):
            answer = server.post(path, content=text)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_parameters"), (path, text[:50])
        line = text.replace(b"\n", b" ")
        for one in (line, b'{"procedure": "put", "params": ' + line + b"}"):
            told = [orjson.loads(part) for part in server.post("/v1/batch", content=one + b"\n").content.splitlines()]
            assert all(told_of["error"]["code"] == "invalid_parameters" for told_of in told), one[:80]
            assert told or not one.strip()
    assert server.committed() == before


NAMES = [
    "..", "../put", "..%2fput", "..%2f..%2fetc%2fpasswd", "%2e%2e/put", "%2e%2e%2fput", "....//put", "put/", "put/..", "put%00",
    "put%00.x", "%00", "put;x", "put?x=1#y", "put.", "put%20", "%20put", "PUT", "Put", "p%C3%BCt", "%ff%fe", "%c0%ae%c0%ae/put",
    "%252e%252e", "~root", "C:%5cput", "%5c%5chost%5cput", "//put", "%2fetc%2fpasswd", "put,get", "*", "x" * 4000,
    "put%0d%0aX-Injected:1", "_cmdlog_meta", "%", "%zz", "file:%2f%2f%2fetc",
]  # fmt: skip


def test_paths_that_lead_elsewhere_lead_nowhere(server: Running) -> None:
    """Names come from an allow-list: dots, slashes, NUL, other case and scripts, encodings of them and long ones are none."""
    before = server.committed()
    for name in NAMES:
        status, head, content = answer_of(
            server, "POST", f"/v1/procedures/{name}", b'{"item": 1}', [b"Authorization: Bearer " + GOOD.encode()]
        )
        assert status in (200, 400, 404, 414), name
        assert (status == 200) == (name == "put?x=1#y"), name
        assert b"x-injected" not in head
        assert status != 404 or json.loads(content)["code"] in ("unknown_procedure", "not_found")
    for path in (
        "/v1/snapshots/../../etc/passwd",
        "/v1/snapshots/%2e%2e",
        "/docs/..",
        "/%2e%2e/etc/passwd",
        "/v1/./status",
        "/metrics%00",
    ):
        status, _, content = answer_of(server, "GET", path, headers=[b"Authorization: Bearer " + GOOD.encode()])
        assert status in (400, 404), path
        assert status == 400 or json.loads(content)["code"] == "not_found"
    moved = [new - old for new, old in zip(server.committed(), before, strict=True)]
    assert sum(moved) <= 2  # the one call that was one, and its digest


@pytest.mark.parametrize("path", ["/v1/procedures/put", "/v1/query", "/v1/batch"])
def test_compressed_body_is_refused_and_never_unpacked(server: Running, path: str) -> None:
    """A gibibyte of zeros in a megabyte: 415 at once, and no memory goes into it."""
    bomb = gzip.compress(bytes(16 << 20)) * 64
    before, held = server.committed(), server.rss_bytes()
    for coding in ("gzip", "deflate", "br", "zstd", "gzip, gzip", "x-gzip", "GZIP", "identity, gzip"):
        answer = server.post(path, content=bomb[:60_000], headers=[("Content-Encoding", coding)])
        assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")
    assert server.post(path, content=bomb, headers=[("Content-Encoding", "gzip")]).status_code in (413, 415)
    assert server.rss_bytes() - held < 64 << 20
    fine = BODIES[{"/v1/procedures/put": "call", "/v1/query": "query", "/v1/batch": "batch"}[path]]
    for packed in (gzip.compress(fine), zstandard.compress(fine)):  # without saying so it is just no JSON
        answer = server.post(path, content=packed)
        assert answer.status_code == 422 or b'"invalid_parameters"' in answer.content
    assert server.committed() == before
    assert server.post(path, content=fine, headers=[("Content-Encoding", "identity")]).status_code == 200


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ('Application/JSON;charset="UTF-8"', 200),
        ("application/x-ndjson", 200),
        ("application/x-www-form-urlencoded", 200),
        ("application/json; charset=utf-16", 415),
        ("application/json; charset=iso-8859-1", 415),
        ("text/plain", 415),
        ("text/html", 415),
        ("multipart/form-data; boundary=x", 415),
        ("application/xml", 415),
        ("application/jsonx", 415),
        ("", 415),
        (";", 415),
    ],
)
def test_other_kinds_of_bodies_are_refused(server: Running, kind: str, status: int) -> None:
    """JSON in UTF-8, whatever a client's default calls it; pages of other sites cannot send it without asking first."""
    answer = server.post("/v1/procedures/get", {"item": 1}, headers=[("Content-Type", kind)])
    assert answer.status_code == status
    assert status == 200 or answer.json()["code"] == "unsupported_media_type"


def got(server: Running, token: str, named: Callable[[int], dict[str, Any]]) -> int:
    """How many of 60 new keys or sessions on one partition a caller gets."""
    lines = [orjson.dumps({"procedure": "put", "params": {"item": 1, "name": "x"}, **named(n)}) for n in range(60)]
    answers = server.post("/v1/batch", content=b"\n".join(lines), token=token).content.splitlines()
    codes = [orjson.loads(answer).get("error", {}).get("code") for answer in answers]
    assert set(codes) <= {None, "sessions_full"}
    return codes.count(None)


def a_key(_: int) -> dict[str, Any]:
    """Members of a line: a key that nobody has used."""
    return {"key": str(uuid.uuid4())}


def a_session(_: int) -> dict[str, Any]:
    """The first call of a new session."""
    return {"session": uuid7(round(1000 * time.time()), os.urandom(10)), "number": 1}


def test_lowest_role_does_not_use_up_the_keys_and_sessions_of_others(tmp_path: Path) -> None:
    """It gets four fifths of a partition's, also after restarts; of what it leaves, another credential gets as much."""
    server = Running(tmp_path, "--keys-max", "50", "--sessions-max", "50")
    try:
        for named in (a_key, a_session):
            assert [got(server, token, named) for token in (TOKENS[INVOKE], OTHER, TOKENS[ADMIN])] == [40, 8, 1]
        assert server.get("/v1/status").json()["largest_shares"] == {"idempotency_keys": 0.8, "sessions": 0.8}
        server.kill()
        server.start()
        for named in (a_key, a_session):
            assert got(server, TOKENS[INVOKE], named) <= 1, "one call a minute"
        assert server.get("/v1/status").json()["largest_shares"]["sessions"] == 0.8
    finally:
        server.kill()


def test_query_that_asks_too_much_is_refused_with_its_own_code(server: Running) -> None:
    """Time, rows, bytes, memory and a step without end: 422 `query_limit`; calls are answered meanwhile, and memory stays."""
    held = server.rss_bytes()
    letters = "replace(hex(zeroblob(4000000)), '0', 'a')"
    for sql in (
        over_numbers("SELECT max(i) FROM n"),
        over_numbers("SELECT i FROM n"),
        over_numbers("SELECT i, hex(zeroblob(100000)) FROM n LIMIT 1000"),
        "SELECT " + ",".join("hex(zeroblob(8000000))" for _ in range(100)),
        f"SELECT instr({letters}, substr({letters}, 1, 4000000) || 'b')",
    ):
        answer = server.post("/v1/query", {"sql": sql, "partition": 0})
        assert (answer.status_code, answer.json()["code"]) == (422, "query_limit"), sql[:80]
        assert server.call("put", item=1, name="meanwhile") == 1
    assert server.rss_bytes() - held < 48 << 20
    assert server.post("/v1/query", {"sql": "SELECT 1", "partition": 0}).json()["rows"] == [[1]]


def test_nothing_secret_is_told(server: Running) -> None:
    """A word planted in parameters, tokens, keys and SQL is in no log line, metric, status or fault note."""
    word = CANARY
    requests = [
        ("/v1/procedures/put", {"item": 1, "name": word}, []),
        ("/v1/procedures/put", {"item": word}, []),
        ("/v1/procedures/put", {"item": 1, "name": word}, [("Idempotency-Key", word)]),
        ("/v1/procedures/put", {"item": 2, "name": word}, [("Idempotency-Key", word)]),
        ("/v1/procedures/stop", {"item": 1, "message": word}, []),
        ("/v1/procedures/keep", {"item": 1, "real": 1e308, "whole": 1, "text": word, "raw": "AA=="}, []),
        ("/v1/query", {"sql": f"SELECT '{word}'"}, []),
        ("/v1/query", {"sql": f"{word} is no SQL"}, []),
        ("/v1/query", {"sql": f'SELECT "{word}"'}, []),
        ("/v1/query", {"sql": "SELECT ?", "params": [word, word]}, []),
        ("/v1/query", {"sql": over_numbers("SELECT max(i), ? FROM n"), "params": [word]}, []),
    ]  # a procedure that puts a parameter into its exception shows it: that text is for the application's authors
    for path, body, headers in requests:
        server.post(path, body, headers=headers)
        server.post("/v1/batch", {"procedure": path.rpartition("/")[2], "params": body, "key": word})
        server.post("/v1/batch", content=json.dumps(body).encode()[:-1])
        server.post(path, body, token=word)
        server.post(path, body, token=word * 500)
    server.client.get("/v1/status", headers={"Authorization": f"Basic {word}"})
    server.raw(
        request("POST", "/v1/procedures/put", b"{", [b"Authorization: Bearer " + word.encode(), b"Bad Header: " + word.encode()])
    )
    told = [server.get(path).text for path in ("/metrics", "/v1/status", "/v1/procedures", "/openapi.json", "/v1/snapshots")]
    with server.client.stream("GET", "/v1/events", headers={"Authorization": f"Bearer {GOOD}"}) as events:
        told.append(next(line for line in events.iter_lines() if line.startswith("data:")))
    assert "slow_call" in server.logged()
    faults = [path.read_bytes() for path in (server.folder / "data" / "faults").rglob("*") if path.is_file()]
    for text in (server.logged(), *told):
        assert word not in text
        assert not any(token in text for token in (*TOKENS.values(), OTHER, EXPIRED))
    assert not any(word.encode() in data for data in faults)


def test_an_error_repeats_only_what_its_caller_sent(server: Running) -> None:
    """Long values and long names of procedures not even whole; and nothing of the machine."""
    for path, body in (
        ("/v1/procedures/" + "x" * 3000, {}),
        ("/v1/procedures/put", {"k" * 3000: 1}),
        ("/v1/procedures/put", {"item": "v" * 3000}),
        ("/v1/query", {"sql": "SELECT " + "x" * 3000}),
    ):
        problem = server.post(path, body).json()
        assert CODES[problem["code"]][0] < 500
        assert str(server.folder) not in json.dumps(problem)
        assert "Traceback" not in json.dumps(problem)
    assert "x" * 100 not in server.post("/v1/procedures/" + "x" * 3000, {}).text
    assert "k" * 300 not in server.post("/v1/procedures/put", {"k" * 3000: 1}).text
    assert "v" * 100 not in server.post("/v1/procedures/put", {"item": "v" * 3000}).text


def test_query_of_a_client_that_left_is_ended(server: Running) -> None:
    """Its process is free again long before its time: with one process for all, the next caller gets its turn."""
    endless = orjson.dumps({"sql": over_numbers("SELECT max(i) FROM n")})
    assert server.post("/v1/query", {"sql": "SELECT 1"}).status_code == 200  # a process is there
    for _ in range(6):
        with httpx.Client(base_url=server.url, timeout=httpx.Timeout(10, read=0.05)) as client, pytest.raises(httpx.ReadTimeout):
            client.post("/v1/query", content=endless, headers={"Authorization": f"Bearer {GOOD}"})
    answer = server.post("/v1/query", {"sql": "SELECT 1", "partition": 0})
    assert answer.status_code == 200, answer.text
