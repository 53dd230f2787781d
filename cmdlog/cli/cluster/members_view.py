"""What the nodes report about the members, taken together: the newest view, a member's state in words, copies in progress.

One rule: the node that has seen the newest version of the members is believed; of a copy, the node that gives it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

MIB: Final = 1 << 20
SETTLED: Final = "member"
EXPECTED: Final = "expected"
UNSETTLED: Final = frozenset((EXPECTED, "joining", "admitted", "leaving_old", "leaving", "removed"))
"""States of a node that need not answer, or be level."""

Rows = Sequence[Mapping[str, Any]]


def newest_view(rows: Rows) -> Mapping[str, Any]:
    """The report of the node that has seen the newest version of the members; {} if none answers."""
    reached = [row for row in rows if "groups" in row]
    return max(reached, key=lambda row: (row.get("version", 0), row.get("standing") == "leading"), default={})


def member_of(view: Mapping[str, Any], node: int | None) -> Mapping[str, Any]:
    """A node's entry in a view; {} if it has none."""
    return next((member for member in view.get("members", ()) if member["node"] == node), {})


def unsettled_nodes(rows: Rows) -> frozenset[int]:
    """Nodes on their way into the cluster, or out of it."""
    return frozenset(member["node"] for member in newest_view(rows).get("members", ()) if member.get("state") in UNSETTLED)


def expected_nodes(view: Mapping[str, Any]) -> Sequence[int]:
    """Nodes that were added or replaced, and have not been started."""
    return [member["node"] for member in view.get("members", ()) if member.get("state") == EXPECTED]


def failed_nodes(view: Mapping[str, Any]) -> Sequence[int]:
    """Nodes that are declared failed."""
    nodes: Sequence[int] = (view.get("failure_set") or {}).get("nodes", ())
    return nodes


def copy_to(rows: Rows, node: int | None) -> Mapping[str, Any] | None:
    """The copy to the node that some node gives."""
    return next((copy for row in rows for copy in row.get("copying", {}).get("copies", ()) if copy["node"] == node), None)


def copy_text(copy: Mapping[str, Any]) -> str:
    """Percent, rate and time left, as far as they are known."""
    parts = [f"copying {copy['percent']:.0f} %" if copy.get("percent") is not None else "copying"]
    if copy.get("rate"):
        parts.append(f"{copy['rate'] / MIB:.1f} MiB/s")
    if copy.get("left_s") is not None:
        parts.append(f"{copy['left_s']:.0f} s left")
    return ", ".join(parts)


def state_text(state: str) -> str:
    """A state in words."""
    return "leaving, to be replaced" if state == "leaving_old" else state


def member_text(rows: Rows, node: int | None) -> str:
    """A member's state in a few words: its seat, or how far it has come; "" where nothing is known."""
    view = newest_view(rows)
    member = member_of(view, node)
    state = str(member.get("state", ""))
    if state == SETTLED:
        text = str(member.get("seat") or state)
    elif state == "admitted":
        copy = copy_to(rows, node)
        text = "catching up" if copy is None else copy_text(copy).partition(",")[0]
    else:
        text = state_text(state)
    if node in failed_nodes(view):
        text = f"failed, {text}"
    return f"{text} (forced)" if member.get("forced") else text
