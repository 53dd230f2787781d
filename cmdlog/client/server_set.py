"""The servers that a client may ask, and which of them it asks next. No socket or clock here; threads may share it.

One rule: only the listed servers are asked. A node that does not lead names the one that does (`leader`), and the name chooses
among the listed ones: an answer, which anything on the way may have written, never sends a credential or a call to an address
that the caller has not given.

All requests go to one server, the *preferred* one, until it fails: no answer, or one that says another server may do better
(`response.points_elsewhere`). Then the next one is preferred: the leader that was named, unless it has failed since anybody
succeeded; else the one that has not failed for longest. Failures of a server that is not preferred any more change nothing, so
a thousand callers who fail together move on once.

A call goes to a server that has not failed since the call's *mark* at once, and waits when there is none: so it asks each of them
once between two waits, and what fails for one caller is not asked again by all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Final

import httpx

from cmdlog.client.response import Attempt, Lost, Response, named_leader, points_elsewhere
from cmdlog.errors import CmdlogError, OutcomeUnknown, Unavailable

DEFAULT_URL: Final = "http://127.0.0.1:8642"
WHY_CHARS_MAX: Final = 300  # of what an error says about one server


class ListedServer:
    """One of them. `at` is its place in the list, `failed` the number of its last failure among all, 0: it never failed."""

    __slots__ = ("address_of", "at", "failed", "headers", "url", "why")

    def __init__(self, url: httpx.URL, at: int, credential: Iterable[tuple[str, str]]) -> None:
        self.url, self.at = url, at
        self.headers = (("Host", url.netloc.decode("ascii")), *credential)  # of every request to it
        self.address_of: Callable[[str], httpx.URL] = lru_cache(1024)(
            lambda path: httpx.URL(f"{url}{path}")
        )  # parsing one costs as much as a call
        self.failed = 0
        self.why: Attempt | None = None  # of the last failure


class ServerSet:
    """See the module.

    Invariant: `_passed <= _failures`, and no server's `failed` is greater.
    """

    def __init__(
        self, urls: Sequence[httpx.URL], credential: Callable[[httpx.URL], Iterable[tuple[str, str]]] = lambda url: ()
    ) -> None:
        self.servers = tuple(ListedServer(url, at, credential(url)) for at, url in enumerate(urls))
        self.preferred = self.servers[0]
        self._by_url = {str(server.url): server for server in self.servers}
        self._failures = 0
        self._passed = 0  # the last failure before the last success
        self._newest: tuple[ListedServer, Attempt] | None = None
        self.only_refused = True
        """Until an attempt ends in anything but a refused connection: from then on one is that of a server that starts again."""
        self._lock = threading.Lock()

    @property
    def several(self) -> bool:
        return len(self.servers) > 1

    def mark(self) -> int:
        """For a call that begins, or has waited."""
        return self._failures

    def has_fresh(self, mark: int) -> bool:
        """Whether the server to be asked next has not failed since the mark."""
        return self.several and self.preferred.failed <= mark

    def note_attempt(self, server: ListedServer, attempt: Attempt) -> Attempt:
        """The result of asking the server. Returns the attempt."""
        self._newest = server, attempt
        self.only_refused = self.only_refused and isinstance(attempt, Lost) and attempt.refused
        if isinstance(attempt, Response) and attempt.status == 200:
            self._passed = self._failures
        elif points_elsewhere(attempt):
            with self._lock:
                if server is self.preferred:
                    self._fail(server, attempt)
        return attempt

    def _fail(self, server: ListedServer, attempt: Attempt) -> None:
        self._failures += 1
        server.failed, server.why = self._failures, attempt
        others = [other for other in self.servers if other is not server]
        leader = self._listed(named_leader(attempt))
        if leader is not None and leader is not server and leader.failed <= self._passed:
            self.preferred = leader
        elif others:
            self.preferred = min(others, key=lambda other: (other.failed, (other.at - server.at) % len(self.servers)))

    def _listed(self, url: str) -> ListedServer | None:
        """The server of this address, if the caller has listed it."""
        if not url:
            return None
        try:
            return self._by_url.get(str(base_url(url)))
        except ValueError:
            return None

    def newest_failure(self) -> str:
        """Why the newest attempt gave no result, "" if it did or there was none; of several servers with its address."""
        if self._newest is None or (isinstance(attempt := self._newest[1], Response) and attempt.status == 200):
            return ""
        return (f"{self._newest[0].url}: " if self.several else "") + _why(attempt)

    def name_failures(self, error: CmdlogError, since: int) -> CmdlogError:
        """The error, which then says what each server did since the mark; of one server it says so already."""
        if self.several and isinstance(error, Unavailable | OutcomeUnknown):
            asked = sorted((server for server in self.servers if server.failed > since), key=lambda server: server.failed)
            told = "; ".join(f"{server.url}: {_why(server.why)}" for server in asked)
            error.args = (f"{error} (asked: {told})" if told else str(error),)
        return error


def _why(attempt: Attempt | None) -> str:
    """What a server did, in a few words."""
    if isinstance(attempt, Lost):
        return ("no answer: " if attempt.reached else "") + attempt.reason[:WHY_CHARS_MAX]
    value = attempt.value if attempt is not None and isinstance(attempt.value, dict) else {}
    status = "" if attempt is None else f"{attempt.status} "
    return (status + str(value.get("code") or "without a code"))[:WHY_CHARS_MAX]


def base_urls(urls: str | Sequence[str]) -> list[httpx.URL]:
    """The addresses of the servers, each once, in the order given. Raises: ValueError."""
    found = list(dict.fromkeys(map(base_url, [urls] if isinstance(urls, str) else urls)))
    if not found:
        raise ValueError("no server address is given")
    return found


def base_url(url: str) -> httpx.URL:
    """The server's address, without a slash at its end. Raises: ValueError."""
    try:
        parsed = httpx.URL(url.rstrip("/"))
    except (httpx.InvalidURL, TypeError) as error:
        raise ValueError(f"{url!r} is not a server address: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ValueError(f"{url!r} is not a server address such as {DEFAULT_URL}")
    if parsed.userinfo or parsed.query or parsed.fragment:
        raise ValueError("a server address cannot contain credentials or a query; use the option `token`")
    return parsed
