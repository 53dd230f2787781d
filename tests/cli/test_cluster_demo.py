"""`cmdlog cluster demo` as a user runs it, with a small load; and what happens when there is something to find."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from cmdlog.cli.demo.bank import BankState
from cmdlog.cli.demo.cluster import cluster_demo
from cmdlog.cli.demo.cluster.cluster_demo import ClusterDemo, ClusterOptions, ClusterReport, FaultReport, describe_fault
from cmdlog.cli.demo.display import DemoDisplay
from cmdlog.cli.demo.proof import DemoCall, ProofVerdict, Rows
from cmdlog.cli.demo.shown_state import table_rows
from replay.state.trust import state_path
from tests.cli.demo_processes import interrupted_demo, processes_below
from tests.commands import Command
from tests.waiting import wait_for

SMALL = ClusterOptions(calls=300, clients=6, partitions=2, seed=11)
HANGED = FaultReport("hang", "SIGSTOP to node 1", 1, 2.5, leader=3, term=7, answered=1200, unknown=4, refused=9, deposes=True)
STAGES = ["kill", "hang", "cut", "blackout", "wipe", "damage", "join", "retire", "survive"]
SHORT = ["kill", "join", "retire"]
DEPOSING = {"kill", "hang", "cut", "wipe"}


@pytest.mark.slow
@pytest.mark.parametrize("stages", [SHORT, pytest.param(STAGES, marks=pytest.mark.torture)], ids=["short", "whole"])
def test_cluster_demo_proves_its_run_and_refutes_planted_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stages: list[str]
) -> None:
    """A run ends with every proof. Were one account of the recovery or of a node different, one acknowledged call missing, or one
    fault without effect, it would be refuted by that."""
    demo = ClusterDemo(SMALL, tmp_path, DemoDisplay(quiet=True))
    faults = demo._faults()
    assert [fault.stage for fault in faults] == STAGES
    monkeypatch.setattr(demo, "_faults", lambda: [fault for fault in faults if fault.stage in stages])
    monkeypatch.setattr(cluster_demo, "PORTIONS", 1 + len(stages))
    judged: dict[str, Any] = {}
    prove = demo.prove

    def watched(seen: BankState, held: Mapping[int, Rows], recovered: Rows) -> ProofVerdict:
        judged.update(seen=seen, held=held, recovered=recovered)
        return prove(seen, held, recovered)

    monkeypatch.setattr(demo, "prove", watched)
    report = demo.run()
    assert report.differences == []
    assert len(report.proofs) == 8
    assert [fault.stage for fault in report.faults] == stages
    of_leaders = [fault for fault in report.faults if fault.deposes]
    assert [fault.stage for fault in of_leaders] == [stage for stage in stages if stage in DEPOSING]
    assert all(fault.without_service_s > 0 and fault.unknown + fault.refused > 0 for fault in of_leaders)
    assert len({fault.term for fault in of_leaders}) == len(of_leaders)
    assert sorted(judged["held"]) == sorted({1, 2, 3, 4} - {report.faults[stages.index("retire")].node})
    assert sum(report.answered_by.values()) == 300
    assert report.repeated == report.calls <= report.recovered_calls
    wait_for(lambda: processes_below(tmp_path) == [])

    change_an_account(tmp_path / "recovered")
    changed = table_rows(tmp_path / "recovered", 2)
    refuted = "a recovery of the nodes' directories gives the same rows in another directory: table accounts of partition"
    assert_refuted(prove(**{**judged, "recovered": changed}), refuted)
    refuted = "all nodes hold the same rows: table accounts of partition"
    assert_refuted(prove(**{**judged, "held": {**judged["held"], max(judged["held"]): changed}}), refuted)
    demo.report.faults[0] = dataclasses.replace(report.faults[0], leader=report.faults[0].node)
    assert_refuted(prove(**judged), "another node led after each fault of one that led: SIGKILL to node")
    monkeypatch.setattr(ClusterDemo, "calls", [*demo.calls, promised_call(demo.calls)])
    assert_refuted(prove(**judged), "money is conserved")


def change_an_account(directory: Path) -> None:
    """One cent more, beside the log."""
    with closing(apsw.Connection(state_path(str(directory), 0))) as connection:
        connection.execute(
            "UPDATE accounts SET savings = savings + 1 WHERE (branch, customer) = (SELECT branch, customer FROM accounts LIMIT 1)"
        )
        assert connection.changes() == 1


def promised_call(calls: list[DemoCall]) -> DemoCall:
    """A deposit that a client was promised, and that the cluster does not have."""
    before = next(call for call in calls if call.procedure == "deposit_checking" and call.answer and call.answer.kind == "ok")
    assert before.answer is not None
    answer = dataclasses.replace(before.answer, txn_id=before.answer.txn_id + 1024)
    return dataclasses.replace(before, key="promised", answer=answer, repeated=answer)


def assert_refuted(verdict: ProofVerdict, by: str) -> None:
    """The difference is named."""
    assert any(by in difference for difference in verdict.differences), verdict


@pytest.mark.slow
def test_interrupted_cluster_demo_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C while calls are made ends all nodes and removes the folder."""
    code = interrupted_demo("cluster", "demo", "--calls", "50000", "--partitions", "1", folder=tmp_path, after=b"accounts in")
    assert code == 130
    wait_for(lambda: processes_below(tmp_path) == [])
    assert list(tmp_path.iterdir()) == []


class _Judged:
    """A run that has ended."""

    def __init__(self, *differences: str) -> None:
        self._report = ClusterReport(7, 2, 3, proofs=["money is conserved"], differences=list(differences), faults=[HANGED])
        self.stages: list[Any] = []

    def __call__(self, *_: object) -> _Judged:
        return self

    def run(self) -> ClusterReport:
        return self._report


@pytest.mark.parametrize(("differences", "code"), [((), 0), (("refuted: all nodes hold the same rows: table t",), 1)])
def test_exit_code_says_whether_all_was_proved(
    command: Command, monkeypatch: pytest.MonkeyPatch, differences: tuple[str, ...], code: int
) -> None:
    """And what was refuted is shown, to people and as JSON."""
    monkeypatch.setattr(cluster_demo, "ClusterDemo", _Judged(*differences))
    ended, report = command("cluster", "demo", "--json")
    assert (ended, report["differences"], report["faults"][0]["without_service_s"]) == (code, list(differences), 2.5)
    ended, text = command.text("cluster", "demo")
    assert ended == code
    assert ("REFUTED" in text) == bool(differences)
    assert "money is conserved" in text


def test_directory_with_something_in_it_is_refused(tmp_path: Path, command: Command) -> None:
    """Nothing is touched, and nothing started."""
    (tmp_path / "precious").write_text("kept")
    code, text = command.text("cluster", "demo", "--data", tmp_path)
    assert code == 2
    assert "not empty" in text
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]


def test_fault_is_described_in_a_sentence() -> None:
    """What happened, for how long nobody was served, who leads now, and what became of the calls."""
    assert describe_fault(HANGED) == (
        "hang: SIGSTOP to node 1; 2.50 s without service, then node 3 leads in term 7; 1,200 calls answered, "
        "4 attempts of unknown outcome and 9 refused ones repeated"
    )
    quiet = dataclasses.replace(HANGED, stage="join", what="node 4 joins", unknown=0, refused=0)
    assert describe_fault(quiet).endswith("then node 3 leads in term 7; 1,200 calls answered")
