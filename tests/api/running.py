"""A server as a process of its own, behind credentials, for tests that attack it from outside."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from cmdlog.api.gate.route_table import ADMIN, INVOKE, READ, ROLES
from cmdlog.api.gate.token_file import Credential, digest_of, write_line
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).resolve().parents[2]
TOKENS = {"admin": "token-of-admin-and-so-on", "invoke": "token-of-invoke-and-so-on", "read": "token-of-read-and-so-on"}
EXPIRED = "token-that-has-expired-long-ago"
OTHER = "token-of-another-who-may-invoke"
CREDENTIALS = [
    Credential("admin", frozenset(ROLES), digest_of(TOKENS[ADMIN].encode())),
    Credential("invoke", frozenset((INVOKE,)), digest_of(TOKENS[INVOKE].encode())),
    Credential("read", frozenset((READ,)), digest_of(TOKENS[READ].encode())),
    Credential("other", frozenset((INVOKE,)), digest_of(OTHER.encode())),
    Credential("old", frozenset(ROLES), digest_of(EXPIRED.encode()), expires_s=1e9),
]


def cycle(url: str, request: bytes) -> bytes:
    """Sends bytes as they are to a server and reads until it closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


class Running:
    """`cmdlog serve` on a free port."""

    def __init__(self, folder: Path, *options: str, app: str = "tests.api.every_type:db") -> None:
        self.folder, self.options, self.app = folder, options, app
        tokens = folder / "tokens"
        tokens.write_text("".join(write_line(credential) + "\n" for credential in CREDENTIALS))
        tokens.chmod(0o600)
        self.start()

    def start(self) -> None:
        """Starts and waits until it serves."""
        environ = {name: value for name, value in os.environ.items() if not name.startswith("CMDLOG_")}
        sizes = ("--partitions", "2", "--segment-bytes", "4MiB", "--segments", "8")
        with (self.folder / "errors.txt").open("a") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cmdlog", "serve", self.app, "--data", "data", "--port", "0", "--json",
                 "--token-file", "tokens", *sizes, *self.options],
                cwd=self.folder,
                env={**environ, "PYTHONPATH": str(ROOT)},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )  # fmt: skip
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["url"]
        assert json.loads(self.process.stdout.readline())["event"] == "ready"
        self.client = httpx.Client(base_url=self.url, timeout=PATIENCE_S)

    def end(self, *, kill: bool = True) -> None:
        """Ends it, at once or in order."""
        self.client.close()
        if kill:
            self.process.kill()
        else:
            self.process.terminate()
        self.process.wait(PATIENCE_S)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def post(
        self, path: str, body: Any = None, *, token: str = TOKENS[ADMIN], headers: Any = (), content: Any = None
    ) -> httpx.Response:
        """A request of somebody with a token; the body as a value or as bytes."""
        given = [("Authorization", f"Bearer {token}"), *headers]
        data = json.dumps(body).encode() if content is None else content
        return self.client.post(path, content=data, headers=given)

    def get(self, path: str, *, token: str = TOKENS[ADMIN], headers: Any = ()) -> httpx.Response:
        """The same for GET."""
        return self.client.get(path, headers=[("Authorization", f"Bearer {token}"), *headers])

    def call(self, procedure: str, **params: Any) -> Any:
        """Its result."""
        answer = self.post(f"/v1/procedures/{procedure}", params)
        assert answer.status_code == 200, answer.text
        return answer.json()["result"]

    def raw(self, request: bytes) -> bytes:
        """Sends bytes as they are and reads until the server closes."""
        return cycle(self.url, request)

    def committed(self) -> list[int]:
        """The log position of every partition."""
        return [marks["committed"] for marks in self.get("/v1/status").json()["partitions"].values()]

    def logged(self) -> str:
        """Everything that it has written about its own running."""
        return (self.folder / "errors.txt").read_text()

    def rss_bytes(self) -> int:
        """Memory of the node's process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
