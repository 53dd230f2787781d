"""Feeding while everything around fails: each row takes effect exactly once. No session needed."""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import orjson
import pyarrow
import pytest
from pyarrow import parquet

from cmdlog.client.client import Client
from cmdlog.client.feed_sender import Feeder
from cmdlog.errors import SessionExpired
from cmdlog.results import Result
from cmdlog.testing import Server
from replay.spark.base.version_check import versions
from replay.spark.feeding.task import feed_file
from replay.spark.jobs.task_attempt import Attempt, carry_out
from tests.client.scripted import ScriptedServer, Step, problem
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow
IDS = 5
ROWS = 1500


def order_of(folder: Path, first_id: int) -> dict[str, Any]:
    """A file of calls that each add 1, as an order."""
    for name in ("attempts", "rows", "progress"):
        (folder / name).mkdir()
    params = [orjson.dumps({"id": first_id + n % IDS, "amount": 1}).decode() for n in range(ROWS)]
    parquet.write_table(pyarrow.table({"procedure": ["bump"] * ROWS, "params": params}), folder / "calls.parquet")
    about = {
        "key": "c000000",
        "partition": 0,
        "file": 0,
        "first": 0,
        "job": f"job{first_id}",
        "began_ms": int(time.time() * 1000),
    }
    return {**about, "path": str(folder / "calls.parquet"), "calls": ROWS, "staging": str(folder), "versions": versions()}


def counters(server: Server, first_id: int) -> list[int]:
    """What the server holds, by id; a query gives partition after partition."""
    rows = sorted(server.client.query("SELECT id, n FROM counters").dicts(), key=lambda row: row["id"])
    return [row["n"] for row in rows if first_id <= row["id"] < first_id + IDS]


@contextmanager
def bad_way(url: str, misdeed: Callable[[int], str], port: int = 0) -> Iterator[tuple[str, Counter[str]]]:
    """A proxy that does to the n-th batch what `misdeed` says; its URL and what it did."""
    did: Counter[str] = Counter()
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with lock:
                act = misdeed(did.total())
                did[act] += 1
            if act.isdigit():
                self._answer(int(act), b'{"code":"overloaded","detail":"later"}', {"Retry-After": "0"})
                return
            kept = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "content-length")}
            answer = httpx.post(url + self.path, content=body, headers=kept)
            if act == "lost":
                self.close_connection = True
                self.connection.close()
                return
            data = answer.content[: len(answer.content) // 2] if act == "half" else answer.content
            self._answer(answer.status_code, data, {"Content-Type": answer.headers["Content-Type"]}, len(answer.content))
            if act == "half":
                self.close_connection = True
                self.connection.close()

        def do_GET(self) -> None:
            answer = httpx.get(url + self.path, headers={"Authorization": self.headers.get("Authorization", "")})
            self._answer(answer.status_code, answer.content, {"Content-Type": answer.headers["Content-Type"]})

        def _answer(self, status: int, data: bytes, headers: dict[str, str], length: int = -1) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(length if length >= 0 else len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)
            self.wfile.flush()

        def log_message(self, *_: Any) -> None: ...

    httpd = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}", did
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def sent(order: dict[str, Any], send: Any) -> dict[str, Any]:
    """The row of one attempt."""
    row: dict[str, Any] = orjson.loads(carry_out(order, lambda order, attempt: feed_file(order, attempt, send)))
    return row


def test_refusals_for_a_while_and_lost_answers_execute_nothing_twice(server: Server, tmp_path: Path) -> None:
    """429 and 503 with Retry-After, answers that are lost whole or cut in half: each row once, and none is reported."""
    acts = ["429", "lost", "503", "half", "429", "lost"]
    with bad_way(server.url, lambda n: acts[n] if n < len(acts) else "good") as (url, did):
        row = sent(order_of(tmp_path, 100), Feeder(url))
    assert row["statuses"] == {"ok": ROWS}
    assert counters(server, 100) == [ROWS // IDS] * IDS
    assert did - Counter(acts) == Counter({"good": did["good"]})
    assert did["good"] == did.total() - len(acts) > 0


def test_call_whose_key_is_too_old_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been executed before its outcome was forgotten; `refused` would say that it was not."""
    monkeypatch.setattr(Client, "batch", lambda _client, calls: (SessionExpired("too old") for _ in calls))
    answers = list(Feeder("http://127.0.0.1:9")([("bump", {}, "j/0/0")], began_ms=1))
    assert [(answer["ended"], answer["code"]) for answer in answers] == [("unknown", "session_expired")]


def test_refusal_after_a_lost_answer_does_not_end_the_job(server: Server, tmp_path: Path) -> None:
    """The server answers, so it is not away. An invalid row whose first answer was lost is reported, and all others run."""
    order = order_of(tmp_path, 900)
    params = [orjson.dumps({"id": 900 + n % IDS, "amount": 1 if n != 7 else 1.5}).decode() for n in range(ROWS)]
    parquet.write_table(pyarrow.table({"procedure": ["bump"] * ROWS, "params": params}), tmp_path / "calls.parquet")
    with bad_way(server.url, lambda n: "good" if n else "lost") as (url, _):
        row = sent(order, Feeder(url))
    assert row["statuses"] == {"ok": ROWS - 1, "unknown": 1}
    assert sum(counters(server, 900)) == ROWS - 1


def test_two_attempts_at_once_execute_nothing_twice(server: Server, tmp_path: Path) -> None:
    """Speculation: the same file by two senders side by side; both are answered alike."""
    order, rows = {**order_of(tmp_path, 200), "key_rows": 200}, list[dict[str, Any]]()
    threads = [threading.Thread(target=lambda: rows.append(sent(order, Feeder(server.url)))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [row["statuses"] for row in rows] == [{"ok": ROWS}] * 2
    assert counters(server, 200) == [ROWS // IDS] * IDS


def test_service_that_is_killed_in_the_middle_executes_nothing_twice(tmp_path: Path) -> None:
    """SIGKILL to the node while calls are under way, and a restart: what it had executed is answered from its log."""
    server = Server("tests.node.apps.faulty:db", tmp_path / "server", partitions=2, key_window_s=3600)
    (tmp_path / "job").mkdir()
    rows, restarted = list[dict[str, Any]](), threading.Event()

    def hold(number: int) -> str:
        return "good" if number and restarted.wait(PATIENCE_S) else "lost"

    try:
        server.start()
        order = order_of(tmp_path / "job", 300)
        with bad_way(server.url, hold) as (url, _):
            thread = threading.Thread(target=lambda: rows.append(sent(order, Feeder(url))))
            thread.start()
            wait_for(lambda: sum(counters(server, 300)))
            server.kill()
            server.start()
            assert not rows
            restarted.set()
            thread.join()
        assert rows
        assert rows[0]["statuses"] == {"ok": ROWS}
        assert counters(server, 300) == [ROWS // IDS] * IDS
    finally:
        server.close()


@pytest.mark.parametrize("way", ["down", "silent"])
def test_server_that_does_not_answer_ends_the_job_in_time(tmp_path: Path, way: str) -> None:
    """No connection, or one on which nothing comes: the progress says what is waited for, from the first failure on; then one
    error names the server, and a task that had not begun ends with the same one at once."""
    order, told = order_of(tmp_path, 500), list[dict[str, Any]]()

    class Watching(Feeder):
        def telling(self, tell: Callable[[str], None]) -> Feeder:
            def watched(reason: str) -> None:
                tell(reason)
                told.append(orjson.loads((tmp_path / "progress" / "c000000").read_bytes()))

            return Feeder.telling(Feeder(self.url, give_up_after_s=self.give_up_after_s), watched)

    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        if way == "silent":
            deaf.listen()
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        error = sent(order, Watching(url, give_up_after_s=0.8))["error"]
    assert (error["kind"], url in error["message"], "no answer for 0.8 s" in error["message"]) == ("ServerAway", True, True)
    assert "run the same command to resume" in error["hint"]
    assert {of["calls"] for of in told} == ({0} if way == "down" else set())  # the only request took all of the time
    assert all(of["waiting"].startswith("server unreachable, retrying: ") for of in told)
    other = sent({**order, "key": "c000001"}, None)["error"]
    assert (other["kind"], other["message"]) == (error["kind"], error["message"])


def test_server_that_comes_back_in_time_is_gone_on_with(server: Server, tmp_path: Path) -> None:
    """It is away at first, and answers are lost later: within the limit all is sent again, and each row takes effect once."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
    order, rows, waits = order_of(tmp_path, 700), list[dict[str, Any]](), threading.Event()

    class Watching(Feeder):
        def telling(self, tell: Callable[[str], None]) -> Feeder:
            return Feeder.telling(Feeder(self.url, give_up_after_s=self.give_up_after_s), lambda _reason: waits.set())

    thread = threading.Thread(target=lambda: rows.append(sent(order, Watching(f"http://127.0.0.1:{port}", give_up_after_s=20))))
    thread.start()
    assert waits.wait(PATIENCE_S)
    with bad_way(server.url, lambda n: "lost" if n in (0, 1, 3) else "good", port) as (_, did):
        thread.join()
    assert rows[0]["statuses"] == {"ok": ROWS}
    assert did["lost"] == 3
    assert counters(server, 700) == [ROWS // IDS] * IDS


def test_limit_counts_from_the_last_answer(server: Server) -> None:
    """Silences with an answer between them do not add up, be it a refusal; without one they do."""
    acts = ["lost", "lost", "503", "lost"]
    with bad_way(server.url, lambda n: acts[n] if n < len(acts) else "good") as (url, did):
        heard = list[float]()
        with Feeder(url)._client() as client:
            client.tell = lambda _why: heard.append(client._heard_at)
            assert all(isinstance(answer, Result) for answer in client.batch([("bump", {"id": 800, "amount": 1}, "limit/0/0")]))
    assert did["lost"] == 3
    assert heard[0] == heard[1] < heard[2] < heard[3]


def test_server_that_lets_nobody_in_is_asked_once(server: Server, tmp_path: Path) -> None:
    """A credential does not become better by trying."""
    with bad_way(server.url, lambda _: "401") as (url, did):
        error = sent(order_of(tmp_path, 900), Feeder(url))["error"]
    assert (error["kind"], url in error["message"], did) == ("ServerAway", True, Counter({"401": 1}))


def test_target_is_the_cluster_or_else_the_address(server: Server, tmp_path: Path) -> None:
    """A credential that may only call does not see the status; a task that meets another cluster sends nothing."""
    cluster = str(server.client.status()["node"]).partition(",")[0]
    assert Feeder(server.url).target() == cluster
    with ScriptedServer([Step("body read", reply=problem(403, "forbidden"))]) as scripted:
        assert Feeder(f"{scripted.url}/").target() == f"server {scripted.url}"
    error = sent({**order_of(tmp_path, 950), "target": "cluster e15e"}, Feeder(server.url))["error"]
    assert error["kind"] == "OtherServer"
    assert f"belongs to {cluster}, and the job was started with cluster e15e" in error["message"]
    assert counters(server, 950) == []


def test_wait_for_a_server_ends_with_its_next_answer(server: Server, tmp_path: Path) -> None:
    """A refusal for a while and a lost answer are told; what is told last says that nothing is waited for."""
    seen = list[str]()
    (tmp_path / "progress").mkdir()
    attempt = Attempt("c000000", str(tmp_path), str(tmp_path), str(tmp_path))
    acts = ["503", "lost"]
    with bad_way(server.url, lambda n: acts[n] if n < len(acts) else "good") as (url, _):
        rows = [("bump", {"id": 600, "amount": 1}, f"wait/0/{n}") for n in range(20)]
        for number, answer in enumerate(Feeder(url).telling(seen.append)(rows, began_ms=int(time.time() * 1000))):
            assert answer["ended"] == "ok"
            for reason in seen[number:]:
                attempt.waits(reason)
            attempt.count_calls(number)
    assert [reason.split(",")[0] for reason in seen] == ["server is not ready or busy (status 503)", "server did not answer"]
    assert orjson.loads((tmp_path / "progress" / "c000000").read_bytes())["waiting"] == ""
