"""Damage at rest under a job: the very rows of the sound log, or an error that names the file. No session needed.

One rule: every case damages one file of a node with archive and snapshots, or exchanges whole ones (`tests.spark.exchanges`),
before the plan or between plan and tasks, of each job and table that reads a node's directory.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from cmdlog.wal.directory.instance import Identity
from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from procedures.bundle import load_bundle
from replay.errors import ReplayError
from replay.spark.base.options import parse_options
from replay.spark.base.version_check import versions
from replay.spark.datasource.state_table import columns_of, find_table, plan_state, read_state
from replay.spark.jobs.backfill import _orders as whatif_orders
from replay.spark.jobs.backfill_task import backfill_partition
from replay.spark.jobs.rebuild import _orders
from replay.spark.jobs.rebuild_task import rebuild_partition
from replay.spark.jobs.task_attempt import carry_out
from snapshot.errors import SnapshotError
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.rig import make_bundle
from tests.spark.exchanges import exchange
from tests.spark.reading import plan_of, rows_of

pytestmark = pytest.mark.slow
ACTS: dict[str, Callable[[str, int], None]] = {
    "flip": lambda path, offset: damage.flip(path, offset, 0x10),
    "zeros": damage.zero_sector,
    "cut": damage.truncate,
    "gone": lambda path, _offset: damage.delete(path),
}
PLACES = ("log", "archive", "snapshots")
JOBS = ("rebuild", "what-if")
TABLES = ("calls", "state")
CASES = 10
CASES_TORTURE = 300
EXCHANGES = 16
EXCHANGES_TORTURE = 600


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """A stopped node whose ring was used several times over."""
    return make_history(tmp_path_factory.mktemp("history"))


def make_history(folder: Path, factor: int = 1) -> ArchiveRig:
    """With deposits that count so often."""
    rig = ArchiveRig(folder, segments=6, factor=factor)
    for _ in range(2):
        rig.rotate(2, batches=16)
    rig.deposits(24)
    rig.close()
    return rig


@pytest.fixture(scope="module")
def others(history: ArchiveRig, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Directories of a node of another cluster, of one made anew like this one, and of one that looks like it."""
    own = history.identity
    found = []
    for identity in (Identity.fresh(), Identity(own.cluster_id, own.node_id, Identity.fresh().incarnation), own):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Identity, "fresh", lambda identity=identity: identity)
            found.append(make_history(tmp_path_factory.mktemp("other"), factor=2).directory)
    return found


@pytest.fixture(scope="module")
def sound(history: ArchiveRig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Job -> what its tasks answer over the sound log."""
    found = {job: answers(job, history.directory, history, tmp_path_factory.mktemp(job)) for job in (*JOBS, *TABLES)}
    assert not any("error" in answer for of in found.values() for answer in of)
    return found


def plan(job: str, directory: str, history: ArchiveRig) -> list[dict[str, Any]]:
    """The orders: of three moments, or of a fork in the middle."""
    moments = [history.history[len(history.history) * share // 8][0] for share in (2, 5)]
    request: dict[str, Any]
    if job == "rebuild":
        request = {"paths": [directory], "until": ["", *map(str, moments)], "tables": None, "accept_data_loss": False}
        return list(_orders(RealFiles(), request, None))
    bundle = make_bundle(7)
    request = {"paths": [directory], "tables": None, "missing": "refuse"}
    return list(whatif_orders(RealFiles(), request, load_bundle(bundle), bundle, fork=moments[1], end=None))


def answers(
    job: str, directory: str, history: ArchiveRig, work: Path, between: Callable[[], None] = lambda: None
) -> list[dict[str, Any]]:
    """What the tasks answer, with the rows that they wrote; nothing that depends on paths."""
    if job in TABLES:
        return read_table(job, directory, between)
    for name in ("attempts", "rows", "progress"):
        (work / name).mkdir()
    orders = plan(job, directory, history)
    between()
    found = []
    for order in orders:
        told = {**orjson.loads(orjson.dumps(order)), "staging": str(work), "versions": versions()}
        row = orjson.loads(carry_out(told, rebuild_partition if job == "rebuild" else backfill_partition))
        kept = {name: row[name] for name in ("key", "error", "partition", "changes", "outcomes") if name in row}
        files = [{**file, "path": parquet.read_table(work / file["path"]).to_pylist()} for file in row.get("files", ())]
        kept["files"] = [{name: file[name] for name in ("table", "rows", "path", "digest") if name in file} for file in files]
        found.append(kept)
        assert ("error" in row) != any(name.startswith(order["key"]) for name in os.listdir(work / "rows"))
    return found


def read_table(table: str, directory: str, between: Callable[[], None]) -> list[dict[str, Any]]:
    """The rows of the calls, or of the accounts."""
    if table == "calls":
        plan = plan_of(directory)
        between()
        return [{"rows": sorted(rows_of(plan))}]
    options = parse_options({"path": directory, "table": "state.accounts"})
    found = find_table(options)
    tasks = plan_state(options, found, list(columns_of(found, include_metadata=False)))
    between()
    return [{"rows": sorted((row["id"], row["balance"]) for task in tasks for of in read_state(task) for row in of.to_pylist())}]


def spoil(directory: str, rng: random.Random) -> tuple[list[str], str]:
    """Damages one file; ([path], what)."""
    place, act = rng.choice(PLACES), rng.choice(sorted(ACTS))
    paths = sorted(str(path) for path in Path(directory, place).rglob("*") if path.is_file() and path.stat().st_size)
    paths = [path for path in paths if not os.path.basename(path).startswith("free")]
    path = rng.choice(paths)
    size = damage.used_bytes(path) if path.endswith(".log") else os.path.getsize(path)
    ACTS[act](path, rng.randrange(max(1, min(size, os.path.getsize(path)))))
    return [path], f"{act} of {os.path.relpath(path, directory)}"


@dataclass(frozen=True, slots=True)
class Trial:
    """What a case does, and to what."""

    jobs: Sequence[str]
    hurt: Callable[[str, random.Random], tuple[list[str], str]]
    history: ArchiveRig
    sound: dict[str, Any]


def check_case(seed: int, trial: Trial, folder: Path) -> str:
    """One damage; how it ended. Raises: AssertionError when rows are others, or the error does not name a file of it."""
    rng = random.Random(seed)
    job, when = rng.choice(trial.jobs), rng.choice(("before", "between"))
    directory = str(folder / "node")
    shutil.copytree(trial.history.directory, directory)
    told: list[tuple[str, str]] = []
    found: list[dict[str, Any]] = []
    paths: list[str] = []
    about = f"seed {seed}: {when} the plan of {job}: "

    def hurt_it() -> None:
        nonlocal paths, about
        paths, what = trial.hurt(directory, rng)
        about += what

    (work := folder / "work").mkdir()
    behind = False

    def between() -> None:
        nonlocal behind
        behind = True
        if when == "between":
            hurt_it()

    try:
        if when == "before":
            hurt_it()
        found = answers(job, directory, trial.history, work, between)
        told = [(answer["error"]["kind"], answer["error"]["message"]) for answer in found if "error" in answer]
    except (WalError, ReplayError, SnapshotError) as error:
        told = [(type(error).__name__, str(error))]
    for kind, message in told:
        check_told(message, paths, f"{about}: {kind}")
    if told:
        return "refused by a task" if behind else "refused by the plan"
    assert found == trial.sound[job], f"{about} gave other rows"
    return "the same rows"


def check_told(message: str, paths: Sequence[str], about: str) -> None:
    """One of the files is named; of a log that lost bytes, the place in it, if the file is there at all."""
    names = {os.path.splitext(os.path.basename(path))[0] for path in paths}
    names |= {
        os.path.basename(os.path.dirname(path)) for path in paths if os.path.basename(path) in ("image.sqlite", "manifest.json")
    }
    told = f"{about} says: {message}"
    assert any(name in message for name in names) or "no longer exists" in message, told
    (path, *more) = paths
    if not more and "/log/" in path and os.path.exists(path) and "missing" not in message:
        assert re.search(r"at offset \d+|bytes|belongs to|was recycled", message), told


@pytest.mark.parametrize("seed", range(CASES))
def test_damage_is_gone_around_or_named(history: ArchiveRig, sound: dict[str, Any], tmp_path: Path, seed: int) -> None:
    """Of logs, archived segments and snapshots: bits, zeros, a cut, a lost file; before the plan and behind it."""
    check_case(seed, Trial(JOBS, spoil, history, sound), tmp_path)


def exchanged(others: Sequence[str]) -> Callable[[str, random.Random], tuple[list[str], str]]:
    """Files that stand where they do not belong."""
    return lambda directory, rng: exchange(directory, others, rng)


@pytest.mark.parametrize("seed", range(EXCHANGES))
def test_exchanged_files_are_gone_around_or_named(
    history: ArchiveRig, others: list[str], sound: dict[str, Any], tmp_path: Path, seed: int
) -> None:
    """D16, D17: doubled, swapped, renamed, another node's; of jobs and tables."""
    check_case(seed, Trial((*JOBS, *TABLES), exchanged(others), history, sound), tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", ["damage", "exchange"])
def test_many_damages_are_gone_around_or_named(
    history: ArchiveRig, others: list[str], sound: dict[str, Any], tmp_path: Path, kind: str
) -> None:
    """The same, often enough that each outcome is met."""
    hurt, seeds = (
        (spoil, range(CASES, CASES_TORTURE)) if kind == "damage" else (exchanged(others), range(EXCHANGES, EXCHANGES_TORTURE))
    )
    ends = set()
    for seed in seeds:
        (folder := tmp_path / str(seed)).mkdir()
        ends.add(check_case(seed, Trial((*JOBS, *TABLES), hurt, history, sound), folder))
        shutil.rmtree(folder)
    assert ends == {"refused by the plan", "refused by a task", "the same rows"}
