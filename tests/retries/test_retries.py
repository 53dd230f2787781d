"""Retries over restarts, deploys and recoveries: the same request is the same call, whatever its types make of it.

Each request is sent in every way in which a call can have a name, by itself and in batches, spelled anew each time. Its retry
gets the first answer, and has run nothing. Another request under the same name is refused.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import httpx
import pytest

from cmdlog.cli.demo.cluster.cluster_nodes import DemoCluster
from cmdlog.cli.demo.server import LaunchedServer
from tests.commands import Command
from tests.procedures.sites import uuid7
from tests.retries.callers import SHAPES, Sent
from tests.retries.program import Request, requests, write
from tests.waiting import ASK_EVERY_S, eventually

pytestmark = pytest.mark.slow
SAMPLE = 30  # requests of a slice, of some 190
SIZES = ("--segment-bytes", "4MiB", "--segments", "8", "--partitions", "2")


class Retried:
    """Some requests, each in every shape under a name of its own, and their first answers."""

    def __init__(self, chosen: Sequence[Request], seed: int) -> None:
        self._chance, self.chosen = random.Random(seed), chosen
        self._calls = {shape: [self._sent(shape, at, request) for at, request in enumerate(chosen)] for shape in SHAPES}
        self.first: dict[str, list[str]] = {}

    def _sent(self, shape: str, at: int, request: Request) -> Sent:
        name = f"{shape} {at}"
        session = uuid7(int(time.time() * 1000), 1 + at + 1000 * list(SHAPES).index(shape))
        return Sent(request.procedure, {"name": name, **request.params}, f"key-{name}".replace(" ", "-"), session)

    def send(self, url: str) -> dict[str, list[str]]:
        """What each shape is answered."""
        return {shape: SHAPES[shape](url, calls, self._chance) for shape, calls in self._calls.items()}

    def begin(self, url: str) -> None:
        """Sends all for the first time."""
        self.first = self.send(url)
        wrong = [answer for answers in self.first.values() for answer in answers if not answer.isdigit()]
        assert wrong == [], f"no result: {wrong[:5]}"

    def check(self, url: str) -> None:
        """Sends all once more."""
        again = self.send(url)
        wrong = [
            (shape, request.procedure, one, other)
            for shape, answers in self.first.items()
            for request, one, other in zip(self.chosen, answers, again[shape], strict=True)
            if one != other
        ]
        assert wrong == [], f"{len(wrong)} retries have other answers: {wrong[:5]}"

    def check_single_runs(self, url: str) -> None:
        """Each call has run once, and its name belongs to no other request."""
        names = [call.params["name"] for calls in self._calls.values() for call in calls]
        lines = "\n".join(json.dumps({"procedure": "count", "params": {"name": name}}) for name in names)
        counts = [json.loads(line)["result"] for line in httpx.post(url + "/v1/batch", content=lines).text.splitlines()]
        assert counts == [1] * len(names)
        for shape, calls in self._calls.items():
            others = [
                Sent(call.procedure, {**request.other(), "name": call.params["name"]}, call.key, call.session)
                for call, request in zip(calls, self.chosen, strict=True)
                if request.params
            ]
            assert set(SHAPES[shape](url, others, self._chance)) == {"key_reused"}, shape


def launch(folder: Path, version: int, *options: str, data: str = "data") -> LaunchedServer:
    """`cmdlog serve` of that version of the program."""
    write(folder, version)
    server = LaunchedServer(folder / data, "--port", "0", *options, log=folder / "serve.log", application="retried:db")
    server.wait_ready()
    return server


def outlive(folder: Path, command: Command, chosen: Sequence[Request], seed: int, *options: str) -> None:
    """A kill, a deploy, a recovery elsewhere, and a deploy back, with retries after each."""
    retried = Retried(chosen, seed)
    server = launch(folder, 1, *SIZES, *options)
    retried.begin(server.url)
    retried.check(server.url)
    server.kill([])
    server = launch(folder, 1, *options)
    retried.check(server.url)
    server.kill([])
    server = launch(folder, 2, *options)
    retried.check(server.url)
    retried.check_single_runs(server.url)
    server.kill([])
    code, said = command.text("recover", folder / "data", "--to", folder / "out")
    assert code == 0, said
    for version in (2, 1):
        server = launch(folder, version, *options, data="out")
        retried.check(server.url)
        server.kill([])


def sample(seed: int) -> list[Request]:
    """Some of all requests, among them each change of parameters."""
    found = requests()
    return [request for request in found if not request.python] + random.Random(seed).sample(found, SAMPLE)


@pytest.mark.parametrize("options", [(), ("--http-processes", "1")], ids=["in the node", "HTTP apart"])
def test_retries_outlive_kills_deploys_and_recoveries(tmp_path: Path, command: Command, options: tuple[str, ...]) -> None:
    """A slice of the campaign."""
    outlive(tmp_path, command, sample(len(options)), len(options), *options)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(int(os.environ.get("SEEDS") or 4)))
def test_campaign_of_retries(tmp_path: Path, command: Command, seed: int) -> None:
    """Every request there is, in the node and in HTTP processes."""
    outlive(tmp_path, command, requests(), seed, *(("--http-processes", "2") if seed % 2 else ()))


CALL = """
import json, sys
import cmdlog
from retried import *
def ask(shop, procedure, name, params, key):
    try:
        return shop.invoke(procedure, {"name": name, **params}, idempotency_key=key).value
    except cmdlog.CmdlogError as error:
        return error.code
with cmdlog.open("data", db, partitions=2) as shop:
    found = []
    for at, (procedure, params, python, other) in enumerate(json.load(sys.stdin)):
        for shape, given in (("json", params), ("python", eval(python) if python else params)):
            name = f"{shape} {at}"
            found.append(ask(shop, procedure, name, given, name))
            if other:
                found.append(ask(shop, procedure, name, other, name))
print(json.dumps(found))
"""


def run_embedded(folder: Path, version: int, chosen: Sequence[Request]) -> list[str]:
    """Calls of a program that embeds the database: with JSON and with objects, each followed by another request of its name."""
    write(folder, version)
    told = [(request.procedure, request.params, request.python, request.other()) for request in chosen]
    done = subprocess.run(
        [sys.executable, "-c", CALL], cwd=folder, input=json.dumps(told), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[str] = json.loads(done.stdout)
    return found


def test_retries_of_an_embedding_program(tmp_path: Path) -> None:
    """Objects are compared by what was given when they were made: a default that is made again, or new, changes nothing."""
    chosen = [request for request in requests() if "clock" not in request.procedure or "list" not in request.procedure]
    first = run_embedded(tmp_path, 1, chosen)
    for version in (1, 2, 2, 1):
        assert run_embedded(tmp_path, version, chosen) == first
    assert {answer for answer in first if not answer.isdigit()} == {"key_reused"}


def await_leader(urls: Mapping[int, str], *nodes: int) -> None:
    """Until these nodes take calls."""
    for node in nodes:
        probe = f"{urls[node]}/v1/procedures/top_default"
        assert eventually(lambda: httpx.post(probe, json={"name": "probe"}).status_code == 200, every_s=ASK_EVERY_S)  # noqa: B023


def test_retries_at_every_node_of_a_cluster(tmp_path: Path) -> None:
    """A call that a follower forwards, and its retry at the leader, are one; also once all nodes have other code."""
    retried = Retried(sample(5), 5)
    write(tmp_path, 1)
    nodes = DemoCluster(tmp_path, application="retried:db", partitions=2, count=2)
    try:
        nodes.start(1, 2)
        await_leader(nodes.urls, 1, 2)
        retried.begin(nodes.urls[1])
        for node in (1, 2):
            retried.check(nodes.urls[node])
        nodes.kill(1, 2)
        write(tmp_path, 2)
        nodes.start(1, 2)
        await_leader(nodes.urls, 1, 2)
        for node in (2, 1):
            retried.check(nodes.urls[node])
        nodes.stop()
    finally:
        nodes.close()
