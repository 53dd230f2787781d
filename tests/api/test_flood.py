"""Thousands of hostile connections against a server as it runs in service: good clients hardly notice."""

import contextlib
import json
import os
import resource
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench._common import cpu_seconds, rss_bytes
from bench._load import Target, request, run_load
from bench._siege import siege
from tests.api.running import ROOT, Bank
from tests.api.served import status_of
from tests.waiting import PATIENCE_S, eventually, wait_for

pytestmark = pytest.mark.slow

IDLE = HEADS = 1000
GOOD_CLIENTS = 4
CONNECTION_BYTES_MAX = 32 << 10  # of the node's memory: parser, transport, and what the kernel does not count


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Bank]:
    """Ready, with an account."""
    server = Bank(tmp_path, "--header-timeout-s", "2")
    try:
        server.open_account(1)
        yield server
    finally:
        server.kill()


def port_of(server: Bank) -> int:
    """Where it listens."""
    return int(server.url.rpartition(":")[2])


def test_besieged_server_serves_good_clients(server: Bank) -> None:
    """Beside 1,000 silent connections and 1,000 heads that never end, renewed when they are closed, every call is answered.

    And the siege costs the node little memory. How much later calls are answered is measured by `make torture`.
    """
    target = besieged(server)
    before = rss_bytes(server.process.pid)
    with siege(target.port, idle=IDLE, heads=HEADS) as found:
        assert run_load(target, connections=GOOD_CLIENTS, count=400)["statuses"] == {"200": 400}
        grown = rss_bytes(server.process.pid) - before
        assert httpx.get(server.url + "/readyz", timeout=PATIENCE_S).status_code == 200
    assert found.opened >= IDLE + HEADS
    assert grown <= (IDLE + HEADS) * CONNECTION_BYTES_MAX
    assert "error" not in server.logged().replace("errors.txt", "")


def besieged(server: Bank) -> Target:
    """What good clients ask for, once they have asked for a while."""
    if resource.getrlimit(resource.RLIMIT_NOFILE)[1] < 2 * (IDLE + HEADS):
        pytest.skip("the limit of open files does not allow so many connections")
    body = json.dumps({"account": 1, "amount": 1}).encode()
    target = Target(port_of(server), [request("POST", "/v1/procedures/deposit", body)])
    run_load(target, connections=GOOD_CLIENTS, count=400)
    return target


def test_server_keeps_files_for_itself(tmp_path: Path) -> None:
    """With few open files allowed there are fewer connections, never fewer files for the log: a flood is survived, and said."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    allowed = 400  # 256 and 16 for each of two partitions are kept
    server = Bank(tmp_path, files_max=allowed)
    try:
        clients = []
        for _ in range(300):
            clients.append(socket.create_connection(("127.0.0.1", port_of(server)), timeout=PATIENCE_S))
            clients[-1].sendall(b"POST / HTTP/1.1\r\n")
        files = f"/proc/{server.process.pid}/fd"
        assert eventually(lambda: httpx.get(server.url + "/readyz", timeout=PATIENCE_S).status_code == 200)
        assert len(os.listdir(files)) < allowed - 200
        for account in range(20):
            server.open_account(account, 1)
        for client in clients:
            client.close()
        assert "connections_limited" in server.logged()
        assert server.stop() == 0
    finally:
        server.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_server_whose_files_run_out_loses_only_newcomers() -> None:
    """Who is connected is served on, newcomers wait and the server does not spin; once there are files, they are served."""
    process = subprocess.Popen([sys.executable, "-m", "bench._layer"], stdout=subprocess.PIPE, cwd=ROOT)
    call = request("POST", "/v1/procedures/transfer", b"{}")
    try:
        assert process.stdout is not None
        here = ("127.0.0.1", int(process.stdout.readline()))
        allowed = resource.prlimit(process.pid, resource.RLIMIT_NOFILE)
        with contextlib.ExitStack() as opened:
            old = opened.enter_context(socket.create_connection(here, timeout=PATIENCE_S))
            old.sendall(call)
            assert status_of(old.recv(4096)) == 200
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (3, allowed[1]))  # not even the spare one can be had again
            newcomers = [opened.enter_context(socket.create_connection(here, timeout=PATIENCE_S)) for _ in range(50)]
            for _ in range(50):
                old.sendall(call)
                assert status_of(old.recv(4096)) == 200
            wait_until_at_rest(process.pid)
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, allowed)
            late = [client for client in newcomers if not ended(client)]
            assert len(late) >= 45
            for client in late:
                client.settimeout(120)
                client.sendall(call)
                assert status_of(client.recv(4096)) == 200
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def wait_until_at_rest(process: int) -> None:
    """It has nothing to do: in some fifty looks on end it takes no processor time at all. One that spins never comes to that."""
    taken = deque[float](maxlen=50)

    def rests() -> bool:
        taken.append(cpu_seconds(process))
        return len(taken) == taken.maxlen and taken[0] == taken[-1]

    wait_for(rests)


def ended(client: socket.socket) -> bool:
    """Whether the server has closed it."""
    client.setblocking(False)
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
