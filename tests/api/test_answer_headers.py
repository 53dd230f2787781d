"""What every answer has in its head, and what none but an administrator finds in its body."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from cmdlog.api.app import create_app
from cmdlog.api.gate.problem import Problem
from cmdlog.api.gate.route_table import ADMIN, INVOKE, READ, ROLES, TABLE, Entry
from cmdlog.api.routes.page import POLICY
from cmdlog.node.outcome import NotReady
from cmdlog.node.settings import Settings
from tests.api.conftest import FakeNode
from tests.api.running import TOKENS, write_tokens
from tests.api.served import Served, served
from tests.waiting import PATIENCE_S

PAGES = ("dashboard", "docs")


class ToldNode(FakeNode):
    """Says where it is, in its status and in what it refuses."""

    def status(self) -> dict[str, Any]:
        return {
            "directory": FakeNode.directory,
            "snapshot_error": f"{FakeNode.directory}/snapshots is full",
            "ready": True,
            "partitions": {},
        }


@pytest.fixture
def node(settings: Settings) -> ToldNode:
    """One in a directory."""
    return ToldNode(settings)


@pytest.fixture
def open_server(node: ToldNode, tmp_path: Path) -> Iterator[Served]:
    """With a credential of each role."""
    app = create_app(node, Settings(token_file=write_tokens(tmp_path)))  # type: ignore[arg-type]  # the fake has what the routes use
    with served(app, quick=app.quick, name_of=app.name_of) as server:
        yield server


def ask(server: Served, method: str, path: str, *, role: str = "", accept: str = "*/*", body: bytes = b"{}") -> httpx.Response:
    """The answer to one request; of a stream of events the first."""
    headers = {"Accept": accept, **({"Authorization": f"Bearer {TOKENS[role]}"} if role else {})}
    content = body if method == "POST" else None
    url = f"http://127.0.0.1:{server.port}{path}"
    with httpx.stream(method, url, headers=headers, content=content, timeout=PATIENCE_S) as answer:
        if answer.headers.get("content-type") == "text/event-stream":
            with contextlib.suppress(StopIteration):
                answer._content = next(answer.iter_bytes())
        else:
            answer.read()
        return answer


def check_head(answer: httpx.Response) -> None:
    """Each of them once, and a page's policy where there is a page."""
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    page = answer.headers.get("content-type", "").startswith("text/html")
    assert answer.headers.get_list("content-security-policy") == ([POLICY.decode()] if page else [])


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: entry.name)
def test_all_answers_have_one_set_of_headers(open_server: Served, entry: Entry) -> None:
    """Whatever the route, the role and the method, and whether it is a result, a refusal or a page to sign in."""
    path = entry.path.format(name="put", node=1, session="0190b6f1-0000-7000-8000-000000000000")
    for role in ("", *ROLES):
        for method in (entry.method, "OPTIONS", "PUT"):
            check_head(ask(open_server, method, path, role=role))
    signed_out = ask(open_server, entry.method, path, accept="text/html")
    assert (signed_out.status_code, entry.name in PAGES) == (401, signed_out.headers["content-type"].startswith("text/html"))
    check_head(signed_out)


@pytest.mark.parametrize("sent", [b"nonsense\r\n\r\n", b"GET /x HTTP/1.1\r\nHost: x\r\nA: " + 99_999 * b"b" + b"\r\n\r\n"])
def test_answers_to_no_request_have_them_too(open_server: Served, sent: bytes) -> None:
    """Those that no application sees."""
    head = open_server.ask(sent).partition(b"\r\n\r\n")[0]
    assert head.count(b"cache-control: no-store\r\n") == head.count(b"x-content-type-options: nosniff\r\n") == 1


@pytest.mark.parametrize("path", ["/v1/status", "/v1/events"])
def test_where_the_files_are_is_for_administrators(open_server: Served, tmp_path: Path, path: str) -> None:
    """Others see what lies in the node directory, not where that is; nor do they see where the token file is."""
    shown = {role: ask(open_server, "GET", path, role=role).content for role in (READ, ADMIN)}
    assert FakeNode.directory.encode() in shown[ADMIN]
    assert FakeNode.directory.encode() not in shown[READ]
    assert b'"<directory>/snapshots is full"' in shown[READ]
    assert str(tmp_path).encode() not in shown[READ]


def test_refusals_name_no_path(open_server: Served, node: ToldNode) -> None:
    """The error of a disk names its file for the log; a caller gets it without the way there."""
    node.refuse = lambda calls: NotReady(f"cannot write {FakeNode.directory}/log/7.wal")
    answer = ask(open_server, "POST", "/v1/procedures/put", role=INVOKE, body=b'{"item": 7}')
    assert answer.json()["detail"] == "cannot write <directory>/log/7.wal"
    batch = ask(open_server, "POST", "/v1/batch", role=INVOKE, body=b'{"procedure": "put", "params": {"item": 7}}\n')
    assert batch.json()["error"]["detail"] == "cannot write <directory>/log/7.wal"


def test_path_is_concealed_in_all_members_of_a_problem() -> None:
    """Also within members of members."""
    problem = Problem("disk_full", "/srv/a is full", disk_full={"path": "/srv/a"}).without(((b"/srv/a", b"<directory>"),))
    assert problem.body().count(b"<directory>") == 2
    assert SimpleNamespace(**problem.members()).code == "disk_full"
