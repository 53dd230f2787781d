"""Routes of FastAPI: what reaches a handler was read strictly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Post = Callable[..., Any]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b'{"sql": "select 1", "sql": "select 2"}', ("body", "the key 'sql' occurs twice")),
        (b'{"sql": "select 1", "partition": "0"}', ("partition", "must be a valid integer")),
        (b'{"sql": "select 1", "limit": 1}', ("limit", "unknown field")),
        (b'{"partition": 0}', ("sql", "is missing")),
        (b"[]", ("body", "must be a JSON object")),
    ],
)
def test_bodies_are_read_strictly(post: Post, body: bytes, problem: tuple[str, str]) -> None:
    """Where FastAPI alone would take the last key, or convert the text."""
    answer = post("/v1/query", body)
    (told,) = answer.json()["problems"]
    assert (answer.status, told["field"], told["problem"]) == (422, *problem)


@pytest.mark.parametrize("kind", ["application/json", "application/x-www-form-urlencoded", "application/x-ndjson"])
def test_type_of_a_body_is_for_the_gate(post: Post, kind: str) -> None:
    """What it lets pass is read as JSON."""
    assert post("/v1/query", b'{"sql": "select 1"}', headers=[("Content-Type", kind)]).status == 200
