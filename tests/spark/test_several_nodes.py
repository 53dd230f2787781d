"""Jobs over several nodes' directories: the plan's authority, carried out partition by partition. No session needed."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyarrow import parquet

from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from replay.errors import Incomplete, UntilBeyond
from replay.fork.fork import START
from replay.log.spans import BEGINNING
from replay.spark.base.options import parse_options
from replay.spark.base.version_check import versions
from replay.spark.datasource.state_table import find_table, plan_state, read_state
from replay.spark.jobs import past_replay
from replay.spark.jobs.backfill import _orders as whatif_orders
from replay.spark.jobs.backfill_task import backfill_partition
from replay.spark.jobs.rebuild import _orders
from replay.spark.jobs.rebuild_task import rebuild_partition
from replay.spark.jobs.task_attempt import carry_out
from tests.replay import damage
from tests.replay.historycheck import FILES
from tests.replay.historymembers import History
from tests.replay.ledgers import logged_calls
from tests.replay.rig import make_bundle

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> History:
    """Three nodes whose logs have several small segments, written in different orders; everything is committed."""
    history = History(tmp_path_factory.mktemp("template") / "h", seed=43, segment_bytes=32 << 10)
    rng = random.Random(43)
    for step in range(60):
        partition = rng.randrange(2)
        history.deposits(partition, rng.randint(1, 6))
        history.spread(partition, rng.choice([[2, 3], [3, 2], [2], [3]]))
        history.nodes[rng.randint(1, 3)].flush()
        if step == 30:
            history.change_code(3)
    for partition in (1, 0):
        assert history.spread(partition)
    history.finish()
    return history


@pytest.fixture
def nodes(template: History, tmp_path: Path) -> list[str]:
    """Copies of the three directories, to be damaged."""
    copies = [str(tmp_path / f"node-{number}") for number in template.nodes]
    for directory, copy in zip(template.directories, copies, strict=True):
        shutil.copytree(directory, copy)
    return copies


def balances(nodes: list[str], work: Path, moments: list[int | None]) -> list[dict[int, int]]:
    """For each moment: account -> balance, as the tasks of one rebuild write them."""
    texts = ["" if moment is None else str(moment) for moment in moments]
    request = {"paths": nodes, "until": texts, "tables": ["accounts"], "accept_data_loss": False}
    for name in ("attempts", "rows", "progress"):
        (work / name).mkdir(parents=True)
    found: list[dict[int, int]] = [{} for _ in moments]
    for order in _orders(FILES, request, None):
        told = {**orjson.loads(orjson.dumps(order)), "staging": str(work), "versions": versions()}
        row: dict[str, Any] = orjson.loads(carry_out(told, rebuild_partition))
        assert "error" not in row, row
        for file in row["files"]:
            rows = parquet.read_table(work / file["path"]).to_pylist()
            found[file["point"]] |= {r["id"]: r["balance"] for r in rows}
    return found


def test_moments_over_several_nodes_are_those_of_the_history(template: History, nodes: list[str], tmp_path: Path) -> None:
    """Two moments in the past and the end, in one run, whichever node holds what."""
    txn_ids = sorted(txn_id for _, _, txn_id in template.acknowledged)
    moments: list[int | None] = [txn_ids[len(txn_ids) // 3], txn_ids[2 * len(txn_ids) // 3], None]
    for moment, found in zip(moments, balances(nodes, tmp_path / "work", moments), strict=True):
        assert found == (template.balances_at(moment) if moment is not None else template.balances_at())


def test_damage_in_one_copy_is_read_around(template: History, nodes: list[str], tmp_path: Path) -> None:
    """A segment that is lost in every chosen log comes from the others, in legs; what is in none is no output."""
    for directory in nodes[:2]:
        damage.delete(damage.segments(directory)[1])
    found = balances(nodes, tmp_path / "work", [None])
    assert found == [template.balances_at()]
    with pytest.raises(Incomplete):
        balances(nodes[:1], tmp_path / "alone", [None])


def what_if(nodes: list[str], work: Path, *, at: int, until: int | None, bundle: Bundle) -> dict[str, Any]:
    """What the tasks of a back-fill write: rows by kind and table, and how the calls ended."""
    app = load_bundle(bundle)
    request = {"paths": nodes, "tables": None, "missing": "refuse"}
    for name in ("attempts", "rows", "progress"):
        (work / name).mkdir(parents=True)
    found: dict[str, Any] = {}
    for order in whatif_orders(FILES, request, app, bundle, fork=at, end=until):
        told = {**orjson.loads(orjson.dumps(order)), "staging": str(work), "versions": versions()}
        row: dict[str, Any] = orjson.loads(carry_out(told, backfill_partition))
        assert "error" not in row, row
        for file in row["files"]:
            rows = parquet.read_table(work / file["path"]).to_pylist()
            found.setdefault(f"{file['kind']} {file['table']}", []).append((order["partition"], rows))
        found.setdefault("outcomes", {})[order["partition"]] = row["outcomes"]
        found.setdefault("calls", {})[order["partition"]] = (row["kept"], row["calls"], order["calls"])
        found.setdefault("legs", {})[order["partition"]] = len(order["legs"])
    return {name: sorted(rows) if isinstance(rows, list) else rows for name, rows in found.items()}


def pierce(nodes: list[str]) -> None:
    """No log can be read from end to end any more, and each place is whole somewhere: a lost file, a flipped bit, zeros."""
    damage.delete(damage.segments(nodes[0])[1])
    second, third = damage.segments(nodes[1])[2], damage.segments(nodes[2])[3]
    damage.flip(second, damage.used_bytes(second) // 2)
    damage.zero_sector(third, damage.used_bytes(third) // 2)


def test_what_if_goes_around_damage_in_every_copy(template: History, nodes: list[str], tmp_path: Path) -> None:
    """Rows, diff, first calls and outcomes are those of undamaged logs: from the start, within batches, up to a moment."""
    calls = [call for directory in nodes[:1] for call in logged_calls(directory)]
    inside = [call.txn_id for call in calls if 0 < call.position < call.count - 1]
    moments = [(START, None), (inside[len(inside) // 3], None), (calls[9].txn_id, inside[2 * len(inside) // 3])]
    wanted = [
        what_if(nodes, tmp_path / f"sound{n}", at=at, until=until, bundle=make_bundle(5)) for n, (at, until) in enumerate(moments)
    ]
    pierce(nodes)
    stitched = 0
    for n, (at, until) in enumerate(moments):
        found = what_if(nodes, tmp_path / f"pierced{n}", at=at, until=until, bundle=make_bundle(5))
        stitched += sum(count > 1 for count in found.pop("legs").values())
        assert set(wanted[n].pop("legs").values()) == {1}
        assert found == wanted[n]
        state = {row["id"]: row["balance"] for _, rows in found["state accounts"] for row in rows}
        assert state != template.balances_at(until) if until is not None else template.balances_at()
    assert stitched >= len(moments)


def test_what_if_names_what_is_in_no_copy(nodes: list[str], tmp_path: Path) -> None:
    """Entries that are damaged in all logs are named with file and place; nothing is written."""
    for directory in nodes:
        for segment in damage.segments(directory)[1:3]:
            for part in range(1, 8):
                damage.zero_sector(segment, damage.used_bytes(segment) * part // 8)
    with pytest.raises(Incomplete, match=r"entries \d+ to \d+ are in no log at hand") as error:
        what_if(nodes, tmp_path / "work", at=START, until=None, bundle=make_bundle(5))
    first = damage.segments(nodes[0])[1]
    assert all(f"{first} at offset 0 (and " in loss for loss in error.value.details)


@pytest.mark.parametrize("work", ["rebuild", "what-if"])
def test_damage_behind_the_plan_is_named_in_a_leg(nodes: list[str], tmp_path: Path, work: str) -> None:
    """A leg that does not hold any more what its plan says is an error with file and place, and no row is answered."""
    bundle = make_bundle(5)
    pierce(nodes)
    request = {"paths": nodes, "until": [""], "tables": None, "accept_data_loss": False, "missing": "refuse"}
    whatif = list(whatif_orders(FILES, request, load_bundle(bundle), bundle, fork=START, end=None))
    orders = whatif if work == "what-if" else list(_orders(FILES, request, None))
    for directory in nodes:
        for segment in damage.segments(directory)[:2]:
            damage.zero_sector(segment, damage.used_bytes(segment) * 3 // 4)
    for name in ("attempts", "rows", "progress"):
        (tmp_path / name).mkdir(parents=True)
    kinds = []
    for order in orders:
        told = {**orjson.loads(orjson.dumps(order)), "staging": str(tmp_path), "versions": versions()}
        answer = orjson.loads(carry_out(told, backfill_partition if work == "what-if" else rebuild_partition))
        kinds.append(answer["error"]["kind"])
        assert any(segment in answer["error"]["message"] for d in nodes for segment in damage.segments(d)), answer
        assert " at offset " in answer["error"]["message"]
    assert set(kinds) == {"Corrupt"}
    assert not list((tmp_path / "rows").iterdir())


def test_legs_give_every_entry_once_in_order(nodes: list[str]) -> None:
    """Over all hand-overs, the stream is gapless and ends where its plan says."""
    pierce(nodes)
    stitched = past_replay.stitch(FILES, nodes, {0: BEGINNING, 1: BEGINNING}, None)
    for partition in (0, 1):
        records = list(past_replay.read_legs(FILES, of := stitched.of(partition)))
        indexes = [record.index for _, record in records if record.partition == partition and record.is_entry]
        assert indexes == list(range(1, past_replay.stream_of(of).to_index + 1))


def test_states_over_several_nodes_are_those_of_the_history(template: History, nodes: list[str]) -> None:
    """A table as of a transaction comes from whichever nodes hold it, around what is damaged, and never from a moment to come."""
    txn_ids = sorted(txn_id for _, _, txn_id in template.acknowledged)
    middle = txn_ids[len(txn_ids) // 2]
    damage.delete(damage.segments(nodes[0])[1])
    for given, wanted in (({"asOfTxn": str(middle)}, template.balances_at(middle)), ({}, template.balances_at())):
        options = parse_options({"paths": orjson.dumps(nodes).decode(), "table": "state.accounts", **given})
        tasks = plan_state(options, find_table(options), ["balance", "id"])
        rows = [row for task in tasks for batch in read_state(task) for row in batch.to_pylist()]
        assert {row["id"]: row["balance"] for row in rows} == wanted
    future = parse_options(
        {"path": nodes[1], "paths": orjson.dumps(nodes[2:]).decode(), "table": "state.accounts", "asOfTxn": str(1 << 62)}
    )
    with pytest.raises(UntilBeyond, match="was not reached"):
        plan_state(future, find_table(future), ["id"])
