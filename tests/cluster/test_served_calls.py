"""A cluster of real processes that is called at every node: forwarded calls, batches and reads, while leaders are killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from tests.cluster.served import ServedCluster
from tests.waiting import wait_for

pytestmark = pytest.mark.slow
KILLS = 5
OPENED, NOBODY_S = 5, 9  # branches beside those that are the number of a node


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Three nodes that run. A test leaves them so, and has accounts of its own."""
    served = ServedCluster(tmp_path_factory.mktemp("called"))
    served.start()
    served.leader()
    yield served
    served.close()


class Tellers(threading.Thread):
    """Deposits 1 at one node again and again, each under a key until it has an outcome. While the node is down it waits."""

    def __init__(self, cluster: ServedCluster, node: int) -> None:
        super().__init__(daemon=True)
        self.cluster, self.node = cluster, node
        self.over = threading.Event()
        self.answers: list[dict[str, Any]] = []
        self.refused: Counter[str] = Counter()

    def run(self) -> None:
        while not self.over.wait(0.02):
            key = f"{self.node}.{len(self.answers)}"
            while (answer := self._attempt(key)) is None and not self.over.is_set():
                self.over.wait(0.02)
            if answer is not None:
                self.answers.append(answer)

    def _attempt(self, key: str) -> dict[str, Any] | None:
        url = f"{self.cluster.urls[self.node]}/v1/procedures/deposit_checking"
        try:
            given = httpx.post(url, json=account(self.node, amount=1), headers={"Idempotency-Key": key}, timeout=20)
        except httpx.HTTPError:
            self.refused["gone"] += 1
            return None
        body: dict[str, Any] = given.json()
        if given.status_code == 200:
            return body
        self.refused[body["code"]] += 1
        assert given.status_code in (503, 504), body
        return None


def account(node: int, **more: int) -> dict[str, int]:
    """That this node's teller fills."""
    return {"branch": node, "customer": 1, **more}


def follower(cluster: ServedCluster) -> int:
    """A node that forwards."""
    leader = cluster.leader()
    return next(node for node in cluster.nodes if node != leader)


def await_more(tellers: list[Tellers]) -> None:
    """Each of them gets some more answers."""
    before = [len(teller.answers) for teller in tellers]
    wait_for(lambda: all(len(t.answers) > b + 3 for t, b in zip(tellers, before, strict=True)), why=tellers[0].cluster.logs)


@pytest.mark.torture
def test_calls_at_every_node_have_one_effect_when_leaders_are_killed(cluster: ServedCluster) -> None:
    """Each node has its callers; leaders get SIGKILL. The model: every key once, in the balance and in its answer."""
    for node in cluster.nodes:
        opened = cluster.call("open_account", account(node, savings=0, checking=0), f"open{node}")
        assert opened["status"] == 200
    tellers = [Tellers(cluster, node) for node in cluster.nodes]
    for teller in tellers:
        teller.start()
    try:
        await_more(tellers)
        for _ in range(KILLS):
            killed = cluster.leader()
            cluster.kill(killed)
            cluster.leader([node for node in cluster.nodes if node != killed])
            await_more([teller for teller in tellers if teller.node != killed])
            cluster.start(killed)
            await_more(tellers)
    finally:
        for teller in tellers:
            teller.over.set()
        for teller in tellers:
            teller.join()
    for teller in tellers:
        last = cluster.call("deposit_checking", account(teller.node, amount=1), f"{teller.node}.{len(teller.answers)}")
        assert last["status"] == 200
        txns = [answer["txn_id"] for answer in teller.answers] + [last["txn_id"]]
        assert len(set(txns)) == len(txns), "each key has an outcome of its own"
        for number in range(0, len(teller.answers), 5):
            again = cluster.call("deposit_checking", account(teller.node, amount=1), f"{teller.node}.{number}")
            assert again["txn_id"] == txns[number], "and keeps it"
        for node in cluster.nodes:
            assert cluster.call("balance", account(teller.node), "", only=[node])["result"] == len(txns), teller.refused


def test_batches_reads_and_headers_work_at_a_follower(cluster: ServedCluster) -> None:
    """As at the leader: lines in order, reads that see what was answered before, `Cmdlog-Txn`, `Prefer`, problems."""
    assert cluster.call("open_account", account(OPENED, savings=0, checking=0), "open")["status"] == 200
    node = follower(cluster)
    url = cluster.urls[node]
    lines = [{"procedure": "deposit_checking", "params": account(OPENED, amount=1), "key": f"line{n}"} for n in range(300)]
    lines += [{"procedure": "set_rate", "params": {"name": "base", "basis_points": 7}}]
    lines += [{"procedure": "deposit_checking", "params": account(NOBODY_S, amount=1)}, {"procedure": "nobody_s", "params": {}}]
    given = httpx.post(f"{url}/v1/batch", content=b"\n".join(map(orjson.dumps, lines)))
    answers = [orjson.loads(line) for line in given.content.splitlines()]
    assert len(answers) == len(lines)
    txns = [int(answer["txn_id"]) for answer in answers[:300]]
    assert txns == sorted(set(txns)), "in the order of the lines"
    assert [answer["error"]["code"] for answer in answers[301:]] == ["aborted", "unknown_procedure"]
    seen = answers[300]["txn_id"]
    call = httpx.post(
        f"{url}/v1/procedures/deposit_checking", json=account(OPENED, amount=1),
        headers={"Cmdlog-Txn": seen, "Prefer": "durability=sync"},
    )  # fmt: skip
    assert call.status_code == 200, call.text
    assert call.headers["preference-applied"] == "durability=sync"
    assert int(call.headers["cmdlog-txn"]) > int(seen)
    read = httpx.post(f"{url}/v1/procedures/balance", json=account(OPENED))
    assert read.json()["result"] == 301
    future = httpx.post(f"{url}/v1/procedures/balance", json=account(OPENED), headers={"Cmdlog-Txn": str(2**62)})
    logged = httpx.post(
        f"{url}/v1/procedures/deposit_checking", json=account(OPENED, amount=1), headers={"Cmdlog-Txn": str(2**62)}
    )
    assert (future.status_code, logged.status_code) == (422, 422)
    assert logged.json()["problems"][0]["field"] == "Cmdlog-Txn"
    query = httpx.post(f"{url}/v1/query", json={"sql": "SELECT 1"})
    assert (query.status_code, query.json()["leader"]) == (503, cluster.urls[cluster.leader()])
    status = cluster.status(node)["cluster"]["forwarding"]
    assert status["sent"] >= 303
