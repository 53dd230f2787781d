"""The demo's clients: threads that call procedures over HTTP and never give a call up.

One rule: a call is sent under one idempotency key until it is answered; what happens to the server between is not its business.

A client whose connection breaks, or that is asked to retry later, waits until somebody says where a server is, and sends the
same call again. The standard library's client is used because it costs a third of httpx's CPU time per call, and the clients
share the machine with the server.
"""

from __future__ import annotations

import abc
import http.client
import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, Self

import orjson

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.proof import ClientAnswer, DemoCall

RESUME_TIMEOUT_S: Final = 300.0
ATTEMPTS_MAX: Final = 1000
RETRY_PAUSE_S: Final = 0.01
REQUEST_TIMEOUT_S: Final = 30.0
OUTCOMES: Final = {"aborted": "aborted", "procedure_failed": "failed"}


class Unanswered(Exception):
    """The connection broke, or the server is not ready: the call may have been executed, or not."""


class Http:
    """One kept connection to whichever server is asked. Used by one thread."""

    def __init__(self, *, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._url, self._timeout_s = "", timeout_s
        self._connection: http.client.HTTPConnection | None = None

    def ask(
        self, url: str, method: str, path: str, *, body: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, Any]:
        """Status and bytes of the answer. Raises: Unanswered."""
        if self._connection is None or url != self._url:
            self.close()
            self._url = url
            self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=self._timeout_s)
        try:
            self._connection.request(method, path, body=body, headers=headers or {})
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unanswered(f"{method} {path}: {error}") from error

    def read(self, url: str, method: str, path: str, *, body: bytes | None = None) -> Any:
        """The JSON of an answer that must be there. Raises: CommandFailed."""
        try:
            status, data = self.ask(url, method, path, body=body)
        except Unanswered as error:
            raise CommandFailed(f"no answer from {url}: {error}") from error
        if status != 200:
            raise CommandFailed(f"{method} {path} was answered with {status}: {data.decode(errors='replace')}")
        return orjson.loads(data)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None) -> None:
        self.close()


class ServerAddress:
    """Announces the server's address to all clients; `gone` until the next one is `up`."""

    def __init__(self) -> None:
        self._up = threading.Event()
        self._where = ("", 0)

    def up(self, url: str) -> None:
        self._where = (url, self._where[1] + 1)
        self._up.set()

    def gone(self) -> None:
        self._up.clear()

    def wait(self) -> tuple[str, int]:
        """The address, and which server in order it is, from 1. Raises: CommandFailed when none comes."""
        if not self._up.wait(RESUME_TIMEOUT_S):
            raise CommandFailed(f"no server for {RESUME_TIMEOUT_S:g} s")
        return self._where


class ClientThreads(abc.ABC):
    """Several clients, each a thread with its calls. `answered` counts."""

    def __init__(self, shares: Sequence[Sequence[DemoCall]]) -> None:
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.answered = 0
        self.error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(number, share), name=f"demo-client-{number}", daemon=True)
            for number, share in enumerate(shares)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the clients after the request that they are at."""
        self._stop.set()

    def wait(self, seconds: float) -> bool:
        """True when every client has finished; raises what a client raised."""
        for thread in self._threads:
            thread.join(seconds if thread is self._threads[0] else 0.0)
        self.check()
        return not any(thread.is_alive() for thread in self._threads)

    def check(self) -> None:
        """Raises what a client raised."""
        if self.error is not None:
            raise self.error

    def _run(self, client: int, share: Sequence[DemoCall]) -> None:
        try:
            self._make_calls(client, share)
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self.error = error
            self._wake()

    @abc.abstractmethod
    def _make_calls(self, client: int, share: Sequence[DemoCall]) -> None:
        """One client's calls in order, each sent until it is answered, or the clients are stopped. Raises: CommandFailed."""

    @abc.abstractmethod
    def _wake(self) -> None:
        """Ends a wait of the main thread: a client has raised."""


class Load(ClientThreads):
    """Clients of one server. `reached` is set when `answered` passes `watermark`."""

    def __init__(self, shares: Sequence[Sequence[DemoCall]], place: ServerAddress, *, watermark: int) -> None:
        super().__init__(shares)
        self._place, self._watermark = place, watermark
        self.reached = threading.Event()

    def _wake(self) -> None:
        self.reached.set()

    def _make_calls(self, _client: int, share: Sequence[DemoCall]) -> None:
        with Http() as connection:
            for call in share:
                if self._stop.is_set():
                    return
                self._answer(connection, call)

    def _answer(self, connection: Http, call: DemoCall) -> None:
        for _ in range(ATTEMPTS_MAX):
            url, life = self._place.wait()
            call.attempts += 1
            try:
                answer = send(connection, url, call)
            except Unanswered:
                if self._stop.wait(RETRY_PAUSE_S):
                    return
                continue
            call.answer, call.before_kill = answer, life == 1
            with self._lock:
                self.answered += 1
                if self.answered >= self._watermark:
                    self.reached.set()
            return
        raise CommandFailed(f"{call.procedure} under key {call.key} was not answered in {ATTEMPTS_MAX} attempts")


def send(connection: Http, url: str, call: DemoCall) -> ClientAnswer:
    """One call by `POST /v1/procedures/{name}`. Raises: Unanswered."""
    headers = {"Idempotency-Key": call.key, "Content-Type": "application/json"}
    path = f"/v1/procedures/{call.procedure}"
    status, data = connection.ask(url, "POST", path, body=orjson.dumps(call.params), headers=headers)
    if status >= 500:
        raise Unanswered(f"{path} was answered with {status}")
    return read_answer(orjson.loads(data))


def send_batch(connection: Http, url: str, calls: Iterable[DemoCall]) -> list[ClientAnswer]:
    """Calls by `POST /v1/batch`, answers in the same order. Raises: CommandFailed, Unanswered."""
    lines = [orjson.dumps({"procedure": call.procedure, "params": call.params, "key": call.key}) for call in calls]
    status, data = connection.ask(url, "POST", "/v1/batch", body=b"\n".join(lines))
    answers = [read_answer(orjson.loads(line)) for line in data.splitlines()]
    if status != 200 or len(answers) != len(lines):
        raise CommandFailed(f"/v1/batch answered {status} and {len(answers)} lines to {len(lines)}")
    return answers


def read_answer(value: dict[str, Any]) -> ClientAnswer:
    """An answer from a result object, a problem, or the error object of a batch line."""
    problem = value.get("error", value)
    if isinstance(problem, dict) and "code" in problem and "status" in problem:
        kind = str(OUTCOMES.get(problem["code"], problem["code"]))
        return ClientAnswer(int(problem.get("txn_id", 0)), None, kind, problem["abort_code"] if kind == "aborted" else "")
    return ClientAnswer(int(value["txn_id"]), value["partition"], "ok", value["result"])
