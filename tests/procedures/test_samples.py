"""The samples against their models: the same calls through SQL and in plain Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson
import pytest

from procedures.execution.executor import Status
from procedures.samples import bank
from tests.node.apps import voter
from tests.procedures.sites import Site

MakeSite = Callable[..., Site]


def outcome(status: int, body: bytes) -> tuple[str, Any]:
    """An answer in the words of the models."""
    value = orjson.loads(body)
    return [("ok", value), ("aborted", value.get("code") if isinstance(value, dict) else None), ("failed", "")][status]


def drive(site: Site, model: Any, calls: list[tuple[str, dict[str, Any]]], *, batch: int) -> None:
    """Applies calls to both and compares every answer."""
    for first in range(0, len(calls), batch):
        some = calls[first : first + batch]
        applied = site.apply(*some)
        for (name, params), status, body in zip(some, applied.statuses, applied.bodies, strict=True):
            assert outcome(status, body) == model.apply(name, params), (name, params)


@pytest.mark.parametrize("seed", range(3))
def test_bank_agrees_with_its_model(make_site: MakeSite, seed: int) -> None:
    """Every answer and every balance is what the model says, and money moves only as it says."""
    site, model = make_site(bank.db), bank.BankModel()
    work = [*bank.loader(branches=3, customers=20), *bank.workload(seed, calls=600, branches=3, customers=20)]
    drive(site, model, work, batch=32)
    rows = {
        (branch, customer): [savings, checking] for branch, customer, savings, checking in site.rows("SELECT * FROM accounts")
    }
    assert rows == model.accounts
    _, [(status, body)] = site.executor.read([(site.numbers["total"], [])], catalog=1)
    assert (status, orjson.loads(body)) == (Status.OK, [model.money(), 60])


def test_bank_says_no_in_its_own_words(make_site: MakeSite) -> None:
    """Unknown customers, overdrafts and second openings answer as the model does."""
    site, model = make_site(bank.db), bank.BankModel()
    who = {"branch": 0, "customer": 99}
    pair = {"branch": 0, "source": 0, "target": 99}
    calls: list[tuple[str, dict[str, Any]]] = [
        *bank.loader(branches=1, customers=2),
        ("open_account", {"branch": 0, "customer": 0}),
        ("open_account", {"branch": 0, "customer": 5, "savings": 1}),
        ("open_accounts", {"branch": 0, "first": 4, "count": 3, "savings": 0, "checking": 0}),
        ("open_accounts", {"branch": 0, "first": 4, "count": 0, "savings": 0, "checking": 0}),
        ("deposit_checking", {**who, "amount": 5}),
        ("deposit_checking", {"branch": 0, "customer": 0, "amount": -5}),
        ("transact_savings", {**who, "amount": 5}),
        ("write_check", {**who, "amount": 5}),
        ("write_check", {"branch": 0, "customer": 0, "amount": 99_999_999}),
        ("amalgamate", pair),
        ("amalgamate", {"branch": 0, "source": 99, "target": 0}),
        ("send_payment", {**pair, "amount": 1}),
        ("send_payment", {"branch": 0, "source": 99, "target": 0, "amount": 1}),
        ("transfer", {"branch": 0, "source": 1, "target": 99, "amount": 1}),
        ("transfer", {"branch": 0, "source": 1, "target": 1, "amount": 1}),
        ("pay_interest", {"branch": 0, "customer": 0, "rate": "none"}),
        ("set_rate", {"name": "savings", "basis_points": 900}),
        ("pay_interest", {"branch": 0, "customer": 1, "rate": "savings"}),
    ]
    drive(site, model, calls, batch=4)
    assert site.rows("SELECT sum(savings + checking) FROM accounts") == [(model.money(),)]


def test_voter_agrees_with_its_model(make_site: MakeSite) -> None:
    """Votes, limits and counts are what the model says."""
    site, model = make_site(voter.db), voter.VoterModel()
    drive(site, model, [*voter.loader(), *voter.workload(5, calls=1500, phones=60)], batch=50)
    _, [(_, body)] = site.executor.read([(site.numbers["totals"], [])], catalog=1)
    assert orjson.loads(body) == [[name, model.counts.get(number, 0)] for number, name in sorted(model.contestants.items())]
    assert dict(site.rows("SELECT phone, votes FROM phones")) == model.given


@pytest.mark.parametrize("sample", [bank, voter])
def test_workloads_repeat_by_seed(sample: Any) -> None:
    """The same seed gives the same calls, another seed others."""
    assert list(sample.workload(1, calls=50)) == list(sample.workload(1, calls=50))
    assert list(sample.workload(1, calls=50)) != list(sample.workload(2, calls=50))
