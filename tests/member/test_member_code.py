"""New code by a rolling restart: it runs once a node that has it leads, on all nodes, whatever each was started with."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cluster.membership import reconciler
from cmdlog.cluster.membership.operator_desk import MembershipRefused
from cmdlog.member import member_code as member_code_module
from cmdlog.member import member_start
from cmdlog.member.member_code import MemberCode, Program
from cmdlog.member.member_start import OtherEnvironment, check_environment
from cmdlog.node.boot import Boot
from cmdlog.node.deploying.code_change import CodeChanges, NewCode, TableChange
from cmdlog.node.node import Node
from cmdlog.wal.errors import RecordsTooLarge
from cmdlog.wal.format.record import RecordKind, encode_json
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures import Database
from procedures.code.bundle import capture_bundle, environment
from procedures.code.code_versions import CodeVersions
from procedures.code.procedure_versions import catalog_value
from procedures.declaration.schema_plan import SchemaPlan
from procedures.errors import SchemaConflict
from tests.member.members import Members, ask_retried, member_of, members, number_of
from tests.node.apps.faulty import db
from tests.node.apps.newer import db as newer_db
from tests.node.rig import ask
from tests.waiting import PATIENCE_S, wait_for

OLD, NEW = capture_bundle(db, None), capture_bundle(newer_db, None)


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes of the old code, and some calls."""
    with members(tmp_path, monkeypatch, count=3) as made:
        made.join_all()
        for number in range(4):
            assert ask_retried(made.leader, "bump", key=f"first-{number}", id=number, amount=1) == 1
        yield made


def versions_of(cluster: Members) -> set[int]:
    """The newest version of the code that each node knows."""
    return {node.status()["catalog_version"] for node in cluster.nodes.values()}


def restart(cluster: Members, number: int, app: Database) -> Node:
    """The node with this program, again."""
    cluster.close(number)
    return cluster.join(number, app=app)


def give_leadership(cluster: Members, number: int) -> None:
    """To this node. It is asked for again: a node that has just started may not be level yet."""

    def is_given() -> bool:
        leader = cluster.leader()
        if number_of(leader) != number:
            with contextlib.suppress(MembershipRefused):
                member_of(leader).membership.request("transfer", number)
        return number_of(leader) == number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reconciler, "LEADS_S", 0.5)  # until it is asked for again
        wait_for(is_given, why=cluster.told)


def ask_for_leadership(cluster: Members, number: int) -> None:
    """Once, as soon as the node may have it."""

    def is_asked() -> bool:
        try:
            member_of(cluster.leader()).membership.request("transfer", number)
        except MembershipRefused:
            return False
        return True

    wait_for(is_asked, why=cluster.told)


def remark(cluster: Members, number: int) -> Any:
    """A call of the new code."""
    return ask_retried(cluster.leader, "remark", key=f"remark-{number}", id=1, text="new")


def runs_new_code(cluster: Members) -> bool:
    """Whether calls are bound to the new code, on every node."""
    return all(set(node.routes) == {"remark", "remarks"} for node in cluster.nodes.values())


def level(cluster: Members) -> bool:
    """All nodes have run the same."""
    found = {tuple(part["applied"] for part in node.status()["partitions"].values()) for node in cluster.nodes.values()}
    return len(found) == 1


def test_new_code_runs_when_the_leadership_reaches_it(three: Members) -> None:
    """Followers first: nothing changes. The leader last: the code and its tables are stated once, calls run it everywhere."""
    leader = number_of(three.leader())
    for number in [number for number in three.nodes if number != leader]:
        restart(three, number, newer_db)
    assert versions_of(three) == {1}
    assert all(set(node.routes) == set(three.leader().routes) for node in three.nodes.values()), "bound to the code of the log"
    assert ask_retried(three.leader, "bump", key="between", id=1, amount=1) == 2
    three.close(leader)
    assert remark(three, 1) == 1
    three.join(leader, app=newer_db)
    assert remark(three, 2) == 2
    wait_for(lambda: versions_of(three) == {2} and runs_new_code(three) and level(three), why=three.told)
    for count, number in enumerate(list(three.nodes), 3):  # and each of them comes back with it
        restart(three, number, newer_db)
        assert remark(three, 10 + number) == count
    assert versions_of(three) == {2}


def test_node_with_an_older_program_runs_the_newest_code(three: Members) -> None:
    """Running, leading, and after a restart: what the log names counts."""
    newer = number_of(three.followers()[0])
    restart(three, newer, newer_db)
    give_leadership(three, newer)
    assert remark(three, 1) == 1
    wait_for(lambda: runs_new_code(three) and level(three), why=three.told)
    three.close(newer)  # only old programs are left
    assert remark(three, 2) == 2
    restart(three, number_of(three.leader()), db)
    assert remark(three, 3) == 3
    assert versions_of(three) == {2}


def test_program_that_fails_when_it_leads_is_never_stated(three: Members, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables suited the states at its start, and do not any more: its node fails, the others call the code of the log."""

    def conflict(_changes: CodeChanges, code: NewCode, former: Mapping[str, Any]) -> TableChange:
        if code.version > 1:
            raise SchemaConflict("a row of today is in the way")
        return TableChange({}, "")

    newer = number_of(three.followers()[0])
    restart(three, newer, newer_db)
    monkeypatch.setattr(CodeChanges, "plan", conflict)
    failed: list[BaseException] = []
    three.nodes[newer].watch_failure(failed.append)
    ask_for_leadership(three, newer)
    wait_for(lambda: failed, why=three.told)
    three.close(newer)
    assert ask_retried(three.leader, "bump", key="after", id=1, amount=1) == 2
    assert versions_of(three) == {1}


def test_sites_that_start_again_know_every_version(three: Members) -> None:
    """One is killed after the code changed: batches of before and after are run as they were logged."""
    leader = number_of(three.leader())
    for number in [number for number in three.nodes if number != leader]:
        restart(three, number, newer_db)
    restart(three, leader, newer_db)
    assert remark(three, 1) == 1
    for node in three.nodes.values():
        for pid in node.overview.health().site_pids:
            os.kill(pid, signal.SIGKILL)
    assert remark(three, 2) == 2
    wait_for(lambda: level(three), why=three.told)


# -- what a node finds out by itself ---------------------------------------------------------------------------------------------


def member_code(program: Database, said: list[Any]) -> MemberCode:
    """Of a node whose log names the old code."""
    value = catalog_value(db, OLD, 1, None, partitions=2)
    return MemberCode(
        Program(program, capture_bundle(program, None)), CodeVersions({1: value}), environment(), directory="", partitions=2,
        known=lambda version, _bundle, partitions: said.append((version, partitions)),
        bound=lambda program, _version: said.append(program),
    )  # fmt: skip


def state_next(code: MemberCode) -> None:
    """The log names what this node would state."""
    value = code.next_code().value
    code.observe(encode_json(RecordKind.CATALOG, value, partition=CLUSTER_GROUP, term=2, index=9))


@pytest.fixture
def tables_suit(monkeypatch: pytest.MonkeyPatch) -> None:
    """No state lacks a table."""
    monkeypatch.setattr(member_code_module, "plan_tables", lambda *_: {})


@pytest.mark.usefixtures("tables_suit")
def test_only_an_unknown_program_is_proposed() -> None:
    """And the environment, where the log has another one; neither again once they are committed."""
    said: list[Any] = []
    assert member_code(db, said).next_code().is_logged
    code = member_code(newer_db, said)
    found = code.next_code()
    assert (found.is_logged, found.version, found.value["hash"]) == (False, 2, NEW.hash)
    state_next(code)
    state_next(code)
    assert [entry for entry in said if isinstance(entry, tuple)] == [(2, 2)]
    assert (code.next_code().is_logged, code.next_code().version) == (True, 2)
    assert code.missing_environment() is None
    code.observe(encode_json(RecordKind.ENVIRONMENT, {"python": "3.11.0"}, partition=CLUSTER_GROUP, term=2, index=10))
    assert code.missing_environment() == environment()
    code.stop()


@pytest.mark.usefixtures("tables_suit")
def test_calls_are_bound_to_the_newest_code() -> None:
    """Of the log, while this program is not its newest; bound once for each change."""
    said: list[Any] = []
    code = member_code(newer_db, said)
    assert not code.is_bound
    code.run_newest()
    code.run_newest()
    assert code.is_bound
    assert [set(bound.procedures) == set(db.procedures) for bound in said] == [True]
    state_next(code)
    code.run_newest()
    assert said[-1] is newer_db
    code.stop()


def test_calls_are_bound_to_code_whose_tables_the_states_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry comes before those of its tables: until then calls run the former code."""
    said: list[Any] = []
    code, looks, grown = member_code(newer_db, said), threading.Semaphore(0), threading.Event()

    def plan(*_: object) -> dict[int, str]:
        looks.release()
        return {} if grown.is_set() else {0: "a table less"}

    monkeypatch.setattr(member_code_module, "plan_tables", plan)
    code.run_newest()
    state_next(code)
    for _ in range(2):
        assert looks.acquire(timeout=PATIENCE_S)
    assert not code.is_bound
    grown.set()
    wait_for(lambda: code.is_bound)
    assert said[-1] is newer_db
    code.stop()


@pytest.mark.parametrize(
    ("part", "value", "text"),
    [
        ("python", "3.9.1", r"Python 3\.9, not 3\.\d+"),
        ("sqlite", "3.1.0", r"SQLite 3\.1\.0, not"),
        ("implementation", "PyPy", "the Python PyPy, not CPython"),
    ],
)
def test_other_python_or_sqlite_is_refused_by_name(part: str, value: str, text: str) -> None:
    """Calls might do something else; another patch release, or another package, is stated by the leader."""
    here = environment()
    check_environment({**here, "python": here["python"] + "1", "orjson": "0"}, here)
    with pytest.raises(OtherEnvironment, match=text) as refused:
        check_environment({**here, part: value}, here)
    assert refused.value.exit_code == 13
    assert "cmdlog recover" in str(refused.value.hint)


def test_start_refuses_another_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it takes part."""
    with members(tmp_path, monkeypatch) as made:
        made.join(1)
        made.close(1)
        other = {**environment(), "sqlite": "3.1.0"}
        monkeypatch.setattr(member_start, "environment", lambda: other)
        with pytest.raises(OtherEnvironment, match=r"SQLite .*, not 3\.1\.0"):
            made.join(1)


def test_program_that_cannot_become_the_clusters_is_refused_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tables are not those of the states, or the log has no room for its code."""

    def conflict(_db: Database, _existing: object, _done: object) -> SchemaPlan:
        raise SchemaConflict("table 'counters' differs")

    def too_large(boot: Boot, _wal: object) -> None:
        raise RecordsTooLarge(f"{len(boot.records[0])} bytes")

    with members(tmp_path, monkeypatch) as made:
        assert ask(made.join_all(), "bump", id=1, amount=1) == 1
        made.close(1)
        with monkeypatch.context() as patched:
            patched.setattr(Database, "plan_change", conflict)
            with pytest.raises(SchemaConflict, match="'counters' differs"):
                made.join(1, app=newer_db)
        with monkeypatch.context() as patched:
            patched.setattr(member_start, "check_fit", too_large)
            with pytest.raises(RecordsTooLarge):
                made.join(1, app=newer_db)
        made.join(1)
        assert ask(made.leader(), "bump", id=1, amount=1) == 2
