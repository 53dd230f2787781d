"""Whether the node takes part in anything: it starts, serves, is closed, or has failed.

One rule: a node that has failed stays so, and says why. Its parts know this object, and not the node.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from cmdlog.node.outcome import NotReady
from cmdlog.operator_error import full_text

log = structlog.get_logger("cmdlog.node")


class Readiness:
    """Any thread."""

    def __init__(self) -> None:
        self.error: BaseException | None = None  # why the node is wedged
        self.ready = False  # calls are accepted
        self._closes = self._ended = False
        self._watchers: list[Callable[[BaseException], None]] = []

    def accept_calls(self) -> None:
        """The node serves."""
        self.ready = True

    def begin_close(self) -> bool:
        """The node closes, and serves what comes meanwhile; False when it has begun to before."""
        before, self._closes = self._closes, True
        return not before

    def refuse_calls(self) -> None:
        """No call is accepted any more."""
        self.ready, self._ended = False, True

    def check_ready(self) -> None:
        """Raises: NotReady."""
        if not self.ready:
            raise NotReady("the node is closed" if self._ended else "the node is still starting")

    def check_serving(self) -> None:
        """Raises: NotReady, also when the node has failed."""
        self.check_ready()
        if self.error is not None:
            raise NotReady(f"the node must be restarted: {full_text(self.error)}")

    @property
    def has_failed(self) -> bool:
        return self.error is not None

    def watch_failure(self, watch: Callable[[BaseException], None]) -> None:
        """`watch` is called when the node fails, in any thread; `error` says whether it has failed before."""
        self._watchers.append(watch)

    def fail(self, error: BaseException) -> None:
        """The log, a site or consensus has failed for good."""
        self.error = error
        log.error("node_failed", reason=full_text(error), kind=type(error).__name__)
        for watch in self._watchers:
            watch(error)
