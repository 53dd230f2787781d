"""Whether a node that goes holds history that was promised, and that no other node has.

One rule: pure, of what the nodes said of their archives. A copy for another node holds states and a log from now on, never the
past, and what is restorable is each node's own promise; so the last node that reaches back takes the past with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

LAST_HISTORY: Final = "last_history"
GOING: Final = frozenset({"remove", "retire", "replace"})


def warn_of_history(kind: str, node: int, rows: Sequence[Mapping[str, Any]], *, now_millis: int) -> list[str]:
    """The warning, if there is one to give; of a node that did not answer nothing is known."""
    from snapshot.retention import window_begin

    reaches = {int(row["node"]): row["history"] for row in rows if row.get("history") and row.get("node") is not None}
    own = reaches.pop(node, None)
    if kind not in GOING or own is None or own["oldest_txn"] is None or not own["window_s"]:
        return []
    wanted = max(int(own["oldest_txn"]), window_begin(now_millis=now_millis, window_s=own["window_s"]) or 0)
    others = [int(reach["oldest_txn"]) for reach in reaches.values() if reach["oldest_txn"] is not None]
    if any(oldest <= wanted for oldest in others):
        return []
    since = f"from {own['oldest_time']} on" if own["oldest_time"] else "since the beginning"
    why = (
        f"{LAST_HISTORY}: no other node that answers reaches back as far as node {node}, which can restore every moment {since}; "
        f"retention_window_s={own['window_s']:g} promises that: keep its directory, or wait until another node has as much"
    )
    return [why]
