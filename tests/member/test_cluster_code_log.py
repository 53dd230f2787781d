"""Code and additions are deployed through the node that leads a cluster, and every node follows."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.member.leading.cluster_code_log import ClusterCodeLog
from cmdlog.node.deploying.code_change import CodeChanges
from cmdlog.node.deploying.deploy_errors import DeployNeedsMigration, SwitchUnfinished
from cmdlog.node.node import Node
from cmdlog.node.outcome import CallOutcome, CallRefused
from cmdlog.node.sites.supervisor import ProcessSites
from cmdlog.raft.messages import Entries
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures.code.bundle import Bundle
from procedures.storage.state import open_reader, read_schema
from replay.state.trust import state_path
from tests.member.members import Members, ask_retried, leads, member_of, members, number_of
from tests.member.test_member_code import level
from tests.node.deployed import MIGRATION, RENAMED, make_version
from tests.node.rig import send
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Members]:
    """Three nodes of the first version."""
    with members(tmp_path, monkeypatch, count=3, app=make_version(tmp_path, 1)[0]) as made:
        made.join_all()
        assert ask_retried(made.leader, "hit", key="first", id=1) == 1
        yield made


def follows(node: Node, version: int) -> bool:
    """Whether calls of this node are bound to the version."""
    return node.status()["catalog_version"] == version and all(route.catalog == version for route in node.routes.values())


def deployed(cluster: Members, bundle: Bundle, *, migrate: bool = False) -> int:
    """The version that the bundle gets, from the node that leads: that may change meanwhile, and asking again is safe."""
    versions: list[int] = []

    def attempt() -> bool:
        with contextlib.suppress(CallRefused, SwitchUnfinished):
            versions.append(cluster.leader().deployer.deploy(bundle, migrate=migrate)["version"])
        return bool(versions)

    wait_for(attempt, why=cluster.told)
    return versions[0]


def test_every_node_follows_what_the_leader_deploys(three: Members, tmp_path: Path) -> None:
    """Also a new leader, a node that restarts with its older program, and a second deploy; a follower refuses to deploy."""
    bundle = make_version(tmp_path, 2, columns=', Column("note", Text, server_default="none")')[1]
    with pytest.raises(CallRefused):
        three.followers()[0].deployer.deploy(bundle)
    assert deployed(three, bundle) == 2
    assert ask_retried(three.leader, "hit", key="second", id=1) == 2
    wait_for(lambda: all(follows(node, 2) for node in three.nodes.values()), why=three.told)
    former = number_of(three.leader())
    three.close(former)
    assert ask_retried(three.leader, "only_in_2", key="third", id=1) == 2
    three.join(former, app=make_version(tmp_path, 1)[0])
    wait_for(lambda: follows(three.nodes[former], 2), why=three.told)
    third = make_version(tmp_path, 3, columns=', Column("note", Text, server_default="none")')[1]
    assert deployed(three, third) == 3
    assert ask_retried(three.leader, "hit", key="fourth", id=1) == 3
    wait_for(lambda: all(follows(node, 3) for node in three.nodes.values()), why=three.told)


def rows_of(node: Node) -> list[list[Any]]:
    """Tables and rows of each of its partitions, as its state files have them."""
    found = []
    for partition in range(node.settings.partitions):
        connection, _ = open_reader(state_path(node.directory, partition))
        with contextlib.closing(connection):
            found.append([dict(read_schema(connection)), *connection.execute("SELECT * FROM tally ORDER BY id")])
    return found


class Load:
    """A caller that goes on: each key once, repeated while it is refused or its outcome is unknown."""

    def __init__(self, cluster: Members) -> None:
        self._cluster, self._over = cluster, threading.Event()
        self.answers: list[int] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._over.is_set():
            key, leaders = f"load{len(self.answers)}", [node for node in list(self._cluster.nodes.values()) if leads(node)]
            with contextlib.suppress(CallRefused):
                reply = send(leaders[0], "hit", key=key, id=7).wait() if leaders else None
                if isinstance(reply, CallOutcome):
                    self.answers.append(orjson.loads(reply.body))


def test_migration_is_deployed_while_calls_come(three: Members, tmp_path: Path) -> None:
    """It is refused without `migrate`. With it every caller is answered once, before or after, and all nodes hold the same."""
    bundle = make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1]
    with pytest.raises(DeployNeedsMigration):
        three.leader().deployer.deploy(bundle)
    assert three.leader().deployer.deploy(bundle, plan=True)["migrations"]
    with Load(three) as load:
        wait_for(lambda: len(load.answers) > 3, why=three.told)
        assert deployed(three, bundle, migrate=True) == 2
        before = len(load.answers)
        wait_for(lambda: len(load.answers) > before + 3, why=three.told)
    assert load.answers == sorted(load.answers)
    wait_for(lambda: level(three) and all(follows(node, 2) for node in three.nodes.values()), why=three.told)
    first, second, third = (rows_of(node) for node in three.nodes.values())
    assert first == second == third
    counts = {row[0]: row[1] for partition in first for row in partition[1:]}
    assert counts == {1: 2, 7: 2 * load.answers.count(1) + load.answers.count(2)}, "the migration doubles, once"


class Ends(Exception):
    """The leader comes no further."""


def end_after(patch: pytest.MonkeyPatch, owner: type, step: str, error: Exception, *, times: int = 1) -> None:
    """The steps of a change end with this error when that one has been taken so many times; 0: before it."""
    taken, left = getattr(owner, step), [times]

    def take(*arguments: Any, **options: Any) -> Generator[Any, None, Any]:
        if left[0]:
            left[0] -= 1
            made = yield from taken(*arguments, **options)
            if left[0]:
                return made
        raise error

    patch.setattr(owner, step, take)


@pytest.mark.parametrize(
    ("owner", "step", "times", "version"),
    [
        (CodeChanges, "_rehearse", 0, 1),
        (CodeChanges, "_rehearse", 1, 1),
        (ClusterCodeLog, "_commit", 0, 1),
        (ClusterCodeLog, "_commit", 1, 2),
        (ClusterCodeLog, "_commit", 2, 2),
        (ClusterCodeLog, "state", 1, 2),
    ],
)
def test_leader_that_ends_after_a_step_leaves_all_or_nothing(
    three: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, owner: type, step: str, times: int, version: int
) -> None:
    """Before the code is stated nothing has changed; from then on the next leader makes the tables before its first call."""
    leader = three.leader()
    with monkeypatch.context() as patch:
        end_after(patch, owner, step, Ends(), times=times)
        with pytest.raises(Ends):
            leader.deployer.deploy(make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1], migrate=True)
    three.close(number_of(leader))
    assert ask_retried(three.leader, "hit", key="second", id=1) == version
    wait_for(lambda: all(follows(node, version) for node in three.nodes.values()), why=three.told)
    wait_for(lambda: level(three), why=three.told)
    one, other = (rows_of(node) for node in three.nodes.values())
    assert one == other
    assert [row[1] for partition in one for row in partition[1:]] == [2 if version == 1 else 3]


@pytest.mark.parametrize("committed", [1, 2])
def test_change_that_its_leader_does_not_finish_is_completed(
    three: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, committed: int
) -> None:
    """It runs out of time when the code is stated, or the tables as well: calls are served again."""
    leader, bundle = three.leader(), make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1]
    with monkeypatch.context() as patch:
        end_after(patch, ClusterCodeLog, "_commit", SwitchUnfinished("not confirmed in time"), times=committed)
        with pytest.raises(SwitchUnfinished):
            leader.deployer.deploy(bundle, migrate=True)
    assert ask_retried(three.leader, "hit", key="second", id=1) == 2
    assert deployed(three, bundle, migrate=True) == 2, "it is there already"
    wait_for(lambda: level(three) and all(follows(node, 2) for node in three.nodes.values()), why=three.told)
    first, second, third = (rows_of(node) for node in three.nodes.values())
    assert first == second == third
    assert [row[1] for partition in first for row in partition[1:]] == [3], "doubled once, and counted"


def test_site_that_ends_in_a_takeover_is_asked_again(three: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The code is stated, and the next leader loses the site that tries its tables: the site that follows tries them."""
    leader, bundle = three.leader(), make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1]
    prepare, killed = ProcessSites.prepare, list[int]()

    def prepare_once_killed(sites: ProcessSites, partition: int, order: Mapping[str, Any]) -> None:
        if threading.current_thread().name == "cmdlog-takeover" and not killed:
            killed.extend(sites.pids())
            for pid in killed:
                os.kill(pid, signal.SIGKILL)
        prepare(sites, partition, order)

    monkeypatch.setattr(ProcessSites, "prepare", prepare_once_killed)
    with monkeypatch.context() as patch:
        end_after(patch, ClusterCodeLog, "_commit", Ends())
        with pytest.raises(Ends):
            leader.deployer.deploy(bundle, migrate=True)
    assert ask_retried(three.leader, "hit", key="second", id=1) == 2
    assert killed
    wait_for(lambda: level(three) and all(follows(node, 2) for node in three.nodes.values()), why=three.told)
    assert [row[1] for node in three.nodes.values() for partition in rows_of(node) for row in partition[1:]] == [3] * 3


def test_follower_waits_with_the_tables_for_the_code(three: Members, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each group commits by itself: a node may have the change of tables first, and its sites cannot run it yet."""
    follower, late = three.followers()[0], list[tuple[int, Entries]]()
    machine, driver = member_of(follower).consensus.machine, member_of(follower).consensus.driver
    committed = machine.committed

    def commit_late(group: int, entries: Entries) -> None:
        if group == CLUSTER_GROUP:
            late.append((group, entries))
        else:
            committed(group, entries)

    with monkeypatch.context() as patch:
        patch.setattr(machine, "committed", commit_late)
        assert deployed(three, make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1], migrate=True) == 2
        wait_for(lambda: machine._code.waits, why=three.told)
    with driver.lock:
        for group, entries in late:
            committed(group, entries)
    wait_for(lambda: level(three) and follows(follower, 2), why=three.told)
    assert rows_of(follower) == rows_of(three.leader())
