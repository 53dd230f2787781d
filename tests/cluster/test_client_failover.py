"""Clients that know all nodes, over real processes whose leader ends or sleeps: each call has one effect and one answer."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import http.client
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import orjson
import pytest

from cmdlog.client import AsyncClient, Client
from cmdlog.results import Result
from tests.cluster.served import ServedCluster
from tests.node.rig import rows
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow

KINDS = ("call", "shared", "batch", "task")
"""Of callers; each has an account of its own, and deposits 1 at a time."""
PAUSE_S = 0.02  # of a caller between two calls: the processor is for the servers


class Callers:
    """Callers of every kind at once. `answers` holds for each kind the results, in the order of the calls."""

    def __init__(self, urls: list[str], accounts: dict[str, dict[str, int]]) -> None:
        self._urls = urls
        self._deposits: dict[str, dict[str, Any]] = {kind: {**account, "amount": 1} for kind, account in accounts.items()}
        self.answers: dict[str, list[Any]] = {kind: [] for kind in KINDS}
        self.failures: list[BaseException] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(kind,)) for kind in KINDS]

    def __enter__(self) -> Callers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def counts(self) -> dict[str, int]:
        return {kind: len(answers) for kind, answers in self.answers.items()}

    def _run(self, kind: str) -> None:
        work: dict[str, Callable[[], None]] = {
            "call": self._call, "shared": self._share, "batch": self._batch, "task": self._tasks,
        }  # fmt: skip
        try:
            work[kind]()
        except BaseException as error:
            self.failures.append(error)
            raise

    def _numbers(self) -> Iterator[int]:
        """Until the test has seen enough; not all at once."""
        return itertools.takewhile(lambda _number: not self._over.wait(PAUSE_S), itertools.count())

    def _call(self) -> None:
        with Client(self._urls) as client:
            for _ in self._numbers():
                self.answers["call"].append(client.invoke("deposit_checking", self._deposits["call"]).txn_id)

    def _share(self) -> None:
        with Client(self._urls, auto_batch=True) as client:

            def work() -> None:
                for _ in self._numbers():
                    self.answers["shared"].append(client.invoke("deposit_checking", self._deposits["shared"]).txn_id)

            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    def _batch(self) -> None:
        with Client(self._urls) as client:
            for answer in client.batch(("deposit_checking", self._deposits["batch"]) for _ in self._numbers()):
                assert isinstance(answer, Result), answer
                self.answers["batch"].append(answer.txn_id)

    def _tasks(self) -> None:
        async def run() -> None:
            async with AsyncClient(self._urls, auto_batch=True) as client:

                async def work() -> None:
                    while not self._over.is_set():
                        await asyncio.to_thread(self._over.wait, PAUSE_S)
                        self.answers["task"].append((await client.invoke("deposit_checking", self._deposits["task"])).txn_id)

                await asyncio.gather(*(work() for _ in range(8)))

        asyncio.run(run())


@pytest.mark.parametrize(
    "ends",
    [[signal.SIGKILL], pytest.param([signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP], marks=pytest.mark.torture)],
    ids=["kill", "all"],
)
def test_every_call_is_answered_once_whatever_becomes_of_the_leader(cluster: ServedCluster, ends: list[signal.Signals]) -> None:
    """The leader is killed, the next one stopped in order, the one after it sleeps past an election: calls alone, calls that
    share requests, batches, tasks and a feed are all answered; balances say that none was executed twice."""
    urls, accounts = list(cluster.urls.values()), {kind: cluster.new_account(2) for kind in KINDS}
    with Client(urls) as client:
        with Callers(urls, accounts) as callers:
            for end in ends:
                more_of_each(callers, 20)
                first = cluster.leader()
                if end == signal.SIGSTOP:
                    cluster.pause(first)
                    cluster.leader([node for node in cluster.nodes if node != first])
                    more_of_each(callers, 20)
                    before = len(callers.answers["call"])
                    cluster.pause(first, over=True)
                    check_reads(cluster, first, accounts["call"], before)
                else:
                    cluster.kill(first, end)
                    more_of_each(callers, 20)
                    cluster.start(first)
                    cluster.wait_follows(first)
        assert callers.failures == []
        for kind, answers in callers.answers.items():
            assert len(set(answers)) == len(answers)
            assert client.call("balance", **dict[str, Any](accounts[kind])) == len(answers), kind
    if signal.SIGSTOP in ends:
        cluster.wait_level()
        for node in cluster.nodes:
            cluster.kill(node, signal.SIGTERM)
        cluster.run("recover", "n1", "n2", "n3", "--to", "OUT")
        found = {
            customer: checking for partition in range(2) for customer, checking in rows(cluster.folder / "OUT", partition, SQL)
        }
        assert {kind: found[account["customer"]] for kind, account in accounts.items()} == callers.counts()


SQL = "SELECT customer, checking FROM accounts"


def check_reads(cluster: ServedCluster, sleeper: int, account: dict[str, int], before: int) -> None:
    """A leader that slept past an election: a read there is refused or current; a stale one is asked for by name, anywhere."""
    read = httpx.post(f"{cluster.urls[sleeper]}/v1/procedures/balance", json=account)
    assert read.status_code == 503 or read.json()["result"] >= before, "refused, or read where calls are taken"
    query = {"sql": f"{SQL} WHERE customer = ?", "params": [account["customer"]]}
    answer = httpx.post(f"{cluster.urls[sleeper]}/v1/query", json=query)
    assert answer.status_code == 503 or answer.json()["rows"][0][1] >= before
    for node in cluster.nodes:
        stale = httpx.post(f"{cluster.urls[node]}/v1/procedures/balance?consistency=stale", json=account)
        assert set(stale.json()) == {"txn_id", "partition", "result", "as_of", "as_of_time"}


def more_of_each(callers: Callers, count: int) -> None:
    """So many more calls of each kind are answered."""
    before = callers.counts()

    def all_moved() -> bool:
        return bool(callers.failures) or all(callers.counts()[kind] > before[kind] + count for kind in KINDS)

    wait_for(all_moved, why=callers.counts)
    assert callers.failures == []


def test_follower_sends_who_asks_for_it_to_the_leader(cluster: ServedCluster) -> None:
    """307 with the leader's route, which a client that follows it gets its answer from."""
    leader = cluster.leader()
    follower = cluster.urls[next(node for node in cluster.nodes if node != leader)]
    for path, body in (("/v1/procedures/set_rate", {"name": "base", "basis_points": 7}), ("/v1/query", {"sql": "SELECT 1"})):
        answer = wait_for(partial(redirect_of, follower, path, body), why=cluster.logs)
        assert answer is not None
        assert answer.headers["location"] in {
            cluster.urls[node] + path for node in cluster.nodes if cluster.urls[node] != follower
        }
        wait_for(partial(is_followed, follower + path, body), why=cluster.logs)


PREFER = {"Prefer": "redirect=leader"}


def is_followed(url: str, body: dict[str, Any]) -> bool:
    """Whether a client that goes where it is sent gets its answer; the leader may be another one by now."""
    return httpx.post(url, json=body, headers=PREFER, follow_redirects=True).status_code == 200


def redirect_of(url: str, path: str, body: dict[str, Any]) -> httpx.Response | None:
    """The node's redirect, once it knows who leads."""
    answer = httpx.post(url + path, json=body, headers=PREFER)
    return answer if answer.status_code == 307 else None


AHEAD = 16


class LineStream:
    """One `/v1/batch` of deposits, under keys, with at most `AHEAD` lines without an answer; until `end`, or the server's."""

    def __init__(self, url: str, account: dict[str, int]) -> None:
        self.account = account
        self.keys: list[str] = []
        self.answers: list[dict[str, Any]] = []
        self.whole = False  # the answer came to its end
        self._room, self._over = threading.Semaphore(AHEAD), threading.Event()
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=PATIENCE_S)
        self._connection.putrequest("POST", "/v1/batch")
        self._connection.putheader("Transfer-Encoding", "chunked")
        self._connection.endheaders()
        self._threads = [threading.Thread(target=self._write), threading.Thread(target=self._read)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """No more lines; waits for the last answer."""
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._connection.close()

    def count(self, code: str) -> int:
        """Answers with this code, or "" for results."""
        return sum(answer.get("error", {}).get("code", "") == code for answer in self.answers)

    def _write(self) -> None:
        while not self._over.wait(PAUSE_S / 10):
            if self._room.acquire(timeout=1):
                self.keys.append(f"line{len(self.keys)}-{self.account['customer']}")
                params = {**self.account, "amount": 1}
                line = orjson.dumps({"procedure": "deposit_checking", "params": params, "key": self.keys[-1]}) + b"\n"
                if not self._sent(b"%x\r\n%b\r\n" % (len(line), line)):
                    return
        self._sent(b"0\r\n\r\n")

    def _sent(self, data: bytes) -> bool:
        """Whether the server still reads."""
        with contextlib.suppress(OSError):
            self._connection.sock.sendall(data)
            return True
        return False

    def _read(self) -> None:
        answer = self._connection.getresponse()
        while line := answer.readline():  # it raises when the answer breaks off
            self.answers.append(orjson.loads(line))
            self._room.release()
        self.whole = answer.isclosed()


@pytest.mark.parametrize("end", [signal.SIGTERM, pytest.param(signal.SIGSTOP, marks=pytest.mark.torture)])
def test_stream_over_a_change_of_leader_is_answered_whole(cluster: ServedCluster, end: signal.Signals) -> None:
    """A stream to a leader that is stopped, or sleeps past an election, is not torn: each line that was read has its answer, by
    its place. What has a result is executed, what was refused is not, and of what is in doubt the key finds out."""
    first = cluster.leader()
    mine: dict[str, Any] = {**cluster.new_account(2)}
    stream = LineStream(cluster.urls[first], mine)
    wait_for(lambda: len(stream.answers) > 200, why=cluster.logs)
    if end == signal.SIGTERM:
        cluster.signal(first, end)
        wait_for(lambda: stream.count("not_ready") > 100 or stream.whole, why=cluster.logs)
    else:
        cluster.pause(first)
        cluster.leader([node for node in cluster.nodes if node != first])
        before = len(stream.answers)
        cluster.pause(first, over=True)
        wait_for(lambda: len(stream.answers) > before + 4 * AHEAD, why=cluster.logs)
    stream.end()
    assert stream.whole
    unread = len(stream.keys) - len(stream.answers)
    assert 0 <= unread <= (AHEAD if end == signal.SIGTERM else 0)
    told = collections.Counter(answer.get("error", {}).get("code", "") for answer in stream.answers)
    assert set(told) <= {"", "not_ready", "no_quorum", "outcome_unknown"}
    others = [cluster.urls[node] for node in cluster.nodes if node != first]
    with Client(others) as client:
        balance = client.call("balance", **mine)
        assert told[""] <= balance <= told[""] + told["outcome_unknown"], told
        again = list(client.batch(("deposit_checking", {**mine, "amount": 1}, key) for key in stream.keys))
        assert client.call("balance", **mine) == len(stream.keys)
    for line, answer in zip(stream.answers, again[: len(stream.answers)], strict=True):
        assert isinstance(answer, Result), answer
        assert line.get("txn_id", str(answer.txn_id)) == str(answer.txn_id)
    if end == signal.SIGTERM:
        cluster.kill(first)
        cluster.start(first)
        cluster.wait_follows(first)
