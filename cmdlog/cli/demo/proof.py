"""The demos' proof, from outside: what clients were answered and what is shown now, against a bank in plain Python.

One rule: pure. It knows the calls that were sent, the answers that arrived and the rows that are shown now;
no clock, no socket, nothing of logs or SQL.

Why it is a proof. Transaction ids are unique in the cluster and increase within a partition, so sorting by them gives
the order in which the calls claim to have been executed. `BankModel` executes the same order. A lost call leaves a balance too
low or too high, or a later answer wrong; so does one that was applied twice. Money is added up a second time from the answers
alone, without the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from cmdlog.wal.ids import MULTI_PARTITION, txn_partition

if TYPE_CHECKING:
    from procedures.samples.bank import BankModel

BRANCHES: Final = 16  # of the bank, which are spread over the partitions
Account = tuple[int, int]  # branch, customer
Holdings = tuple[int, int]  # savings, checking, in cents
Rows = Mapping[tuple[int, str], tuple[int, str]]  # (partition, table) -> (rows, digest)


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
    answer: ClientAnswer | None = None  # the first one that arrived
    repeated: ClientAnswer | None = None  # when it was asked again, at the end


@dataclass(frozen=True, slots=True)
class BankState:
    """What is shown when the load is over."""

    accounts: Mapping[Account, Holdings]  # by SQL, from the state files
    totals: Sequence[tuple[int, int]]  # by a read-only procedure, from the sites: (money, accounts) of each partition


@dataclass(slots=True)
class ProofVerdict:
    """What was proved. `differences` is empty when everything was."""

    proofs: list[str] = field(default_factory=list)
    differences: list[str] = field(default_factory=list)


Claim = tuple[str, Iterator[str]]
"""What is to be proved, and the differences from it."""


def prove(calls: Sequence[DemoCall], seen: BankState, more: Iterable[Claim], *, kept: Rows, rebuilt: Rows) -> ProofVerdict:
    """All proofs, each with its first difference. `kept`: the tables of a node; `rebuilt`: those that `cmdlog recover` made."""
    from procedures.samples.bank import BankModel

    verdict, model = ProofVerdict(), BankModel()
    claims: Iterable[Claim] = (
        ("every call is answered, under a transaction id of its own", _answers(calls)),
        ("a repeated call gets the first answer", _repetitions(calls)),
        ("every answer is the model's at its place in the order", _results(calls, model)),
        ("every account holds what the model computes", _balances(seen, model)),
        ("money is conserved", _money(calls, seen)),
        *more,
        ("cmdlog recover gives the same rows in another directory", differing_rows(kept, rebuilt)),
    )
    for name, differences in claims:
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
        elif answer.partition is not None and txn_partition(answer.txn_id) != answer.partition:
            yield f"{describe(call)} ran on partition {answer.partition} under the id {answer.txn_id} of another"
    counts = Counter(call.answer.txn_id for call in calls if call.answer is not None)
    for txn_id, count in counts.items():
        if count > 1:
            yield f"{count} calls were answered under transaction {txn_id}"


def _repetitions(calls: Sequence[DemoCall]) -> Iterator[str]:
    for call in calls:
        first, again = call.answer, call.repeated
        if again is None:
            yield f"{describe(call)} was not answered again"
        elif first is not None and (again.txn_id, again.kind, again.value) != (first.txn_id, first.kind, first.value):
            yield f"{describe(call)}: first {answer_text(first)}, then {answer_text(again)}"


def _results(calls: Sequence[DemoCall], model: BankModel) -> Iterator[str]:
    """Runs the model over all calls in the order of their transaction ids."""
    branches: dict[int, int] = {}
    answered = [(call, call.answer) for call in calls if call.answer is not None]
    for call, answer in sorted(answered, key=lambda pair: pair[1].txn_id):
        kind, value = model.apply(call.procedure, call.params)
        wanted: Any = value
        if kind == "ok" and txn_partition(answer.txn_id) == MULTI_PARTITION:
            wanted = [value] * len(answer.value) if isinstance(answer.value, list) else value
        if (answer.kind, answer.value) != (kind, wanted):
            yield f"{describe(call)} got the answer {answer_text(answer)}; the model has {kind} {wanted!r}"
        branch = call.params.get("branch")
        if branch is not None:
            home = txn_partition(answer.txn_id)
            if branches.setdefault(branch, home) != home:
                yield f"{describe(call)} ran on partition {home}, branch {branch} lives on {branches[branch]}"


def _balances(seen: BankState, model: BankModel) -> Iterator[str]:
    for who in sorted(model.accounts.keys() | seen.accounts.keys()):
        wanted, found = model.accounts.get(who), seen.accounts.get(who)
        if wanted is None:
            yield f"customer {who[1]} of branch {who[0]} has an account that no call opened"
        elif found is None:
            yield f"customer {who[1]} of branch {who[0]} has no account; the model has {wanted}"
        elif list(found) != wanted:
            yield f"customer {who[1]} of branch {who[0]} holds {list(found)}; the model has {wanted}"


def _money(calls: Sequence[DemoCall], seen: BankState) -> Iterator[str]:
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


def _paid_in(call: DemoCall) -> int:
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


def differing_rows(kept: Rows, rebuilt: Rows, *, where: str = "recovered") -> Iterator[str]:
    """Tables of a node that differ from other rows, which are `where`."""
    for partition, table in sorted(kept.keys() | rebuilt.keys()):
        shown, found = kept.get((partition, table)), rebuilt.get((partition, table))
        if shown is None or found is None:
            yield f"table {table} of partition {partition} is missing {'there' if found is None else 'in the server'}"
        elif shown != found:
            yield f"table {table} of partition {partition}: {shown[0]} rows, {where} {found[0]}, and they differ"


def describe(call: DemoCall) -> str:
    """The call as an operator would look for it."""
    params = " ".join(f"{name}={value}" for name, value in call.params.items())
    return f"{call.procedure} {params} (key {call.key})"


def answer_text(answer: ClientAnswer) -> str:
    return f"{answer.kind} {answer.value!r} under {answer.txn_id}"
