"""`Prefer: redirect=leader`: a node that does not lead answers 307 with the leader's route, and only if it is asked to."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import httpx
import orjson
import pytest

from cmdlog.api.app import Api
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.token_file import Credential
from cmdlog.node.outcome import CallRefused, NoLeader, NotLeading
from tests.api.served import served

LEADER = "http://10.0.0.2:8642"
PREFER = {"Prefer": "redirect=leader"}
ROUTES = {"/v1/procedures/put": b'{"item": 7}', "/v1/batch": b'{"procedure":"put","params":{"item":7}}\n', "/v1/query": b"{}"}


@pytest.fixture
def follower(node: Any) -> Any:
    """A node that follows: it refuses every call and names the leader."""
    set_refusal(node, NotLeading(f"node 2 leads the cluster: send calls to {LEADER}", LEADER))
    return node


def set_refusal(node: Any, refusal: CallRefused | None) -> None:
    """The node's reason to refuse every call."""
    node.sequencer = SimpleNamespace(admission=SimpleNamespace(refusal=refusal))
    node.refuse = lambda _calls: refusal


@pytest.fixture
def client(app: Api) -> Iterator[httpx.Client]:
    """A client of the real server over the application, which follows no redirects."""
    with served(app, quick=app.quick) as server, httpx.Client(base_url=f"http://127.0.0.1:{server.port}") as asking:
        yield asking


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.usefixtures("follower")
def test_follower_redirects_who_asks_for_it(app: Api, client: httpx.Client, path: str) -> None:
    """307 keeps method and body; the answer is a problem with its own code, and is no error of the node."""
    answer = client.post(path, content=ROUTES[path], headers=PREFER)
    told = answer.json()
    assert (answer.status_code, answer.headers["location"]) == (307, f"{LEADER}{path}")
    assert answer.headers["preference-applied"] == "redirect=leader"
    assert (told["code"], told["status"], told["location"]) == ("redirected", 307, f"{LEADER}{path}")
    assert answer.headers["x-request-id"] == told["request_id"]
    assert app.service.front.errors() == []


@pytest.mark.parametrize("prefer", [{}, {"Prefer": "durability=sync"}, {"Prefer": "redirect=other"}])
@pytest.mark.usefixtures("follower")
def test_nobody_else_is_redirected(client: httpx.Client, prefer: dict[str, str]) -> None:
    """Without the preference the call is refused with the leader's name, and may be repeated after a wait."""
    answer = client.post("/v1/procedures/put", content=b'{"item": 7}', headers=prefer)
    assert (answer.status_code, answer.json()["code"], answer.json()["leader"]) == (503, "not_ready", LEADER)
    assert (answer.headers["retry-after"], answer.json()["retry_after_s"]) == ("1", NotLeading.retry_after_s)
    lines = client.post("/v1/batch", content=ROUTES["/v1/batch"] * 2, headers=prefer)
    errors = [orjson.loads(line)["error"] for line in lines.content.splitlines()]
    assert [(error["code"], error["leader"]) for error in errors] == [("not_ready", LEADER)] * 2


@pytest.mark.usefixtures("follower")
def test_preferences_go_together(client: httpx.Client) -> None:
    """In one header or two, as `durability`."""
    for headers in (
        [("Prefer", "durability=sync, redirect=leader")],
        [("Prefer", "durability=sync"), ("Prefer", "redirect=leader")],
    ):
        assert client.post("/v1/procedures/put", content=b'{"item": 7}', headers=headers).status_code == 307


@pytest.mark.parametrize("refusal", [None, NoLeader("the cluster has no leader at present"), NotLeading("the node is stopping")])
def test_node_that_names_nobody_redirects_nobody(node: Any, client: httpx.Client, refusal: CallRefused | None) -> None:
    """The leader itself, a node without a leader, and one that hands over answer as ever."""
    set_refusal(node, refusal)
    answer = client.post("/v1/procedures/put", content=b'{"item": 7}', headers=PREFER)
    assert answer.status_code == (200 if refusal is None else 503)
    assert "location" not in answer.headers


@pytest.mark.usefixtures("follower")
def test_what_a_node_says_of_itself_is_not_redirected(client: httpx.Client) -> None:
    """Status, catalog and snapshots are this node's own."""
    for path in ("/v1/status", "/v1/procedures", "/v1/snapshots", "/readyz"):
        assert client.get(path, headers=PREFER).status_code == 200


@pytest.mark.usefixtures("follower")
def test_path_cannot_break_out_of_the_header(client: httpx.Client) -> None:
    """A line break in the path is quoted again in `Location`."""
    answer = client.post("/v1/procedures/put%0d%0aSet-Cookie:%20a=b", content=b"{}", headers=PREFER)
    assert (answer.status_code, "set-cookie" in answer.headers) == (307, False)
    assert answer.headers["location"].startswith(f"{LEADER}/v1/procedures/put%")


@pytest.mark.usefixtures("follower")
@pytest.mark.parametrize("path", ROUTES)
def test_credential_comes_first(app: Api, client: httpx.Client, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the leader is, a stranger is not told."""

    def reject(_header: bytes | None) -> Credential:
        raise Problem("unauthenticated", "no")

    monkeypatch.setattr(app.service.gatekeeper, "authenticate", reject)
    assert client.post(path, content=ROUTES[path], headers=PREFER).status_code == 401
