"""Deploys on a node alone: calls that run meanwhile, what the log keeps, and what is refused."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import signal
import string
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.node.deploying import deployer
from cmdlog.node.deploying.deploy_errors import (
    BundleRefused,
    DeployNeedsMigration,
    DeployUnderWay,
    MigrationRefused,
    NoFormerCode,
    TablesRefused,
)
from cmdlog.node.node import Node
from cmdlog.node.outcome import CodeChanged, MigratingRefusal
from cmdlog.node.sequencing.block_builder import Opening
from procedures.code.bundle import Bundle
from procedures.storage.state import open_reader
from replay.state.trust import state_path
from tests.node.deployed import MIGRATION, RENAMED, Callers, make_version
from tests.node.rig import Pending, ask, open_node
from tests.waiting import PATIENCE_S, wait_for

pytestmark = pytest.mark.slow
PARTITIONS = 3
ADDED = "ALTER TABLE \"tally\" ADD COLUMN note TEXT DEFAULT '' NOT NULL"
GROWN_COLUMN = ', Column("note", Text, server_default="none")'
GROWN_TABLE = (
    'seen = db.table("seen", Column("id", Integer, primary_key=True), partition_by="id")\nIndex("tally_count", tally.c.count)'
)
SEVENTH = "if tx.execute(select(tally.c.id).where(tally.c.id == 7)).all():\n        raise ValueError('no')"


def opened(folder: Path, *, inline: bool) -> Node:
    """A node of the first version."""
    db, _ = make_version(folder, 1)
    return open_node(
        folder / "data", app=db, inline=inline, partitions=PARTITIONS, sites=0 if inline else 2, call_timeout_s=20.0, segments=64
    )


def answered_more(callers: Callers, count: int) -> bool:
    """Whether so many calls have been answered."""
    return len(callers.answers) > count


def rows_of(node: Node) -> list[Any]:
    """All rows of the application."""
    return sorted(map(tuple, node.query("SELECT * FROM tally").rows))


def recovered_rows(folder: Path) -> list[Any]:
    """The same of another directory that is made of the log."""
    out = folder / "recovered"
    code = subprocess.run([sys.executable, "-m", "cmdlog", "recover", folder / "data", "--to", out], check=False).returncode
    assert code == 0
    found = []
    for partition in range(PARTITIONS):
        connection, _ = open_reader(state_path(str(out), partition))
        with contextlib.closing(connection):
            found += [tuple(row) for row in connection.execute("SELECT * FROM tally")]
    return sorted(found)


@pytest.mark.parametrize("inline", [pytest.param(True, marks=pytest.mark.torture), False], ids=["inline", "processes"])
def test_no_call_fails_while_code_is_deployed_again_and_again(tmp_path: Path, *, inline: bool) -> None:
    """Every answer is of a version that was current between the call's start and its end, and the numbers of procedures move."""
    node = opened(tmp_path, inline=inline)
    versions = [make_version(tmp_path, version)[1] for version in range(2, 6)]
    with Callers(node) as callers:
        for number, bundle in enumerate(versions, 2):
            seen = len(callers.answers)
            wait_for(partial(answered_more, callers, seen + 100))
            callers.deploying.append(number)
            answer = node.deployer.deploy(bundle)
            callers.current.append(number)
            assert (answer["version"], answer["changed"], answer["partitions"]) == (number, True, {})
        wait_for(lambda: any(version == 5 for version, _, _ in callers.answers))
    assert callers.failed == []
    assert callers.wrong() == []
    assert {version for version, _, _ in callers.answers} == {1, 2, 3, 4, 5}
    assert sum(count for count, _ in ask(node, "total")) == callers.hits
    live = rows_of(node)
    node.close()
    assert recovered_rows(tmp_path) == live


def test_additions_come_while_calls_run(tmp_path: Path) -> None:
    """A column, a table and an index; calls of both versions run meanwhile, and another directory recovers to the same rows."""
    node = opened(tmp_path, inline=False)
    grown = make_version(tmp_path, 2, columns=GROWN_COLUMN, tables=GROWN_TABLE)[1]
    with Callers(node) as callers:
        wait_for(lambda: len(callers.answers) > 200)
        callers.deploying.append(2)
        answer = node.deployer.deploy(grown)
        callers.current.append(2)
        wait_for(lambda: any(version == 2 for version, _, _ in callers.answers))
    assert callers.failed == []
    assert callers.wrong() == []
    assert answer["partitions"].keys() == {"0", "1", "2"}
    assert len(answer["partitions"]["0"]) == 3
    live = rows_of(node)
    node.close()
    assert recovered_rows(tmp_path) == live


def test_migrations_run_while_calls_are_refused(tmp_path: Path) -> None:
    """Rows change on every partition at one place; calls before are answered, calls meanwhile are refused, none fails after."""
    node = opened(tmp_path, inline=False)
    for number in range(30):
        ask(node, "hit", id=number)
    bundle = make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1]
    with pytest.raises(DeployNeedsMigration, match="migration 0001_double"):
        node.deployer.deploy(bundle)
    assert ask(node, "hit", id=0) == 1
    with Callers(node) as callers:
        wait_for(lambda: len(callers.answers) > 50)
        callers.deploying.append(2)
        answer = node.deployer.deploy(bundle, migrate=True)
        callers.current.append(2)
        wait_for(lambda: any(version == 2 for version, _, _ in callers.answers))
    assert {type(refused) for refused in callers.failed} <= {MigratingRefusal}
    assert callers.wrong() == []
    assert answer["migrations"] == ["0001_double"]
    live = rows_of(node)
    node.close()
    assert recovered_rows(tmp_path) == live


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "processes"])
def test_a_migration_that_fails_on_one_partition_changes_none(tmp_path: Path, *, inline: bool) -> None:
    """The others take back what they did, calls run the former code, and another bundle is deployed after it."""
    node = opened(tmp_path, inline=inline)
    for number in range(30):
        ask(node, "hit", id=number)
    before = rows_of(node)
    bad = MIGRATION.replace("# here", SEVENTH)
    with pytest.raises(MigrationRefused, match="partition"):
        node.deployer.deploy(make_version(tmp_path, 2, columns=RENAMED, last=bad)[1], migrate=True)
    assert rows_of(node) == before
    assert ask(node, "hit", id=1) == 1
    assert node.deployer.deploy(make_version(tmp_path, 3)[1])["changed"]
    assert ask(node, "hit", id=1) == 3
    node.close()


UNSTEADY = """
import itertools
LIFE = itertools.count()

@db.procedure(partition_by="id")
def drift(tx: Transaction, id: int) -> int:
    return next(LIFE)

def workload(seed, *, calls):
    for number in range(calls):
        yield "drift", {"id": number}
"""
SOURCE_OF_OTHER_PARAMETERS = """
@db.procedure(partition_by="id")
def added(tx: Transaction, id: int, more: int) -> int:
    return VERSION
"""


def rehashed(bundle: Bundle, *, modules: dict[str, str]) -> Bundle:
    """The bundle with other sources, under its own hash: what a program that does not import would have made."""
    value = orjson.loads(replace(bundle, modules=modules).to_bytes())
    del value["hash"]
    hash_ = hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
    return Bundle.from_bytes(orjson.dumps({**value, "hash": hash_}))


REFUSED = {
    "does not import": ("raise RuntimeError('no')", "does not run"),
    "ends the process": ("import os; os._exit(3)", "ended its check"),
    "repeats itself differently": (UNSTEADY, "divergence"),
    "a column without a default": ("", "column 'more'"),
}


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Path]]:
    """A node that refuses everything, and the folder of its code."""
    folder = tmp_path_factory.mktemp("refusing")
    node = opened(folder, inline=False)
    yield node, folder
    node.close()


@pytest.mark.parametrize("why", list(REFUSED))
def test_what_cannot_be_served_changes_nothing(serving: tuple[Node, Path], why: str) -> None:
    """Neither the version, nor what answers; the refusal says what it is."""
    node, folder = serving
    last, answer = REFUSED[why]
    columns = "" if last else ', Column("more", Integer, nullable=False)'
    _, bundle = make_version(folder, 3, columns=columns, last=last if last == UNSTEADY else "")
    if last != UNSTEADY:
        bundle = rehashed(bundle, modules={"tally_app": bundle.modules["tally_app"] + "\n" + last})
    with pytest.raises((BundleRefused, TablesRefused, DeployNeedsMigration), match=answer):
        node.deployer.deploy(bundle)
    assert node.status()["catalog_version"] == 1
    assert ask(node, "version", id=1) == 1


def test_code_of_another_database_and_too_much_code_are_refused(serving: tuple[Node, Path]) -> None:
    """The directory belongs to one application; a segment of the log holds its code at its head."""
    node, folder = serving
    with pytest.raises(BundleRefused, match="belongs to database 'tally', the bundle to 'other'"):
        node.deployer.deploy(make_version(folder, 3, name="other")[1])
    noise = "".join(random.Random(1).choices(string.ascii_letters, k=700_000))
    with pytest.raises(BundleRefused, match="too much for segments of 1048576 bytes"):
        node.deployer.deploy(make_version(folder, 3, last=f"NOISE = '{noise}'")[1])
    assert ask(node, "version", id=1) == 1


def test_deploys_at_once_are_refused_and_the_same_code_is_deployed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the first is checked, the second one is answered at once; afterwards it changes nothing."""
    node = opened(tmp_path, inline=True)
    bundle = make_version(tmp_path, 2)[1]
    checking, go = threading.Event(), threading.Event()

    def check(*_: object, **__: object) -> None:
        checking.set()
        assert go.wait(PATIENCE_S)

    monkeypatch.setattr(deployer, "check_bundle", check)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(node.deployer.deploy, bundle)
        assert checking.wait(PATIENCE_S)
        with pytest.raises(DeployUnderWay):
            node.deployer.deploy(bundle)
        go.set()
        assert first.result()["version"] == 2
    assert node.deployer.deploy(bundle) | {"pause_ms": 0} == first.result() | {"changed": False, "pause_ms": 0}
    with pytest.raises(NoFormerCode, match="the log has: 1"):
        node.deployer.roll_back(7)
    assert node.deployer.roll_back(plan=True)["version"] == 3
    assert node.deployer.roll_back()["version"] == 3
    assert ask(node, "version", id=1) == 1
    node.close()


def test_stale_reads_and_queries_go_on_beside_a_deploy(tmp_path: Path) -> None:
    """They are answered by the code that was current when they came, also while tables grow."""
    node = opened(tmp_path, inline=False)
    ask(node, "hit", id=1)
    bundle = make_version(tmp_path, 2, columns=GROWN_COLUMN)[1]
    with ThreadPoolExecutor(1) as pool:
        deploying = pool.submit(node.deployer.deploy, bundle)
        while not deploying.done():
            pending, route = Pending(), node.routes["version"]
            node.stale.call(route, route.procedure.bind({"id": 1}), done=pending.done)
            assert pending.value() in (1, 2)
            assert [tuple(row)[:2] for row in node.query("SELECT id, count FROM tally").rows] == [(1, 1)]
        assert deploying.result()["version"] == 2
    node.close()


def test_a_call_bound_to_former_code_follows_it_or_is_refused(tmp_path: Path) -> None:
    """A route that was looked up before the switch: followed where the declaration is the same, else nothing is logged."""
    node = opened(tmp_path, inline=True)
    same, other = node.routes["hit"], node.routes["version"]
    changed = SOURCE_OF_OTHER_PARAMETERS
    node.deployer.deploy(make_version(tmp_path, 3, last=changed)[1])
    stale = node.routes["added"]
    pending = Pending()
    node.call(same, [1], done=pending.done)
    assert pending.value() == 3
    node.deployer.deploy(make_version(tmp_path, 5, last=changed.replace("more: int", "more: str"))[1])
    with pytest.raises(CodeChanged):
        node.call(stale, [1, 2], done=Pending().done)
    batch = [Pending(), Pending()]
    calls = zip((same, stale), ([2], [1, 2]), batch, strict=True)
    node.call_many([(route, params, b"", one.done, None) for route, params, one in calls])
    assert batch[0].value() == 5
    assert isinstance(batch[1].wait(), CodeChanged)
    read = Pending()
    node.call(other, [1], done=read.done)
    assert read.value() == 1, "a read of former code runs it: it changes nothing"
    node.close()


def test_a_plan_tries_migrations_on_copies(tmp_path: Path) -> None:
    """SQL, rows and what becomes impossible; no call waits, and nothing changes."""
    node = opened(tmp_path, inline=False)
    for number in range(30):
        ask(node, "hit", id=number)
    before = rows_of(node)
    answer = node.deployer.deploy(make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1], plan=True)
    assert (answer["version"], answer["migrations"], answer["pauses"]) == (2, ["0001_double"], "migration 0001_double")
    assert answer["steps"].keys() == {"0", "1", "2"}
    assert {steps[0][1] for steps in answer["steps"].values()} == {ADDED}
    assert answer["partitions"]["0"][0] == ADDED
    assert sum(rows for steps in answer["steps"].values() for _, _, rows, _ in steps) == 30
    assert answer["pause_ms"] > 0
    assert rows_of(node) == before
    assert ask(node, "version", id=1) == 1
    failing = MIGRATION.replace("# here", SEVENTH)
    with pytest.raises(MigrationRefused, match="ValueError"):
        node.deployer.deploy(make_version(tmp_path, 2, columns=RENAMED, last=failing)[1], plan=True)
    node.close()


def test_a_site_that_ends_before_the_entry_leaves_it_to_its_successor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it kept open is gone, and what follows it has the code that the log does not state yet, or ends and has it then."""
    node = open_node(tmp_path / "data", app=make_version(tmp_path, 1)[0], partitions=2, call_timeout_s=20.0)
    assert ask(node, "hit", id=7) == 1
    add = Opening.add

    def add_with_successors(opening: Opening, *arguments: Any, **named: Any) -> None:
        ended = set(node.overview.health().site_pids)
        for pid in ended:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: ended.isdisjoint(node.overview.health().site_pids) and node.ready)
        add(opening, *arguments, **named)

    monkeypatch.setattr(Opening, "add", add_with_successors)
    assert node.deployer.deploy(make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1], migrate=True)["version"] == 2
    assert rows_of(node) == [(7, 2, "doubled")]
    node.close()


def test_a_migration_that_hangs_ends_with_its_site(tmp_path: Path) -> None:
    """The site is replaced, nothing is changed, and calls are accepted again."""
    node = open_node(tmp_path / "data", app=make_version(tmp_path, 1)[0], partitions=2)
    assert ask(node, "hit", id=7) == 1
    hanging = MIGRATION.replace("# here", "while True:\n        pass")
    with pytest.raises(MigrationRefused, match="call_timeout_s"):
        node.deployer.deploy(make_version(tmp_path, 2, columns=RENAMED, last=hanging)[1], migrate=True)
    wait_for(lambda: node.ready)
    when_up = wait_for(lambda: [ask(node, "hit", id=7)])
    assert when_up == [1]
    assert rows_of(node) == [(7, 2)]
    node.close()
