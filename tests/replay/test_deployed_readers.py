"""What reads states of different times: diff, drill, export, quarantine and another number of partitions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import cmdlog
from cmdlog.wal.directory.instance import load_instance
from cmdlog.wal.files import RealFiles
from procedures.storage.state import PartitionState
from replay.diff.diff import diff
from replay.diff.state_reader import open_states
from replay.drill.drill import drill
from replay.errors import ReshapeRefused
from replay.log.source import fold_end, open_source
from replay.plan.planner import PAST, make_plan
from replay.recover.to_directory import rebuild
from replay.repartition.repartition import reshape
from replay.state.trust import state_path
from snapshot.catalog import list_snapshots
from snapshot.export import export
from tests.commands import Command
from tests.replay.deployed import ITEMS, Deployed, Tables, application, copied, make_deployed, ordered, tables_of
from tests.replay.ledgers import SMALL, Versions
from tests.replay.test_deployed_recover import changes_before

pytestmark = pytest.mark.slow
FILES = RealFiles()


@pytest.fixture(scope="module")
def past(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Deployed:
    """See `make_deployed`."""
    return make_deployed(tmp_path_factory.mktemp("years") / "node", versions)


def recovered(directory: Path, out: Path, until: int | None = None, **more: Any) -> Path:
    """The directory of a recovery."""
    rebuild(make_plan(FILES, str(directory), PAST, until=until), FILES, str(out), workers=0, **more)
    return out


def exported(directory: Path, out: Path) -> Tables:
    """Table -> rows of the newest snapshots; a Numeric as its units."""
    identity = load_instance(FILES, str(directory)).identity
    newest = {snapshot.partition: snapshot for snapshot in list_snapshots(FILES, str(directory), identity)}
    export(FILES, list(newest.values()), str(out))
    found = {path.stem: pq.read_table(path).to_pylist() for path in sorted(out.iterdir())}
    for row in found["items"]:
        if "score" in row:
            row["score"] = int(row["score"].scaleb(-row["score"].as_tuple().exponent))
    return ordered(found)


def test_diff_matches_rows_by_name_and_says_what_each_side_has(past: Deployed, tmp_path: Path) -> None:
    """States before and after columns were added: rows are compared over the common columns, whatever their order."""
    before = recovered(past.directory, tmp_path / "before", past.last(1).txn_id)
    with open_states(FILES, str(before)) as left, open_states(FILES, str(past.directory)) as right:
        report = {table.name: table for table in diff(left, right, tables=(), limit=99).tables}
    was, now = past.last(1).tables["items"], past.moments[-1].tables["items"]
    items, lines = report["items"], report["lines"]
    assert items.only == {"left": [], "right": ["feeling", "score"]}
    assert items.counts["added"] == len(now) - len(was)
    changed = {row["id"] for row in was for other in now if row["id"] == other["id"] and row["tag"] != other["tag"]}
    assert {change.new[0] for change in items.examples if change.kind == "changed" and change.new} == changed
    assert lines.left is None
    assert lines.counts == {"added": ITEMS + 1}


def test_migrated_rows_without_another_value_are_equal(past: Deployed, tmp_path: Path) -> None:
    """On both sides of a migration: numbers of another scale are equal, renamed columns are of one side."""
    before = recovered(past.directory, tmp_path / "before", past.last(3).txn_id)
    after = recovered(past.directory, tmp_path / "after", past.first(4).txn_id)
    with open_states(FILES, str(before)) as left, open_states(FILES, str(after)) as right:
        report = {table.name: table for table in diff(left, right, tables=(), limit=99).tables}
    items, rates = report["items"], report["rates"]
    assert items.only == {"left": ["mood"], "right": ["feeling"]}
    columns = ("id", "tag", "score")
    changed = [dict(zip(items.columns, change.new or (), strict=True)) for change in items.examples]
    assert [tuple(row[name] for name in columns) for row in changed] == [
        tuple(row[name] for name in columns) for row in past.first(4).tables["items"] if row["id"] == 1
    ]
    assert (rates.only, rates.counts.total()) == ({"left": ["rate"], "right": ["points"]}, 0)


def test_diff_command_shows_the_columns_of_both_sides(past: Deployed, tmp_path: Path, command: Command) -> None:
    """Names and types, where they differ; in JSON for each table."""
    before = recovered(past.directory, tmp_path / "before", past.last(1).txn_id)
    code, text = command("diff", before, past.directory)
    assert code == 1
    assert "items has the columns id integer, tag integer on the left side" in text
    assert "items has the columns id integer, tag integer, feeling text, score numeric(8,3) on the right side" in text
    assert "rates has the columns name text, points integer on the right side" in text
    _, value = command("diff", before, past.directory, "--json")
    items = next(table for table in value["tables"] if table["table"] == "items")
    assert items["columns"]["left"] == {"id": "integer", "tag": "integer"}
    assert items["columns"]["right"]["score"] == "numeric(8,3)"


def test_drill_proves_a_past_with_changes(past: Deployed) -> None:
    """Two ways to a state on both sides of a change, at several moments."""
    for seed in range(4):
        report = drill(FILES, str(past.directory), seed=seed)
        assert report.verdict == "proven", report


def test_export_has_the_columns_of_its_moment(past: Deployed, tmp_path: Path) -> None:
    """Of recoveries up to each side of the changes, and of the newest snapshots of the node itself."""
    for step in (1, 2, 3, 4):
        moment = past.last(step)
        out = recovered(past.directory, tmp_path / f"node{step}", moment.txn_id)
        assert exported(out, tmp_path / f"tables{step}") == ordered(moment.tables), step


def test_any_moment_takes_another_number_of_partitions(past: Deployed, versions: Versions, tmp_path: Path) -> None:
    """Rows, columns, keys of old calls, and the node works with the code of its time, and with the newest."""
    for step in (1, 2, 3, 4):
        moment = past.last(step)
        out = recovered(past.directory, tmp_path / f"node{step}", moment.txn_id, partitions=5)
        assert tables_of(out, partitions=5) == ordered(moment.tables), step
        newest = 3 if step == 1 else 4  # migrations find the tables of the version before them
        with cmdlog.open(out, application(versions, newest), migrate=True, **SMALL) as node:
            again = node.call("adjust", id=1, factor=3, plus=5, idempotency_key="adjusted")
            assert again == 8
            assert node.call("cheer", id=ITEMS - 1, mood="reshaped") == 1


def test_moment_within_a_change_keeps_its_number_of_partitions(past: Deployed, tmp_path: Path) -> None:
    """Tables of other partitions are others there; the refusal names the table."""
    with pytest.raises(ReshapeRefused, match=r"items of partition . was made by a different statement"):
        recovered(past.directory, tmp_path / "out", min(changes_before(past, 2)), partitions=3)


def test_another_number_of_partitions_keeps_which_migrations_ran(past: Deployed, tmp_path: Path) -> None:
    """The framework's own table of names goes to every new partition."""
    copy = copied(past.directory, tmp_path / "copy")
    new = reshape(FILES, str(copy), fold_end(open_source(FILES, str(copy))), partitions=5)
    for at in new:
        state = PartitionState.open(state_path(str(copy), at.partition), partition=at.partition)
        assert state.migrations_done() == ["0001_names", "0002_halves"]
        state.close()


def test_history_names_parameters_as_their_version_did(past: Deployed, command: Command) -> None:
    """`cmdlog log history`: the same procedure under two signatures."""
    _, answer = command.values("log", "history", past.directory, "--procedure", "adjust")
    made = {str(moment.txn_id): moment for moment in past.moments if moment.name == "adjust"}
    found = {call["txn_id"]: call["params"] for call in answer}
    assert found.keys() == made.keys()
    assert all(found[txn].items() >= moment.params.items() for txn, moment in made.items())
    assert {tuple(found[txn]) for txn, moment in made.items() if moment.step < 3} == {("id", "times", "plus")}
    assert {tuple(found[txn]) for txn, moment in made.items() if moment.step >= 3} == {("plus", "factor", "id", "extra")}


def test_files_of_differences_have_each_side_s_type(past: Deployed, tmp_path: Path, command: Command) -> None:
    """Across a migration that changed a scale: old values with the old digits, new ones with the new."""
    before = recovered(past.directory, tmp_path / "before", past.last(3).txn_id)
    after = recovered(past.directory, tmp_path / "after", past.first(4).txn_id)
    code, _ = command("diff", before, after, "--parquet", tmp_path / "files")
    assert code == 1
    read = pq.read_table(tmp_path / "files" / "items.parquet")
    (row,) = read.to_pylist()
    assert (row["id"], row["change"]) == (1, "changed")
    score = next(of["score"] for of in past.last(3).tables["items"] if of["id"] == 1)
    assert (str(row["old_score"]), str(row["new_score"])) == (f"{score / 100:.2f}", f"{score / 100 + 1:.3f}")
