"""The demo's proof, from outside: what clients were told and what the server shows, against a bank in plain Python.

One rule: pure, and fair to nobody. It knows the calls that were sent, the answers that arrived and the rows that the server shows
now; no clock, no socket, nothing of logs or SQL.

Why it proves what it says. Transaction ids are unique in the cluster and increase within a partition, so sorting by them gives
the order in which the calls claim to have been executed. `Model` executes the same order. A lost call leaves a balance too low or
too high, or a later answer wrong; so does one that was applied twice. Money is added up a second time from the answers alone,
without the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cmdlog.wal.ids import MULTI_PARTITION, txn_partition

if TYPE_CHECKING:
    from procedures.samples.bank import Model

Account = tuple[int, int]  # branch, customer
Holdings = tuple[int, int]  # savings, checking, in cents


@dataclass(frozen=True, slots=True)
class Answer:
    """What a client was told about one call."""

    txn_id: int
    partition: int | None  # None: every partition, or not told because there was no result
    kind: str  # ok, aborted or failed; else the problem's code
    value: Any  # result, or the abort's own code


@dataclass(slots=True)
class Call:
    """One call as its client knows it: sent under one key until it was answered."""

    key: str
    procedure: str
    params: dict[str, Any]
    answer: Answer | None = None  # the first one that arrived
    attempts: int = 0
    before_kill: bool = False  # answered by the server that was killed
    repeated: Answer | None = None  # what the next server said when it was asked again


@dataclass(frozen=True, slots=True)
class Seen:
    """What the server shows when the load is over."""

    accounts: Mapping[Account, Holdings]  # by SQL, from the state files
    totals: Sequence[tuple[int, int]]  # by a read-only procedure, from the sites: (money, accounts) of each partition
    rebuilt: Mapping[Account, Holdings]  # from the log alone, in another directory


@dataclass(slots=True)
class Verdict:
    """What was proved. `differences` is empty when everything was."""

    proofs: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        return not self.differences


def prove(calls: Sequence[Call], seen: Seen) -> Verdict:
    """All proofs, each with its first difference."""
    from procedures.samples.bank import Model

    model, verdict = Model(), Verdict()
    for name, differences in (
        ("every call is answered, under a transaction id of its own", _answers(calls)),
        ("a repeated call gets the first answer", _repetitions(calls)),
        ("every answer is what the model says at its place in the order", _results(calls, model)),
        ("every account holds what the model says", _balances(seen, model)),
        ("money is conserved", _money(calls, seen)),
        ("the log alone gives the same accounts in another directory", _rebuilt(seen)),
    ):
        first = next(differences, None)
        if first is None:
            verdict.proofs.append(name)
        else:
            verdict.differences.append(f"not so: {name}: {first}")
    return verdict


def _answers(calls: Sequence[Call]) -> Iterator[str]:
    for call in calls:
        answer = call.answer
        if answer is None:
            yield f"{describe(call)} was never answered"
        elif answer.kind not in ("ok", "aborted", "failed"):
            yield f"{describe(call)} was refused with {answer.kind}"
        elif answer.partition is not None and txn_partition(answer.txn_id) != answer.partition:
            yield f"{describe(call)} ran on partition {answer.partition} under the id {answer.txn_id} of another"
    counts = Counter(call.answer.txn_id for call in calls if call.answer is not None)
    for txn_id, count in counts.items():
        if count > 1:
            yield f"{count} calls were answered under transaction {txn_id}"


def _repetitions(calls: Sequence[Call]) -> Iterator[str]:
    for call in calls:
        first, again = call.answer, call.repeated
        if not call.before_kill or first is None:
            continue
        if again is None:
            yield f"{describe(call)} was not answered again"
        elif (again.txn_id, again.kind, again.value) != (first.txn_id, first.kind, first.value):
            yield f"{describe(call)}: first {_told(first)}, then {_told(again)}"


def _results(calls: Sequence[Call], model: Model) -> Iterator[str]:
    """Runs the model over all calls in the order of their transaction ids."""
    branches: dict[int, int] = {}
    for call in in_order(calls):
        answer = call.answer
        if answer is None:
            continue
        kind, value = model.apply(call.procedure, call.params)
        wanted: Any = value
        if kind == "ok" and txn_partition(answer.txn_id) == MULTI_PARTITION:
            wanted = [value] * len(answer.value) if isinstance(answer.value, list) else value
        if (answer.kind, answer.value) != (kind, wanted):
            yield f"{describe(call)} was told {_told(answer)}; the model says {kind} {wanted!r}"
        branch = call.params.get("branch")
        if branch is not None:
            home = txn_partition(answer.txn_id)
            if branches.setdefault(branch, home) != home:
                yield f"{describe(call)} ran on partition {home}, branch {branch} lives on {branches[branch]}"


def _balances(seen: Seen, model: Model) -> Iterator[str]:
    for who in sorted(model.accounts.keys() | seen.accounts.keys()):
        wanted, found = model.accounts.get(who), seen.accounts.get(who)
        if wanted is None:
            yield f"customer {who[1]} of branch {who[0]} has an account that nobody opened"
        elif found is None:
            yield f"customer {who[1]} of branch {who[0]} has no account; the model says {wanted}"
        elif list(found) != wanted:
            yield f"customer {who[1]} of branch {who[0]} holds {list(found)}; the model says {wanted}"


def _rebuilt(seen: Seen) -> Iterator[str]:
    for who in sorted(seen.accounts.keys() | seen.rebuilt.keys()):
        shown, rebuilt = seen.accounts.get(who), seen.rebuilt.get(who)
        if shown != rebuilt:
            yield f"customer {who[1]} of branch {who[0]} holds {shown}; rebuilt from the log {rebuilt}"


def _money(calls: Sequence[Call], seen: Seen) -> Iterator[str]:
    paid_in = sum(_paid_in(call) for call in calls)
    for where, held in (
        ("the accounts", sum(map(sum, seen.accounts.values()))),
        ("the partitions' totals", sum(money for money, _ in seen.totals)),
    ):
        if held != paid_in:
            yield f"{where} hold {held:,} cents; {paid_in:,} were paid in, {held - paid_in:+,}"
    counted = sum(accounts for _, accounts in seen.totals)
    if counted != len(seen.accounts):
        yield f"the partitions count {counted} accounts, a query finds {len(seen.accounts)}"


def _paid_in(call: Call) -> int:
    """What the call added to all accounts together, by its parameters and its answer."""
    answer, params = call.answer, call.params
    if answer is None or answer.kind != "ok":
        return 0
    effect = _EFFECTS.get(call.procedure)
    return 0 if effect is None else int(effect(params, answer.value))


_EFFECTS: Final[Mapping[str, Any]] = {
    "open_account": lambda params, _: params.get("savings", 0) + params.get("checking", 0),
    "open_accounts": lambda params, count: count * (params["savings"] + params["checking"]),
    "deposit_checking": lambda params, _: params["amount"],
    "transact_savings": lambda params, _: params["amount"],
    "write_check": lambda _, taken: -taken,
    "pay_interest": lambda _, interest: interest,
}
"""Procedures that change the bank's money; all others move it between accounts."""


def in_order(calls: Sequence[Call]) -> list[Call]:
    """The answered calls, by transaction id."""
    return sorted((call for call in calls if call.answer is not None), key=lambda call: call.answer.txn_id if call.answer else 0)


def describe(call: Call) -> str:
    """The call as an operator would look for it."""
    params = " ".join(f"{name}={value}" for name, value in call.params.items())
    return f"{call.procedure} {params} (key {call.key})"


def _told(answer: Answer) -> str:
    return f"{answer.kind} {answer.value!r} under {answer.txn_id}"
