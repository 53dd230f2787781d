"""The demo's judge finds each kind of wrong that it is there to find, in a run that is otherwise right."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from cmdlog.cli.demo.proof import BankState, ClientAnswer, DemoCall, ProofVerdict
from cmdlog.cli.demo.proof import prove as prove_all
from cmdlog.wal.ids import MULTI_PARTITION, make_txn_id
from procedures.samples.bank import BankModel, loader, workload

PARTITIONS = 2


@pytest.fixture
def run() -> tuple[list[DemoCall], BankState]:
    """A faultless run of 400 calls on two partitions, each of them repeated, and what the server shows at the end."""
    model, calls = BankModel(), []
    work = [*loader(branches=4, customers=5), *workload(3, calls=400, branches=4, customers=5)]
    for number, (name, params) in enumerate(work):
        kind, value = model.apply(name, params)
        everywhere = name == "set_rate"
        partition = MULTI_PARTITION if everywhere else params["branch"] % PARTITIONS
        txn_id = make_txn_id(millis=1_700_000_000_000 + number, counter=0, partition=partition)
        answer = ClientAnswer(
            txn_id, None if everywhere or kind != "ok" else partition, kind, [value] * 2 if everywhere else value
        )
        calls.append(DemoCall(f"key-{number}", name, params, answer, answer))
    accounts = {who: (savings, checking) for who, (savings, checking) in model.accounts.items()}
    totals = []
    for partition in range(PARTITIONS):
        here = [sum(held) for (branch, _), held in accounts.items() if branch % PARTITIONS == partition]
        totals.append((sum(here), len(here)))
    return calls, BankState(accounts, totals)


def prove(calls: list[DemoCall], seen: BankState) -> ProofVerdict:
    """The verdict on a run whose log gives the rows that the server shows."""
    rows = {(0, "accounts"): (len(seen.accounts), "digest")}
    return prove_all(calls, seen, (), kept=rows, rebuilt=rows)


def answer_of(call: DemoCall) -> ClientAnswer:
    """The answer that every call of the run has."""
    assert call.answer is not None
    return call.answer


def index_of(calls: list[DemoCall], procedure: str, *, after: int = 0) -> int:
    """The first successful call of a procedure."""
    return next(i for i, call in enumerate(calls) if i >= after and call.procedure == procedure and answer_of(call).kind == "ok")


def test_a_faultless_run_is_proved(run: tuple[list[DemoCall], BankState]) -> None:
    """Nothing is held against a run in which nothing went wrong, in whatever order the clients' calls are listed."""
    calls, seen = run
    verdict = prove(calls[::-1], seen)
    assert verdict.differences == []
    assert len(verdict.proofs) == 6


def _lose(calls: list[DemoCall]) -> None:
    """An acknowledged deposit that the server does not have: the clients know it, the balances do not."""
    at = index_of(calls, "deposit_checking", after=50)
    calls.append(
        dataclasses.replace(
            calls[at], key="lost", answer=dataclasses.replace(answer_of(calls[at]), txn_id=answer_of(calls[at]).txn_id + 1024)
        )
    )


def _twice(calls: list[DemoCall]) -> None:
    """A deposit that the server has applied twice: the balances know one more than the clients."""
    del calls[index_of(calls, "deposit_checking", after=50)]


def _tamper(calls: list[DemoCall]) -> None:
    at = index_of(calls, "transfer")
    calls[at].answer = calls[at].repeated = dataclasses.replace(answer_of(calls[at]), value=answer_of(calls[at]).value + 1)


def _swap_order(calls: list[DemoCall]) -> None:
    """Two dependent calls under exchanged ids."""
    seen: dict[tuple[int, int], int] = {}
    for second, call in enumerate(calls):
        if call.procedure != "transact_savings" or answer_of(call).kind != "ok":
            continue
        first = seen.setdefault((call.params["branch"], call.params["customer"]), second)
        if first != second:
            break
    else:
        raise AssertionError("the load has no two such calls")
    one, two = answer_of(calls[first]), answer_of(calls[second])
    calls[first].answer = calls[first].repeated = dataclasses.replace(one, txn_id=two.txn_id)
    calls[second].answer = dataclasses.replace(two, txn_id=one.txn_id)
    calls[second].repeated = calls[second].answer


def _other_id_again(calls: list[DemoCall]) -> None:
    again = answer_of(calls[100])
    calls[100].repeated = dataclasses.replace(again, txn_id=again.txn_id + (1 << 30))


def _silent_again(calls: list[DemoCall]) -> None:
    calls[100].repeated = None


def _never_answered(calls: list[DemoCall]) -> None:
    calls[300].answer = None


def _same_id(calls: list[DemoCall]) -> None:
    calls[301].answer = dataclasses.replace(answer_of(calls[301]), txn_id=answer_of(calls[300]).txn_id, partition=None)


def _foreign_partition(calls: list[DemoCall]) -> None:
    at = index_of(calls, "transfer", after=200)
    answer = answer_of(calls[at])
    calls[at].answer = dataclasses.replace(answer, txn_id=answer.txn_id ^ 1, partition=(answer.partition or 0) ^ 1)


def _refused(calls: list[DemoCall]) -> None:
    calls[300].answer = dataclasses.replace(answer_of(calls[300]), kind="key_reused")


@pytest.mark.parametrize(
    ("damage", "finds"),
    [
        (_lose, "the model"),
        (_twice, "money is conserved"),
        (_tamper, "at its place in the order"),
        (_swap_order, "at its place in the order"),
        (_other_id_again, "a repeated call gets the first answer"),
        (_silent_again, "a repeated call gets the first answer"),
        (_never_answered, "every call is answered"),
        (_same_id, "2 calls were answered under transaction"),
        (_foreign_partition, "lives on"),
        (_refused, "was refused with key_reused"),
    ],
)
def test_one_wrong_answer_refutes_the_run(
    run: tuple[list[DemoCall], BankState], damage: Callable[[list[DemoCall]], None], finds: str
) -> None:
    """Whatever is wrong with one call out of four hundred, the run is refuted and the difference says what it is."""
    calls, seen = run
    damage(calls)
    verdict = prove(calls, seen)
    assert any(finds in difference for difference in verdict.differences), verdict.differences


def test_a_cent_in_another_account_refutes_the_run(run: tuple[list[DemoCall], BankState]) -> None:
    """Money that moved by itself is found although the bank's total is right."""
    calls, seen = run
    accounts = dict(seen.accounts)
    (savings, checking), (others, more) = accounts[0, 0], accounts[1, 0]
    accounts[0, 0], accounts[1, 0] = (savings + 1, checking), (others - 1, more)
    verdict = prove(calls, BankState(accounts, seen.totals))
    told = f"customer 0 of branch 0 holds {[savings + 1, checking]}; the model has {[savings, checking]}"
    assert verdict.differences == [f"refuted: every account holds what the model computes: {told}"]


def test_a_missing_and_an_unknown_account_refute_the_run(run: tuple[list[DemoCall], BankState]) -> None:
    """An account that vanished or that nobody opened is found, with the partitions' own counts."""
    calls, seen = run
    accounts = dict(seen.accounts)
    accounts[9, 9] = accounts.pop((0, 0))
    text = "\n".join(prove(calls, BankState(accounts, seen.totals)).differences)
    assert "has no account" in text
    del accounts[9, 9]
    text = "\n".join(prove(calls, BankState(accounts, seen.totals)).differences)
    assert "a query finds 19" in text or "hold" in text


def test_totals_that_disagree_with_the_accounts_refute_the_run(run: tuple[list[DemoCall], BankState]) -> None:
    """Sites and state files are asked apart; that one of them is right is not enough."""
    calls, seen = run
    (money, count), *rest = seen.totals
    verdict = prove(calls, BankState(seen.accounts, [(money + 1, count), *rest]))
    assert any("the partitions' totals hold" in difference for difference in verdict.differences)


@pytest.mark.parametrize(
    ("rebuilt", "told"),
    [
        ({}, "table accounts of partition 0 is missing there"),
        ({(0, "accounts"): (20, "other")}, "table accounts of partition 0: 20 rows, recovered 20, and they differ"),
        ({(0, "accounts"): (20, "digest"), (1, "accounts"): (1, "")}, "table accounts of partition 1 is missing in the server"),
    ],
)
def test_a_rebuilt_table_that_differs_refutes_the_run(
    run: tuple[list[DemoCall], BankState], rebuilt: dict[tuple[int, str], tuple[int, str]], told: str
) -> None:
    """A log that does not hold what the server shows is found, whichever of them lacks the row."""
    calls, seen = run
    verdict = prove_all(calls, seen, (), kept={(0, "accounts"): (20, "digest")}, rebuilt=rebuilt)
    assert len(verdict.differences) == 1
    assert verdict.differences[0].endswith(told)
