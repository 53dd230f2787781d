"""What every route shares: the node once it runs, settings, credentials, and how an error answer is sent.

One rule: until the node is there, and again while the server stops, everything that needs it is refused as `not_ready`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import orjson
from starlette.types import Send

from cmdlog.api.gate.auth import make_gatekeeper
from cmdlog.api.gate.problem import Headers, Problem, conceal, of_refused
from cmdlog.api.gate.request_trace import make_call_spans
from cmdlog.api.gate.route_table import ADMIN
from cmdlog.api.gate.strict_json import read_resting
from cmdlog.api.gate.token_file import Credential
from cmdlog.api.routes.batch_window import BatchTraffic
from cmdlog.api.routes.query import QueryDesk, Turns
from cmdlog.node.outcome import CallRefused
from cmdlog.node.placing.shares import Shares
from cmdlog.node.settings import Settings
from cmdlog.node.telemetry.request_stats import RequestStats
from cmdlog.operator_error import full_text
from cmdlog.wal.errors import DiskFull, WalError

if TYPE_CHECKING:
    from cmdlog.node.node import Node

T = TypeVar("T")

STREAMS_SHARE: Final = 0.8  # of `drain_timeout_s`; in the rest what was read is answered
SLOW_THREADS: Final = 4  # for what blocks: status, snapshots
VIEWERS_MAX: Final = 16  # of the status page
OPERATOR: Final = ""  # stands for all who change code, members or snapshots
LARGE_BODY_BYTES: Final = 16 << 10  # beyond it a body is read aside: its types may check each of 100,000 values in Python
UNREAD_BYTES_MAX: Final = 64 << 20  # of answers that clients have not taken: one credential can have the longest result


class Service:
    """Shared by all routes; the thread that opens the node attaches it."""

    def __init__(self, settings: Settings, node: Node | None = None) -> None:
        self.settings = settings
        self.gatekeeper = make_gatekeeper(settings.token_file)
        self.progress: Mapping[str, object] = {}  # of the recovery, for /readyz
        self.stopping = False
        self.viewers = Shares(VIEWERS_MAX)
        self.streams: set[Callable[[], None]] = set()  # what ends the reading of each batch under way
        self.front = RequestStats(slow_call_ms=settings.slow_call_ms)
        self.front.show_token_file(lambda: "problem" in self.gatekeeper.describe())
        self.unread = Shares(UNREAD_BYTES_MAX)
        self.slow = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="cmdlog-slow")
        self.bodies = ThreadPoolExecutor(1, thread_name_prefix="cmdlog-bodies")
        self._reading = Turns(Shares(1))  # large bodies are read one at a time, in rotation over the credentials
        bodies = Shares(max(self.unread.whole, 4 * settings.call_bytes_max))  # those that are under way
        self.body_room = Turns(bodies)
        self.front.show_held(lambda: {"answers": self.unread.total, "bodies": bodies.total})
        self.queries = QueryDesk(settings, self.unread)
        self.snapshot_turn = asyncio.Lock()  # snapshots at once would wait for each other in the threads that status needs
        self.traffic = BatchTraffic()
        self.spans = make_call_spans()
        self._node: Node | None = None
        if node is not None:
            self.attach(node)

    @property
    def maybe_node(self) -> Node | None:
        """The node, if it runs already."""
        return self._node

    def attach(self, node: Node) -> None:
        """Serve this node from now on."""
        node.listen_to(self.front)
        tokens = self.settings.token_file
        self.front.hide_paths({Path(node.directory): "<directory>", **({} if tokens is None else {tokens: "<token file>"})})
        if self.spans is not None:
            node.meter.keep_all_stages()
        self._node = node

    def note_progress(self, progress: Mapping[str, object]) -> None:
        """The recovery has come so far."""
        self.progress = progress

    def begin_stop(self) -> None:
        """The server stops and is not ready from now on. In the event loop's thread.

        Streams take lines for a while, so that those of ordinary length end by themselves; the others end with an answer to each
        line that was read, before the time is up.
        """
        self.stopping = True
        asyncio.get_running_loop().call_later(self.settings.drain_timeout_s * STREAMS_SHARE, self._end_streams)

    def _end_streams(self) -> None:
        for end_reading in list(self.streams):
            end_reading()

    @contextlib.contextmanager
    def viewing(self, caller: str) -> Iterator[None]:
        """A viewer of the status page with this credential. Raises: Problem, when too many do."""
        if not self.viewers.take_share(caller, 1):
            shown = self.viewers.held.get(caller, 0)
            raise Problem("not_ready", f"{shown} status pages are being served to this credential", retry_after_s=1)
        try:
            yield
        finally:
            self.viewers.give_back(caller, 1)

    def close(self) -> None:
        """Ends what runs beside the loop; the node is closed by the caller that opened it."""
        self.queries.close()
        self.slow.shutdown(wait=False, cancel_futures=True)
        self.bodies.shutdown(wait=False, cancel_futures=True)

    def node(self) -> Node:
        """The running node. Raises: Problem (not_ready)."""
        node = self._node
        if node is None:
            raise Problem("not_ready", "the node is recovering; GET /readyz shows its progress", retry_after_s=1)
        return node

    async def read_aside(self, body: bytes, read: Callable[[bytes], T], caller: str = OPERATOR) -> T:
        """What `read` makes of a body, which is pure: of a large one in a thread, where calls have the loop between its steps."""
        if len(body) <= LARGE_BODY_BYTES:
            return read(body)
        await self._reading.take_turn(caller, 1)
        reading = asyncio.get_running_loop().run_in_executor(self.bodies, read_resting, read, body)
        reading.add_done_callback(lambda _: self._reading.end_turn(caller, 1))
        try:
            return await asyncio.shield(reading)
        finally:
            del reading  # its error knows this frame: together they would stay, with the body

    @contextlib.asynccontextmanager
    async def holding_body(self, caller: str, size: int, awaits: Callable[[float], None] = lambda _: None) -> AsyncIterator[None]:
        """Waits until the credential has room for a body of so many bytes, and holds it. Raises: Problem (not_ready)."""
        awaits(asyncio.get_running_loop().time() + 2 * self.settings.body_timeout_s)
        try:
            async with asyncio.timeout(self.settings.body_timeout_s):
                await self.body_room.take_turn(caller, size)
            awaits(inf)
        except TimeoutError:
            raise Problem(
                "not_ready", "the request bodies of this credential already use its whole share of memory", retry_after_s=1
            ) from None
        try:
            yield
        finally:
            self.body_room.end_turn(caller, size)

    async def run_slowly(self, work: Callable[[], T]) -> T:
        """Runs blocking work aside. Raises: Problem."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self.slow, work)
        except CallRefused as refused:
            raise of_refused(refused) from None
        except DiskFull as error:
            raise Problem("disk_full", full_text(error), retry_after_s=5) from None
        except WalError as error:
            raise Problem("not_ready", full_text(error), retry_after_s=5) from None

    def shown_to(self, caller: Credential, value: Any) -> bytes:
        """What the node says of itself, as JSON. Where its files are is for `admin`."""
        data = orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
        return data if ADMIN in caller.roles else conceal(data, self.front.paths)

    def leader_elsewhere(self) -> str:
        """URL of the node that takes calls in place of this one; "" when this one does, or none is known."""
        refusal = None if self._node is None else self._node.sequencer.admission.refusal
        return "" if refusal is None else str(refusal.more().get("leader", ""))


async def send_problem(send: Send, problem: Problem) -> None:
    """Sends an error answer."""
    body = problem.body()
    await send({"type": "http.response.start", "status": problem.status, "headers": headers_of_problem(problem, body)})
    await send({"type": "http.response.body", "body": body})


def headers_of_problem(problem: Problem, body: bytes) -> Headers:
    """Headers of an answer that may come before the request's body has."""
    headers = problem.headers(body)
    if problem.status in (408, 413):
        headers.append((b"connection", b"close"))  # what is left of the body must not be read as the next request
    return headers
