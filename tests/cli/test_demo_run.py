"""A run of each demo with a small load; and what happens when there is something to find."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

import cmdlog
from cmdlog.cli.demo.demo_report import DemoDisplay
from cmdlog.cli.demo.demo_run import DemoOptions, DemoRun, table_rows
from cmdlog.cli.demo.proof import BankState, DemoCall, ProofVerdict, Rows
from procedures.samples import bank
from replay.state.trust import state_path
from tests.cli.demo_processes import processes_below
from tests.waiting import wait_for

STAGES = ["kill", "hang", "blackout", "wipe", "join", "retire"]
SHORT = ["kill", "join", "retire"]
DEPOSING = {"kill", "hang", "wipe"}


class Watched:
    """A run whose verdict can be asked for again, with something changed."""

    def __init__(self, run: DemoRun, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run, self._prove = run, run.prove
        self.judged: dict[str, Any] = {}
        monkeypatch.setattr(run, "prove", self._keep)

    def _keep(self, seen: BankState, held: Mapping[int, Rows], recovered: Rows) -> ProofVerdict:
        self.judged.update(seen=seen, held=held, recovered=recovered)
        return self._prove(seen, held, recovered)

    def assert_refuted(self, by: str, **changed: Any) -> None:
        """The difference is named."""
        verdict = self._prove(**{**self.judged, **changed})
        assert any(by in difference for difference in verdict.differences), verdict


@pytest.mark.slow
def test_demo_proves_its_run_and_refutes_planted_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node alone: were one cent, one promised call or one row of the recovery missing, it would be refuted by that."""
    run = DemoRun(DemoOptions(nodes=1, calls=300, clients=3, partitions=2, seed=11), tmp_path, DemoDisplay(quiet=True))
    watched = Watched(run, monkeypatch)
    report = run.run()
    assert report.differences == []
    assert len(report.proofs) == 6
    (fault,) = report.faults
    assert "; cmdlog recover replayed " in fault.what
    assert int(fault.what.split("; ")[1].split()[0]) >= 2  # the node and at least one site
    assert fault.without_service_s > 0
    assert report.repeated == report.calls
    wait_for(lambda: processes_below(tmp_path) == [])

    seen: BankState = watched.judged["seen"]
    who, (savings, checking) = next(iter(seen.accounts.items()))
    poorer = dataclasses.replace(seen, accounts={**seen.accounts, who: (savings, checking - 1)})
    watched.assert_refuted("every account holds what the model computes", seen=poorer)
    watched.assert_refuted("cmdlog recover gives the same rows", recovered={})
    run.calls.append(promised_call(run.calls))
    watched.assert_refuted("money is conserved")


@pytest.mark.slow
@pytest.mark.parametrize("stages", [SHORT, pytest.param(STAGES, marks=pytest.mark.torture)], ids=["short", "whole"])
def test_cluster_demo_proves_its_run_and_refutes_planted_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: list[str]
) -> None:
    """Were one account of the recovery or of a node different, or one fault without effect, it would be refuted by that."""
    run = DemoRun(DemoOptions(nodes=3, calls=300, clients=6, partitions=2, seed=11), tmp_path, DemoDisplay(quiet=True))
    faults = run._faults()
    assert [fault.stage for fault in faults] == STAGES
    monkeypatch.setattr(run, "_faults", lambda: [fault for fault in faults if fault.stage in stages])
    watched = Watched(run, monkeypatch)
    report = run.run()
    assert report.differences == []
    assert len(report.proofs) == 8
    assert [fault.stage for fault in report.faults] == stages
    of_leaders = [fault for fault in report.faults if fault.deposes]
    assert [fault.stage for fault in of_leaders] == [stage for stage in stages if stage in DEPOSING]
    assert all(fault.without_service_s > 0 and fault.unknown + fault.refused > 0 for fault in of_leaders)
    assert len({fault.term for fault in of_leaders}) == len(of_leaders)
    held = watched.judged["held"]
    assert sorted(held) == sorted({1, 2, 3, 4} - {report.faults[stages.index("retire")].node})
    assert sum(report.answered_by.values()) == 300
    assert report.repeated == report.calls
    wait_for(lambda: processes_below(tmp_path) == [])

    change_an_account(tmp_path / "recovered")
    changed = table_rows(tmp_path / "recovered", 2)
    watched.assert_refuted("the same rows in another directory: table accounts of partition", recovered=changed)
    other = {**held, max(held): changed}
    watched.assert_refuted("all nodes hold the same rows: table accounts of partition", held=other)
    run.report.faults[0] = dataclasses.replace(report.faults[0], leader=report.faults[0].node)
    watched.assert_refuted("another node led after each fault of one that led: SIGKILL to node")


def change_an_account(directory: Path) -> None:
    """One cent more, beside the log."""
    with closing(apsw.Connection(state_path(str(directory), 0))) as connection:
        connection.execute(
            "UPDATE accounts SET savings = savings + 1 WHERE (branch, customer) = (SELECT branch, customer FROM accounts LIMIT 1)"
        )
        assert connection.changes() == 1


def promised_call(calls: list[DemoCall]) -> DemoCall:
    """A deposit that a client was promised, and that no node has."""
    before = next(call for call in calls if call.procedure == "deposit_checking" and call.answer and call.answer.kind == "ok")
    assert before.answer is not None
    answer = dataclasses.replace(before.answer, txn_id=before.answer.txn_id + 1024)
    return dataclasses.replace(before, key="promised", answer=answer, repeated=answer)


@pytest.mark.slow
def test_rows_of_every_table_but_the_position(tmp_path: Path) -> None:
    """Keys count as well: one more call with a key is another table."""
    with cmdlog.open(str(tmp_path), bank.db, partitions=2) as node:
        node.call("open_account", branch=1, customer=1, savings=5, checking=5, idempotency_key="one")
    first = table_rows(tmp_path, 2)
    assert {partition for partition, _ in first} == {0, 1}
    assert sum(rows for (_, table), (rows, _) in first.items() if table == "accounts") == 1
    with cmdlog.open(str(tmp_path), bank.db, partitions=2) as node:
        node.call("deposit_checking", branch=1, customer=1, amount=0, idempotency_key="two")
    second = table_rows(tmp_path, 2)
    assert first.keys() == second.keys()
    changed = {table for (partition, table) in first if first[partition, table] != second[partition, table]}
    assert changed == {"_cmdlog_keys"}
