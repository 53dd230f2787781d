"""What the commands that talk to a running server share: its address, the token, and errors in words."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cmdlog.cli.failure import CommandFailed

UrlOption = Annotated[str, typer.Option("--url", metavar="URL", help="Address of the server.", envvar="CMDLOG_URL")]
TokenOption = Annotated[
    Path | None, typer.Option("--token-file", metavar="FILE", help="File with the bearer token; else CMDLOG_TOKEN is used.")
]
DEFAULT_URL: Final = "http://127.0.0.1:8642"
TIMEOUT_S: Final = 60.0


def ask(
    url: str, token_file: Path | None, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
) -> Any:
    """One request; the answer's JSON. Raises: CommandFailed."""
    import httpx

    given = dict(headers or {})
    token = _token(token_file)
    if token:
        given["Authorization"] = f"Bearer {token}"
    try:
        response = httpx.request(method, url.rstrip("/") + path, json=body, headers=given, timeout=TIMEOUT_S, trust_env=False)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        raise CommandFailed(
            f"{url} is no address of a server: {error}", hint="such as http://127.0.0.1:8642", exit_code=2
        ) from None
    except httpx.TransportError as error:
        raise CommandFailed(
            f"no answer from {url}: {error}", hint="is `cmdlog serve` running there? --url names another"
        ) from None
    if response.status_code == 200:
        return response.json()
    raise _refused(response.status_code, response.headers.get("content-type", ""), response.content)


def _token(token_file: Path | None) -> str:
    if token_file is None:
        return os.environ.get("CMDLOG_TOKEN", "")
    return token_file.read_text().strip()


def _refused(status: int, kind: str, body: bytes) -> CommandFailed:
    import orjson

    if kind != "application/problem+json":
        return CommandFailed(f"the server answered {status} and no JSON", hint="is it cmdlog that listens there?")
    problem = orjson.loads(body)
    code = problem["code"]
    named = f"{code} ({problem['abort_code']})" if problem.get("abort_code") else code
    return CommandFailed(f"{named}: {problem['detail']}", hint=problem["title"], exit_code=2 if status in (404, 422) else 1)
