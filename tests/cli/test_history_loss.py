"""A node that goes, and the promised past that goes with it."""

from __future__ import annotations

from typing import Any

import pytest

from cmdlog.cli.cluster.history_loss import warn_of_history
from cmdlog.wal.ids import MILLIS_SHIFT

NOW_MS = 1_000_000_000
DAY_S = 86_400.0


def reach(node: int, days_back: float | None, *, window_s: float = 30 * DAY_S) -> dict[str, Any]:
    """A node that can restore so many days; None: no moment. A thousand are the beginning."""
    if days_back is None:
        return {"node": node, "history": {"window_s": window_s, "oldest_txn": None, "oldest_time": None}}
    millis = 0 if days_back == 1000 else NOW_MS - int(days_back * DAY_S * 1000)
    time = f"{days_back:g} days ago" if millis else None
    return {"node": node, "history": {"window_s": window_s, "oldest_txn": str(millis << MILLIS_SHIFT), "oldest_time": time}}


SILENT = {"node": 3, "state": "unreachable"}


@pytest.mark.parametrize(
    ("rows", "warned"),
    [
        ([reach(1, 5), reach(2, 5), reach(3, 5)], False),
        ([reach(1, 5), reach(2, 1), reach(3, 5)], False),
        ([reach(1, 5), reach(2, 1), reach(3, 2)], True),
        ([reach(1, 5), reach(2, 1), SILENT], True),
        ([reach(1, 5), reach(2, None), reach(3, None)], True),
        ([reach(1, 1000), reach(2, 1), reach(3, 1)], True),
        (
            [reach(1, 1000, window_s=DAY_S), reach(2, 2, window_s=DAY_S), reach(3, 1)],
            False,
        ),  # beyond the window nothing is promised
        ([reach(1, 1), reach(2, 5), SILENT], False),
        ([reach(1, None), reach(2, None)], False),
        ([reach(1, 5, window_s=0.0), reach(2, 1)], False),
        ([{"node": 1, "state": "unreachable"}, reach(2, 1)], False),
    ],
)
def test_last_one_with_the_promised_past_is_named(rows: list[dict[str, Any]], warned: bool) -> None:
    """Whether another node that answers can restore as much of what is promised."""
    found = warn_of_history("replace", 1, rows, now_millis=NOW_MS)
    assert [warning.startswith("last_history: ") for warning in found] == [True] * warned


def test_only_who_goes_takes_the_past_along() -> None:
    """Neither a node that comes nor one that is given the leadership."""
    rows = [reach(1, 5), reach(2, 1)]
    warned = [
        kind for kind in ("add", "remove", "replace", "retire", "transfer") if warn_of_history(kind, 1, rows, now_millis=NOW_MS)
    ]
    assert warned == ["remove", "replace", "retire"]
