"""The server as a process of its own, over real sockets and a real node."""

import json
import os
import signal
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import pytest
import trustme

from cmdlog.testing import Server
from tests.api.running import ROOT, Bank
from tests.waiting import ASK_EVERY_S, PATIENCE_S, eventually, wait_for

pytestmark = pytest.mark.slow


RESET = struct.pack("ii", 1, 0)  # of SO_LINGER: closing resets the connection


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """One server for all tests that leave it running."""
    server = Bank(tmp_path_factory.mktemp("server"), "--call-bytes-max", "64KiB")
    try:
        yield server
    finally:
        server.kill()


def test_failure_is_an_outcome_that_the_log_and_the_status_explain(server: Bank) -> None:
    """A retry under the key gets the same answer with the same place; the traceback is in the log, with both ids."""
    server.open_account(77, 1)
    send = partial(server.post, "/v1/procedures/open_account", {"account": 77, "amount": 1})
    answers = [send(headers=[("Idempotency-Key", "again"), ("X-Request-Id", f"failed-{n}")]) for n in range(2)]
    assert [answer.status_code for answer in answers] == [500, 500]
    first, second = ({**answer.json(), "request_id": ""} for answer in answers)
    assert first == second
    assert first["file"] == "bank_of_test.py"
    lines = [json.loads(line) for line in server.logged().splitlines() if '"failed-0"' in line]
    (line,) = [line for line in lines if line["event"] == "procedure_failed"]
    assert (line["txn_id"], line["procedure"], line["line"]) == (first["txn_id"], "open_account", first["line"])
    assert f'File "bank_of_test.py", line {first["line"]}, in open_account' in line["traceback"]
    newest = server.get("/v1/status").json()["errors"][-1]
    assert (newest["code"], newest["request_id"], newest["file"]) == ("procedure_failed", "failed-1", "bank_of_test.py")
    assert newest["text"].startswith(first["error"])


@pytest.mark.parametrize("sent", ["head", "half a body", "body"])
@pytest.mark.parametrize("left_by", ["reset", "end"])
def test_outcome_of_a_client_that_left_is_kept_under_its_key(server: Bank, sent: str, left_by: str) -> None:
    """Whenever it leaves, the repetition under its key has the one outcome: executed once, then or before."""
    account = 20_000 + 2 * ("head", "half a body", "body").index(sent) + ("reset", "end").index(left_by)
    server.open_account(account)
    body = b'{"account": %d, "amount": 7}' % account
    key = f"{sent}-{left_by}".replace(" ", "-")
    head = "POST /v1/procedures/deposit HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    host, port = server.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as client:
        client.sendall(head.encode() + {"head": b"", "half a body": body[:9], "body": body}[sent])
        if left_by == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
    answers = [server.post("/v1/procedures/deposit", content=body, headers=[("Idempotency-Key", key)]) for _ in range(2)]
    assert [answer.json()["result"] for answer in answers] == [7, 7]
    assert server.call("balance", account=account) == 7


def test_server_speaks_tls(tmp_path: Path) -> None:
    """With a certificate the address is https and calls are served; a foreign key is refused before anything is written."""
    authority = trustme.CA()
    leaf, other = authority.issue_cert("localhost", "127.0.0.1"), authority.issue_cert("localhost")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    leaf.cert_chain_pems[0].write_to_path(str(cert))
    other.private_key_pem.write_to_path(str(key))
    options = ("--tls-cert-file", str(cert), "--tls-key-file", str(key))
    refused = Bank(tmp_path, *options, waits=False)
    try:
        assert refused.process.wait(PATIENCE_S) == 2
        assert not (tmp_path / "data").exists()
    finally:
        refused.kill()
    leaf.private_key_pem.write_to_path(str(key))
    server = Bank(tmp_path, *options)
    try:
        assert server.url.startswith("https://127.0.0.1:")
        context = ssl.create_default_context()
        authority.configure_trust(context)
        with httpx.Client(base_url=server.url, verify=context) as client:
            assert client.post("/v1/procedures/open_account", json={"account": 1, "amount": 3}).json()["result"] == 3
            lines = b'{"procedure": "balance", "params": {"account": 1}}\n' * 3000
            answers = client.post("/v1/batch", content=lines).text.splitlines()
            assert [json.loads(answer)["result"] for answer in answers] == [3] * 3000
        authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
        environ = {**os.environ, "PYTHONPATH": str(ROOT)}
        for told, exit_code in ((("--ca-file", "authority.pem", "--timeout", "60"), 0), ((), 1), (("--ca-file", "key.pem"), 2)):
            command = [sys.executable, "-m", "cmdlog.cli", "status", "--url", server.url, "--timeout", "2", *told]
            ran = subprocess.run(command, cwd=tmp_path, env=environ, check=False, capture_output=True, text=True)
            assert (ran.returncode, "ca" in ran.stderr) == (exit_code, exit_code != 0), ran.stderr
        assert server.stop() == 0
    finally:
        server.kill()


def test_second_process_is_refused(server: Bank, tmp_path: Path) -> None:
    """Another server on the same directory ends with exit code 12, one on the same port with 2; the first goes on."""
    port = server.url.rpartition(":")[2]
    for folder, options, exit_code in ((server.folder, (), 12), (tmp_path, ("--port", port), 2)):
        second = Bank(folder, *options, waits=False)
        try:
            assert second.process.wait(PATIENCE_S) == exit_code
        finally:
            second.kill()
    assert not (tmp_path / "data").exists()
    assert server.get("/readyz").status_code == 200


def test_orderly_stop_answers_what_is_under_way(tmp_path: Path) -> None:
    """SIGTERM under load: every answered call is there after the restart, nothing runs any more, and the log was sealed."""
    server = Bank(tmp_path)
    try:
        server.open_account(1)
        acknowledged: list[int] = []
        started = threading.Event()

        def load() -> None:
            with httpx.Client(base_url=server.url) as client:
                for _ in range(100_000):
                    try:
                        answer = client.post("/v1/procedures/deposit", json={"account": 1, "amount": 1})
                    except httpx.TransportError:
                        return
                    if answer.status_code == 200:
                        acknowledged.append(answer.json()["result"])
                    if len(acknowledged) > 20:
                        started.set()

        loader = threading.Thread(target=load)
        loader.start()
        assert started.wait(PATIENCE_S)
        assert server.stop() == 0
        loader.join(PATIENCE_S)
    finally:
        server.kill()
    again = Bank(tmp_path)
    try:
        assert again.call("balance", account=1) == max(acknowledged)
        assert again.get("/v1/status").json()["log"]["verdict"] == "clean"
    finally:
        again.kill()


def children_of(server: Bank) -> str:
    """Processes that it has started."""
    pid = server.process.pid
    return Path(f"/proc/{pid}/task/{pid}/children").read_text()


def begin_sites(server: Bank) -> None:
    """Until they start."""
    server.next_event()
    wait_for(lambda: children_of(server))


MOMENTS: dict[str, Callable[[Bank], object]] = {
    "started": lambda server: server.process.pid,
    "listening": Bank.next_event,  # the node is being opened
    "sites": begin_sites,
    "ready": Bank.wait_ready,
}


@pytest.mark.slow
def test_stop_in_the_first_seconds_is_clean(tmp_path: Path) -> None:
    """SIGTERM at any moment of a start ends it soon, by the signal or in order, without a traceback; what is there is whole."""
    codes = []
    for moment in MOMENTS.values():
        server = Bank(tmp_path, waits=False)
        try:
            moment(server)
            codes.append(server.stop())
        finally:
            server.kill()
    assert set(codes) <= {0, -signal.SIGTERM, 128 + signal.SIGTERM}  # the last: before the command has begun
    assert 0 in codes
    assert "Traceback" not in (tmp_path / "errors.txt").read_text()
    assert Bank(tmp_path).stop() == 0


def test_a_read_that_ends_its_site_is_answered_with_the_reason(tmp_path: Path) -> None:
    """A call of its own and a line of a batch: a failure, which no client repeats."""
    server = Server("tests.node.apps.faulty:db", tmp_path, sites=1, call_timeout_s=1)
    try:
        server.start()
        hint = "hang_reading was stopped: the read ran longer than call_timeout_s=1"
        answer = httpx.post(f"{server.url}/v1/procedures/hang_reading", json={"id": 1})
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (500, "procedure_failed")
        assert (problem["error"], problem["hint"]) == ("SiteEnded", hint)
        read = partial(httpx.post, f"{server.url}/v1/procedures/peek", json={"id": 1})
        assert eventually(lambda: read().status_code == 200, every_s=ASK_EVERY_S)
        line = b'{"procedure": "end_reading", "params": {"id": 1, "how": "exit"}}\n'
        problem = json.loads(httpx.post(server.url + "/v1/batch", content=line).content)["error"]
        assert (problem["code"], problem["hint"]) == ("procedure_failed", "end_reading ended its site process: exit code 3")
    finally:
        server.close()
