"""A cluster of real processes: leaders that stop fail no call, followers answer as the leader does, members are proven."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from cmdlog.wal.files import RealFiles
from replay.drill.drill import drill
from tests.cluster.served import ServedCluster
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
PAUSE_S = 0.02  # of a caller between two calls: the processor is for the servers


def test_orderly_stops_of_leaders_fail_no_call(cluster: ServedCluster) -> None:
    """Calls without a key, at all nodes: each is answered, or refused with nothing logged. None ends in doubt, while two leaders
    in a row get SIGTERM."""
    account = cluster.new_account()
    caller = KeylessCaller(cluster, account)
    with caller.running():
        for _ in range(2):
            more_than(caller.answered, 20)
            stopped = cluster.leader()
            cluster.kill(stopped, signal.SIGTERM)
            more_than(caller.answered, 20)
            cluster.start(stopped)
            cluster.wait_follows(stopped)
    assert caller.doubtful == []
    assert cluster.call("balance", account, "")["result"] == len(caller.answered)


class KeylessCaller:
    """Deposits of 1 without a key, at each node, repeated only when they were refused."""

    def __init__(self, cluster: ServedCluster, account: dict[str, int]) -> None:
        self.answered: list[dict[str, Any]] = []
        self.doubtful: list[object] = []
        self._urls, self._account = cluster.urls, account
        self._over = threading.Event()

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """One caller per node."""
        threads = [threading.Thread(target=self._run, args=(url,)) for url in self._urls.values()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._over.set()
            for thread in threads:
                thread.join()

    def _run(self, url: str) -> None:
        with httpx.Client() as client:
            while not self._over.wait(PAUSE_S):
                url = self._deposit(client, url)

    def _deposit(self, client: httpx.Client, url: str) -> str:
        """Where the next one goes."""
        urls = list(self._urls.values())
        another = urls[(urls.index(url) + 1) % len(urls)]
        try:
            answer = client.post(f"{url}/v1/procedures/deposit_checking", json={**self._account, "amount": 1})
        except httpx.ConnectError:
            return another
        except httpx.HTTPError as error:
            self.doubtful.append(error)
            return another
        if answer.status_code == 503:
            return str(answer.json().get("leader", another))
        (self.answered if answer.status_code == 200 else self.doubtful).append(answer.json())
        return url


def more_than(answers: list[dict[str, Any]], count: int) -> None:
    """So many more calls have an outcome."""
    before = len(answers)
    wait_for(lambda: len(answers) > before + count)


def test_batches_reads_and_headers_work_at_a_follower(cluster: ServedCluster) -> None:
    """As at the leader: lines in order, reads that see what was answered before, `Cmdlog-Txn`, `Prefer`, problems."""
    account, node = cluster.new_account(), cluster.a_follower()
    deposit = {**account, "amount": 1}
    url = cluster.urls[node]
    lines = [{"procedure": "deposit_checking", "params": deposit, "key": f"line{n}"} for n in range(300)]
    lines += [{"procedure": "set_rate", "params": {"name": "base", "basis_points": 7}}]
    lines += [{"procedure": "deposit_checking", "params": {**deposit, "branch": 9}}, {"procedure": "nobody_s", "params": {}}]
    given = httpx.post(f"{url}/v1/batch", content=b"\n".join(map(orjson.dumps, lines)))
    answers = [orjson.loads(line) for line in given.content.splitlines()]
    assert len(answers) == len(lines)
    txns = [int(answer["txn_id"]) for answer in answers[:300]]
    assert txns == sorted(set(txns)), "in the order of the lines"
    assert [answer["error"]["code"] for answer in answers[301:]] == ["aborted", "unknown_procedure"]
    seen = answers[300]["txn_id"]
    call = httpx.post(
        f"{url}/v1/procedures/deposit_checking", json=deposit,
        headers={"Cmdlog-Txn": seen, "Prefer": "durability=sync"},
    )  # fmt: skip
    assert call.status_code == 200, call.text
    assert call.headers["preference-applied"] == "durability=sync"
    assert int(call.headers["cmdlog-txn"]) > int(seen)
    read = httpx.post(f"{url}/v1/procedures/balance", json=account)
    assert read.json()["result"] == 301
    future = httpx.post(f"{url}/v1/procedures/balance", json=account, headers={"Cmdlog-Txn": str(2**62)})
    logged = httpx.post(f"{url}/v1/procedures/deposit_checking", json=deposit, headers={"Cmdlog-Txn": str(2**62)})
    assert (future.status_code, logged.status_code) == (422, 422)
    assert logged.json()["problems"][0]["field"] == "Cmdlog-Txn"
    query = httpx.post(f"{url}/v1/query", json={"sql": "SELECT 1"})
    assert (query.status_code, query.json()["leader"]) == (503, cluster.urls[cluster.leader()])
    status = cluster.status(node)["cluster"]["forwarding"]
    assert status["sent"] >= 303


def drilled(cluster: ServedCluster, node: int) -> dict[str, Any]:
    """What the command says, which ends well."""
    command = cluster.command("drill", f"n{node}", "--json")
    done = subprocess.run(command, cwd=cluster.folder, env=cluster.environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.torture
def test_member_is_proven_beside_the_others_and_when_all_have_stopped(cluster: ServedCluster) -> None:
    """Leader and followers alike, with calls replayed; the other members are named."""
    for branch in range(4):
        cluster.new_account(branch)
    for node in cluster.nodes:
        found = drilled(cluster, node)
        assert found["verdict"] == "proven"
        assert found["members"] == [other for other in cluster.nodes if other != node]
        assert {part["undecided"] >= 0 for part in found["partitions"]} == {True}
    for node in cluster.nodes:
        cluster.kill(node)
    reports = [drill(RealFiles(), str(Path(cluster.folder, f"n{node}")), seed=1) for node in cluster.nodes]
    assert [(report.error, report.verdict) for report in reports] == [(None, "proven")] * len(reports)
    assert all(sum(proof.calls for proof in report.newest.values()) > 0 for report in reports)
