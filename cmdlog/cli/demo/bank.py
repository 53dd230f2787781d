"""The demo with the bank: its calls, what it looks at, and its proof, against a bank in plain Python.

One rule of the proof: pure, and fair to nobody. It knows the calls that were sent, the answers that arrived and the rows that the
server shows now; no clock, no socket, nothing of logs or SQL.

Why it proves what it says. Transaction ids are unique in the cluster and increase within a partition, so sorting by them gives
the order in which the calls claim to have been executed. `BankModel` executes the same order. A lost call leaves a balance too
low or too high, or a later answer wrong; so does one that was applied twice. Money is added up a second time from the answers
alone, without the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.demo.proof import DemoCall, View, answer_text, describe, in_order, keyed
from cmdlog.wal.ids import MULTI_PARTITION, txn_partition

if TYPE_CHECKING:
    from procedures.samples.bank import BankModel

BRANCHES: Final = 16
CUSTOMERS: Final = 50  # of each branch; all accounts together fit one query (query_rows_max)
ACCOUNTS_SQL: Final = "SELECT branch, customer, savings, checking FROM accounts"

Account = tuple[int, int]  # branch, customer
Holdings = tuple[int, int]  # savings, checking, in cents


@dataclass(frozen=True, slots=True)
class BankState:
    """What the server shows when the load is over."""

    accounts: Mapping[Account, Holdings]  # by SQL, from the state files
    totals: Sequence[tuple[int, int]]  # by a read-only procedure, from the sites: (money, accounts) of each partition


class Bank:
    """See `demo_proof.Work`."""

    application: str = "procedures.samples.bank:db"

    def __init__(self, *, calls: int, partitions: int, seed: int) -> None:
        from procedures.samples import bank

        self.loading: Sequence[DemoCall] = keyed(f"demo-{seed}-load", bank.loader(branches=BRANCHES, customers=CUSTOMERS))
        self.load: Sequence[DemoCall] = keyed(
            f"demo-{seed}", bank.workload(seed, calls=calls, branches=BRANCHES, customers=CUSTOMERS)
        )
        self.loaded = f"{BRANCHES * CUSTOMERS:,} accounts in {BRANCHES} branches on {partitions} partitions"
        self.notes: Sequence[str] = ()

    def read_state(self, view: View) -> BankState:
        rows = view.rows(ACCOUNTS_SQL, ())
        accounts = {(branch, customer): (savings, checking) for branch, customer, savings, checking in rows}
        if len(accounts) != len(rows):
            raise CommandFailed("two partitions show the same account")
        return BankState(accounts, [(money, count) for money, count in view.call("total")])

    def proofs(self, calls: Sequence[DemoCall], seen: BankState) -> Iterator[tuple[str, Iterator[str]]]:
        from procedures.samples.bank import BankModel

        model = BankModel()
        yield "every answer is what the model says at its place in the order", _results(calls, model)
        yield "every account holds what the model says", _balances(seen, model)
        yield "money is conserved", _money(calls, seen)


def _results(calls: Sequence[DemoCall], model: BankModel) -> Iterator[str]:
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
            yield f"{describe(call)} got the answer {answer_text(answer)}; the model says {kind} {wanted!r}"
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
            yield f"customer {who[1]} of branch {who[0]} has no account; the model says {wanted}"
        elif list(found) != wanted:
            yield f"customer {who[1]} of branch {who[0]} holds {list(found)}; the model says {wanted}"


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
