"""The demo's proof, from outside: what clients were answered and what the server shows.

One rule: pure, and fair to nobody. It knows the calls that were sent, the answers that arrived and the rows that are shown now;
no clock, no socket. Here is what holds for every sample; what its rows must be is the sample's own business (`demo_bank`,
`demo_tpcc`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cmdlog.wal.ids import txn_partition


@dataclass(frozen=True, slots=True)
class ClientAnswer:
    """The answer to one call."""

    txn_id: int
    partition: int | None  # None: every partition, or unknown because there was no result
    kind: str  # ok, aborted or failed; else the problem's code
    value: Any  # result, or the abort's own code


@dataclass(slots=True)
class DemoCall:
    """One call as its client knows it: sent under one key until it was answered."""

    key: str
    procedure: str
    params: dict[str, Any]
    logged: bool = True  # a read-only call is not: asked again, it may answer differently
    answer: ClientAnswer | None = None  # the first one that arrived
    attempts: int = 0
    before_kill: bool = False  # answered by the server that was killed
    repeated: ClientAnswer | None = None  # what the next server said when it was asked again


class View(Protocol):
    """The server, as the checks see it."""

    def rows(self, sql: str, params: Sequence[Any]) -> list[Sequence[Any]]:
        """Rows of a SELECT over all partitions."""

    def call(self, procedure: str) -> Any:
        """Result of a read-only procedure without parameters."""


class DemoWork(Protocol):
    """A sample under load: calls, what is looked at when they are done, and what that must be."""

    application: str  # module:attribute
    loading: Sequence[DemoCall]  # in order, before the load
    load: Sequence[DemoCall]
    loaded: str  # said when the loading calls are answered
    notes: Sequence[str]  # what the report should say about the load

    def read_state(self, view: View) -> Any:
        """What the proofs need. Raises: CommandFailed."""

    def proofs(self, calls: Sequence[DemoCall], seen: Any) -> Iterator[tuple[str, Iterator[str]]]:
        """(what is proved, differences from it), from all calls and what `look` has seen."""


@dataclass(slots=True)
class ProofVerdict:
    """What was proved. `differences` is empty when everything was."""

    proofs: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.differences


Rows = Mapping[tuple[int, str], tuple[int, str]]  # (partition, table) -> (rows, digest)


def prove(
    calls: Sequence[DemoCall],
    own: Iterable[tuple[str, Iterator[str]]],
    *,
    kept: Rows,
    rebuilt: Rows,
    source: str = "the log alone",
) -> ProofVerdict:
    """All proofs, each with its first difference; `own` are the sample's, and `rebuilt` was made of `source`."""
    verdict = ProofVerdict()
    for name, differences in (
        ("every call is answered, under a transaction id of its own", _answers(calls)),
        ("a repeated call gets the first answer", _repetitions(calls)),
        *own,
        (f"{source} gives the same rows in another directory", differing_rows(kept, rebuilt)),
    ):
        first = next(differences, None)
        if first is None:
            verdict.proofs.append(name)
        else:
            verdict.differences.append(f"refuted: {name}: {first}")
    return verdict


def _answers(calls: Sequence[DemoCall]) -> Iterator[str]:
    for call in calls:
        answer = call.answer
        if answer is None:
            yield f"{describe(call)} was never answered"
        elif answer.kind not in ("ok", "aborted", "failed"):
            yield f"{describe(call)} was refused with {answer.kind}"
        elif call.logged and answer.partition is not None and txn_partition(answer.txn_id) != answer.partition:
            yield f"{describe(call)} ran on partition {answer.partition} under the id {answer.txn_id} of another"
    counts = Counter(call.answer.txn_id for call in calls if call.answer is not None and call.logged)
    for txn_id, count in counts.items():
        if count > 1:
            yield f"{count} calls were answered under transaction {txn_id}"


def _repetitions(calls: Sequence[DemoCall]) -> Iterator[str]:
    for call in calls:
        first, again = call.answer, call.repeated
        if not call.before_kill or not call.logged or first is None:
            continue
        if again is None:
            yield f"{describe(call)} was not answered again"
        elif (again.txn_id, again.kind, again.value) != (first.txn_id, first.kind, first.value):
            yield f"{describe(call)}: first {answer_text(first)}, then {answer_text(again)}"


def differing_rows(kept: Rows, rebuilt: Rows, *, where: str = "rebuilt from the log") -> Iterator[str]:
    """Tables of a server that are different in other rows, which are `where`."""
    for partition, table in sorted(kept.keys() | rebuilt.keys()):
        shown, found = kept.get((partition, table)), rebuilt.get((partition, table))
        if shown is None or found is None:
            yield f"table {table} of partition {partition} is missing {'there' if found is None else 'in the server'}"
        elif shown != found:
            yield f"table {table} of partition {partition}: {shown[0]} rows, {where} {found[0]}, and they differ"


def keyed(prefix: str, calls: Iterable[tuple[str, dict[str, Any]]], *, reads: Iterable[str] = ()) -> list[DemoCall]:
    """Calls under keys that name the run, so that a kept directory can be used twice."""
    unlogged = frozenset(reads)
    return [DemoCall(f"{prefix}-{n}", name, params, name not in unlogged) for n, (name, params) in enumerate(calls)]


def in_order(calls: Sequence[DemoCall]) -> list[DemoCall]:
    """The answered calls, by transaction id."""
    return sorted((call for call in calls if call.answer is not None), key=lambda call: call.answer.txn_id if call.answer else 0)


def describe(call: DemoCall) -> str:
    """The call as an operator would look for it."""
    params = " ".join(f"{name}={value}" for name, value in call.params.items())
    return f"{call.procedure} {params} (key {call.key})"


def answer_text(answer: ClientAnswer) -> str:
    return f"{answer.kind} {answer.value!r} under {answer.txn_id}"
