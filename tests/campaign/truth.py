"""What really happened in a history: every call whose outcome is known, and so the state behind any transaction.

One rule: only what the node said to a caller goes in. What a crash left unknown is asked for again under its key first.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.campaign.application import Ledger, Outcome


class Wrong(AssertionError):
    """The node is not what the history says."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A call to be made."""

    number: int
    procedure: str
    params: Mapping[str, Any]
    key: str | None

    def __str__(self) -> str:
        text = ", ".join(f"{name}={str(value)[:20]}" for name, value in self.params.items())
        return f"call {self.number}: {self.procedure}({text})"


@dataclass(frozen=True, slots=True)
class Made:
    """A call with the outcome that its caller was given."""

    txn_id: int
    call: Planned
    outcome: Outcome
    version: int


@dataclass(slots=True)
class Truth:
    """Of one history. `made` by key answers retries."""

    partitions: int
    calls: dict[int, Made] = field(default_factory=dict)  # by transaction
    refused: int = 0  # calls of which nothing was logged
    starts: list[tuple[int, int]] = field(default_factory=list)  # first transaction of a start, and the version it runs

    def add(self, made: Made) -> None:
        """Raises: Wrong when the transaction is another call's."""
        known = self.calls.setdefault(made.txn_id, made)
        if known.call.number != made.call.number:
            raise Wrong(f"transaction {made.txn_id} is {known.call}, and {made.call}")

    def begun(self, txn_id: int, version: int) -> None:
        """The node runs this version from this transaction on."""
        if self.starts and txn_id <= self.starts[-1][0]:
            raise Wrong(f"after a restart comes transaction {txn_id}, before it was {self.starts[-1][0]}")
        self.starts.append((txn_id, version))

    def version_at(self, txn_id: int) -> int:
        """Which code was running."""
        at = bisect_right(self.starts, (txn_id, 99)) - 1
        return self.starts[max(at, 0)][1]

    def txn_ids(self) -> list[int]:
        """Ascending."""
        return sorted(self.calls)

    def state(self, until: int | None = None) -> Ledger:
        """Behind the last transaction that is not after `until`. Raises: Wrong when a caller was given another outcome."""
        ledger = Ledger(self.partitions)
        for txn_id in self.txn_ids():
            if until is not None and txn_id > until:
                break
            made = self.calls[txn_id]
            outcome = ledger.call(made.call.procedure, made.call.params, made.version)
            if outcome != made.outcome:
                raise Wrong(f"transaction {txn_id}, {made.call}, version {made.version}: {made.outcome}, and not {outcome}")
        return ledger


def same(what: str, found: Any, truth: Any) -> None:
    """Raises: Wrong, with the first difference."""
    if found == truth:
        return
    if isinstance(found, dict) and isinstance(truth, dict):
        keys = [key for key in sorted(found.keys() | truth.keys()) if found.get(key) != truth.get(key)]
        detail = f"{len(keys)} differ, first {keys[0]}: {str(found.get(keys[0]))[:80]}, and not {str(truth.get(keys[0]))[:80]}"
    elif isinstance(found, list) and isinstance(truth, list):
        pairs = zip(found, truth, strict=False)
        at = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(found), len(truth)))
        ours, theirs = str(found[at : at + 1])[:200], str(truth[at : at + 1])[:200]
        detail = f"{len(found)} for {len(truth)}, first at {at}: {ours}, and not {theirs}"
    else:
        detail = f"{found!r}, and not {truth!r}"
    raise Wrong(f"{what}: {detail}")
