"""A cluster of real processes: the leader is killed, everything is killed, and nothing acknowledged is lost or doubled."""

from __future__ import annotations

import contextlib
import itertools
import signal
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cluster.served import ServedCluster
from tests.node.rig import rows
from tests.waiting import ask_for, wait_for

pytestmark = pytest.mark.slow
CUSTOMERS = itertools.count(1)
Account = dict[str, int]
PAUSE_S = 0.02  # of a caller between two calls: the processor is for the servers


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    """Three nodes, for one test after the other."""
    made = ServedCluster(tmp_path_factory.mktemp("served"))
    yield made
    made.close()


@pytest.fixture
def cluster(served: ServedCluster) -> ServedCluster:
    """All nodes run, or are starting."""
    if ended := [node for node in served.nodes if not served.is_running(node)]:
        served.start(*ended)
    return served


@pytest.fixture
def account(cluster: ServedCluster) -> Account:
    """An open account of the test alone, without money."""
    cluster.leader()
    made = {"branch": 1, "customer": next(CUSTOMERS)}
    opened = cluster.call("open_account", {**made, "savings": 0, "checking": 0}, f"open{made['customer']}")
    assert opened["status"] == 200, opened
    return made


def level(cluster: ServedCluster, nodes: int = 3) -> object:
    """All nodes have committed and run the same."""
    found = cluster.positions()
    return found if len(found) == nodes and len(set(found.values())) == 1 and all(a == b for a, b in found[1]) else None


def follows(cluster: ServedCluster, node: int) -> bool:
    """Whether the node hears from a leader."""
    return bool(cluster.status(node).get("cluster", {}).get("leader"))


@pytest.mark.torture
def test_leader_that_stops_or_sleeps_costs_no_call(cluster: ServedCluster, account: Account) -> None:
    """Under calls the leader gets SIGTERM, the next one SIGSTOP past an election: every call has one effect, what slept follows
    and answers no stale read unless it is asked for one, and a recovery of the three directories has the same balances."""
    first = cluster.leader()
    with calls_under_way(cluster, account) as answers:
        more_than(answers, 5)
        cluster.kill(first, signal.SIGTERM)
        more_than(answers, 5)
        assert cluster.leader() != first
        cluster.start(first)
        ask_for(partial(follows, cluster, first), why=cluster.logs)
        sleeper = cluster.leader()  # asked last: on a busy machine there may have been an election
        cluster.pause(sleeper)
        awake = [node for node in cluster.nodes if node != sleeper]
        cluster.leader(awake)
        cluster.pause(sleeper, over=True)
        before = len(answers)
        read = httpx.post(f"{cluster.urls[sleeper]}/v1/procedures/balance", json=account)
        assert read.status_code == 503 or read.json()["result"] >= before, "refused, or read where calls are taken"
        query = {"sql": "SELECT checking FROM accounts WHERE customer = ?", "params": [account["customer"]]}
        answer = httpx.post(f"{cluster.urls[sleeper]}/v1/query", json=query)
        assert answer.status_code == 503 or answer.json()["rows"][0][0] >= before
        for node in cluster.nodes:
            stale = httpx.post(f"{cluster.urls[node]}/v1/procedures/balance?consistency=stale", json=account)
            assert set(stale.json()) == {"txn_id", "partition", "result", "as_of", "as_of_time"}
            rows = httpx.post(f"{cluster.urls[node]}/v1/query?consistency=stale", json=query).json()["rows"]
            assert rows[0][0] <= len(answers) + 1
        more_than(answers, 5)
    assert [answer for answer in answers if answer["status"] != 200] == []
    ask_for(lambda: cluster.status(sleeper).get("cluster", {}).get("standing") in ("following", "leading"), why=cluster.logs)
    assert cluster.call("balance", account, "")["result"] == len(answers)
    ask_for(lambda: level(cluster), why=cluster.logs)
    for node in cluster.nodes:
        cluster.kill(node, signal.SIGTERM)
    cluster.run("recover", "n1", "n2", "n3", "--to", "OUT")
    assert balances(cluster.folder / "OUT")[1, account["customer"]] == len(answers)


def test_orderly_stops_of_leaders_fail_no_call(cluster: ServedCluster, account: Account) -> None:
    """Calls without a key, at all nodes: each is answered, or refused with nothing logged. None ends in doubt, while two leaders
    in a row get SIGTERM."""
    caller = KeylessCaller(cluster, account)
    with caller.running():
        for _ in range(2):
            more_than(caller.answered, 20)
            stopped = cluster.leader()
            cluster.kill(stopped, signal.SIGTERM)
            more_than(caller.answered, 20)
            cluster.start(stopped)
            ask_for(partial(follows, cluster, stopped), why=cluster.logs)
    assert caller.doubtful == []
    assert cluster.call("balance", account, "")["result"] == len(caller.answered)


class KeylessCaller:
    """Deposits of 1 without a key, at each node, repeated only when they were refused."""

    def __init__(self, cluster: ServedCluster, account: Account) -> None:
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


@contextlib.contextmanager
def calls_under_way(cluster: ServedCluster, account: Account) -> Iterator[list[dict[str, Any]]]:
    """Deposits of 1, each under its own key until it has an outcome; the outcomes."""
    answers: list[dict[str, Any]] = []
    over = threading.Event()

    def deposit() -> None:
        for number in itertools.count():
            if over.wait(PAUSE_S):
                return
            answers.append(cluster.call("deposit_checking", {**account, "amount": 1}, f"under_way{number}"))

    thread = threading.Thread(target=deposit)
    thread.start()
    try:
        yield answers
    finally:
        over.set()
        thread.join()


def more_than(answers: list[dict[str, Any]], count: int) -> None:
    """So many more calls have an outcome."""
    before = len(answers)
    wait_for(lambda: len(answers) > before + count)


def balances(directory: Path) -> dict[tuple[int, int], int]:
    """What both partitions of a restored directory hold, by branch and customer."""
    found = (rows(directory, partition, "SELECT branch, customer, checking FROM accounts") for partition in range(2))
    return {(branch, customer): checking for branch, customer, checking in itertools.chain.from_iterable(found)}
