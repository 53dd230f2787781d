"""How far a change of a node is, as the nodes report it, and waiting until it is over.

One rule: the cluster does the work. Waiting only reads, so an interrupted wait interrupts nothing.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.cluster.members_view import copy_text, copy_to, failed_nodes, member_of, newest_view
from cmdlog.cli.cluster.status_reader import StatusReader
from cmdlog.cli.output import make_console, out, visible
from cmdlog.cli.signals import report_on_interrupt

POLL_S: Final = 1.0
COMING: Final = frozenset(("add", "replace"))
GONE: Final = ("removed", "")


@dataclass(frozen=True, slots=True)
class ChangeProgress:
    """One look."""

    state: str  # of the node; "": unknown to the cluster
    text: str
    done: bool = False
    failed: bool = False  # it will not be done: another request has overtaken it
    percent: float | None = None  # of a copy

    def to_json(self) -> dict[str, Any]:
        return {"state": self.state, "text": self.text, "done": self.done, "percent": self.percent}


def judge_change(kind: str, node: int, rows: Sequence[Mapping[str, Any]]) -> ChangeProgress:
    """How far it is."""
    view = newest_view(rows)
    if not view:
        return ChangeProgress("", "no node answers; waiting for one")
    member = member_of(view, node)
    state = str(member.get("state", ""))
    if kind == "transfer":
        done = view["leader"] == node
        return ChangeProgress(state, f"node {node} leads" if done else f"node {view['leader'] or '?'} leads", done)
    if kind in COMING:
        done = state == "member" and node not in failed_nodes(view)
        return _coming(node, state, copy_to(rows, node), done=done)
    done = state in GONE
    return ChangeProgress(state, f"node {node} is removed" if done else f"node {node} leaves every group", done)


def _coming(node: int, state: str, copy: Mapping[str, Any] | None, *, done: bool) -> ChangeProgress:
    if done:
        return ChangeProgress(state, f"node {node} is level, and votes", done=True)
    if state in ("leaving", *GONE):
        return ChangeProgress(state, f"node {node} is now {state or 'unknown'}", failed=True)
    if copy is not None:
        return ChangeProgress(state, copy_text(copy), percent=copy.get("percent"))
    text = {
        "expected": f"waits until node {node} is started: `cmdlog cluster join` shows how",
        "leaving_old": f"the former disk of node {node} leaves every group",
        "joining": f"node {node} is added to every group, without a vote",
        "admitted": f"node {node} catches up",
    }.get(state, f"node {node} is declared failed until it is level")
    return ChangeProgress(state, text)


def await_change(kind: str, node: int, reader: StatusReader) -> ChangeProgress:
    """Looks until it is done. Raises: CommandFailed when it will not be; BrokenOff."""
    continues = f"the {kind} of node {node} continues in the cluster"
    with report_on_interrupt(continues, hint="`cmdlog cluster status` shows how far it is"), _ProgressLine() as show:
        while True:
            progress = judge_change(kind, node, reader.ask_all())
            show(progress.text)
            if progress.failed:
                raise CommandFailed(f"{kind} of node {node}: {progress.text}", hint="`cmdlog cluster status` shows the members")
            if progress.done:
                return progress
            time.sleep(POLL_S)


class _ProgressLine:
    """One line on a terminal that is rewritten; elsewhere a note per change, without the numbers of a copy."""

    def __enter__(self) -> Callable[[str], None]:
        from rich.status import Status

        self._last = ""
        self._shown = None if out.json or not sys.stderr.isatty() else Status("", console=make_console(stderr=True))
        if self._shown is not None:
            self._shown.start()
        return self._show

    def _show(self, text: str) -> None:
        from rich.text import Text

        if self._shown is not None:
            self._shown.update(Text(visible(text)))
        elif (stage := text.partition(" %")[0].rstrip("0123456789 ")) != self._last:
            self._last = stage
            out.print_note(text)

    def __exit__(self, *_: object) -> None:
        if self._shown is not None:
            self._shown.stop()
