"""HTTP processes beside the nodes of a cluster."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx
import pytest

from cmdlog.cli.demo.cluster.cluster_nodes import DemoCluster
from cmdlog.cli.demo.server import BANK
from tests.waiting import ASK_EVERY_S, eventually

pytestmark = pytest.mark.slow

LINE = b'{"procedure": "deposit_checking", "params": {"branch": %d, "customer": %d, "amount": 1}}\n'


def is_taken(call: Callable[[], httpx.Response]) -> bool:
    """Whether a node executes it."""
    return call().status_code == 200


def test_calls_are_taken_at_every_node(tmp_path: Path) -> None:
    """A follower's process checks and binds them, its node sends them on; a redirect is the node's to give."""
    (tmp_path / "cmdlog.toml").write_text("http_processes = 1\n")
    nodes = DemoCluster(tmp_path, application=BANK, partitions=2, count=2)
    try:
        nodes.start(1, 2)
        urls = [nodes.urls[node] for node in (1, 2)]

        def call(url: str, procedure: str, **params: int) -> httpx.Response:
            return httpx.post(f"{url}/v1/procedures/{procedure}", json={"branch": 1, **params})

        for customer, url in enumerate(urls, 1):
            opening = partial(call, url, "open_account", customer=customer, savings=0, checking=0)
            assert eventually(partial(is_taken, opening), every_s=ASK_EVERY_S)
            assert len(httpx.get(url + "/v1/status").json()["http_processes"]) == 1
            assert call(url, "deposit_checking", customer=customer, amount=1).status_code == 200
            assert call(url, "balance", customer=customer).status_code == 200
            answer = httpx.post(url + "/v1/batch", content=(LINE % (1, customer)) * 100)
            assert answer.content.count(b'"result"') == 100, answer.text
        told = [
            httpx.post(url + "/v1/procedures/balance", json={}, headers={"Prefer": "redirect=leader"}).status_code for url in urls
        ]
        assert sorted(told) == [307, 422], "the follower redirects, the leader looks at the body"
        nodes.stop()
    finally:
        nodes.close()
