"""A cluster of real processes that is called at every node: forwarded calls, batches and reads, while leaders are killed."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import orjson
import pytest

from tests.cluster.served import ServedCluster

pytestmark = pytest.mark.slow
OPENED, NOBODY_S = 5, 9  # branches beside those that are the number of a node


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Three nodes that run. A test leaves them so, and has accounts of its own."""
    served = ServedCluster(tmp_path_factory.mktemp("called"))
    served.start()
    served.leader()
    yield served
    served.close()


def account(node: int, **more: int) -> dict[str, int]:
    """That this node's teller fills."""
    return {"branch": node, "customer": 1, **more}


def follower(cluster: ServedCluster) -> int:
    """A node that forwards."""
    leader = cluster.leader()
    return next(node for node in cluster.nodes if node != leader)


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
