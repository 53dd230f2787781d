"""Damage at rest under a job: the very rows of the sound log, or an error that names the file. No session needed.

One rule: every case damages one file of a node with archive and snapshots, before the plan or between plan and tasks.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from cmdlog.wal.errors import WalError
from cmdlog.wal.files import RealFiles
from procedures.bundle import load_bundle
from replay.errors import ReplayError
from replay.spark.attempt import carry_out
from replay.spark.backfill import _orders as whatif_orders
from replay.spark.backfilltask import backfill_partition
from replay.spark.rebuild import _orders
from replay.spark.rebuildtask import rebuild_partition
from replay.spark.versions import versions
from snapshot.errors import SnapshotError
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.rig import make_bundle

pytestmark = pytest.mark.slow
ACTS: dict[str, Callable[[str, int], None]] = {
    "flip": lambda path, offset: damage.flip(path, offset, 0x10),
    "zeros": damage.zero_sector,
    "cut": damage.truncate,
    "gone": lambda path, _offset: damage.delete(path),
}
PLACES = ("log", "archive", "snapshots")
CASES = 10
CASES_TORTURE = 300


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> ArchiveRig:
    """A stopped node whose ring was used several times over."""
    rig = ArchiveRig(tmp_path_factory.mktemp("history"), segments=6)
    for _ in range(2):
        rig.rotate(2, batches=16)
    rig.deposits(24)
    rig.close()
    return rig


@pytest.fixture(scope="module")
def sound(history: ArchiveRig, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Job -> what its tasks answer over the sound log."""
    found = {job: answers(job, history.directory, history, tmp_path_factory.mktemp(job)) for job in ("rebuild", "what-if")}
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


def spoil(directory: str, rng: random.Random) -> tuple[str, str]:
    """Damages one file; (path, what)."""
    place, act = rng.choice(PLACES), rng.choice(sorted(ACTS))
    paths = sorted(str(path) for path in Path(directory, place).rglob("*") if path.is_file() and path.stat().st_size)
    paths = [path for path in paths if not os.path.basename(path).startswith("free")]
    path = rng.choice(paths)
    size = damage.used_bytes(path) if path.endswith(".log") else os.path.getsize(path)
    ACTS[act](path, rng.randrange(max(1, min(size, os.path.getsize(path)))))
    return path, f"{act} of {os.path.relpath(path, directory)}"


def check_case(seed: int, history: ArchiveRig, sound: dict[str, Any], folder: Path) -> str:
    """One damage; how it ended. Raises: AssertionError when rows are others, or the error does not name the file."""
    rng = random.Random(seed)
    job, when = rng.choice(("rebuild", "what-if")), rng.choice(("before", "between"))
    directory = str(folder / "node")
    shutil.copytree(history.directory, directory)
    path, what = "", ""

    def hurt() -> None:
        nonlocal path, what
        path, what = spoil(directory, rng)

    (work := folder / "work").mkdir()
    try:
        if when == "before":
            hurt()
        found = answers(job, directory, history, work, hurt if when == "between" else lambda: None)
    except (WalError, ReplayError, SnapshotError) as error:
        check_told(str(error), path, f"seed {seed}: {what} {when} the plan of a {job}")
        return "refused by the plan"
    errors = [answer["error"] for answer in found if "error" in answer]
    for told in errors:
        check_told(told["message"], path, f"seed {seed}: {what} {when} the plan of a {job}: {told['kind']}")
    if errors:
        return "refused by a task"
    assert found == sound[job], f"seed {seed}: {what} {when} the plan of a {job} gave other rows"
    return "the same rows"


def check_told(message: str, path: str, about: str) -> None:
    """The file is named; of a log, the place in it, if the file is there at all."""
    names = {os.path.basename(path), os.path.basename(os.path.dirname(path)), os.path.splitext(os.path.basename(path))[0]}
    told = f"{about} says: {message}"
    assert any(name in message for name in names) or "is not there any more" in message, told
    if "/log/" in path and os.path.exists(path) and "missing" not in message:
        assert re.search(r"at offset \d+|bytes", message), told


@pytest.mark.parametrize("seed", range(CASES))
def test_damage_is_gone_around_or_named(history: ArchiveRig, sound: dict[str, Any], tmp_path: Path, seed: int) -> None:
    """Of logs, archived segments and snapshots: bits, zeros, a cut, a lost file; before the plan and behind it."""
    check_case(seed, history, sound, tmp_path)


@pytest.mark.torture
@pytest.mark.timeout(1200)
def test_many_damages_are_gone_around_or_named(history: ArchiveRig, sound: dict[str, Any], tmp_path: Path) -> None:
    """The same, often enough that each outcome is met."""
    ends = set()
    for seed in range(CASES, CASES_TORTURE):
        (folder := tmp_path / str(seed)).mkdir()
        ends.add(check_case(seed, history, sound, folder))
        shutil.rmtree(folder)
    assert ends == {"refused by the plan", "refused by a task", "the same rows"}
