"""Tables of the application as they were: the rows of a recovery up to the same moment, first without Spark, then with it."""

from __future__ import annotations

import os
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from pyarrow import fs
from pyspark.errors import PySparkException

import cmdlog
from cmdlog.wal.errors import Corrupt
from replay.errors import Divergence, PlanOutdated, UntilBeyond, UntilUnreachable
from replay.spark.base import fetching, filesystems
from replay.spark.base.options import BadOption, ReadOptions, parse_options
from replay.spark.base.version_check import OtherVersions
from replay.spark.datasource import state_table
from replay.spark.datasource.state_table import StateTask, columns_of, find_table, plan_state, read_state
from replay.spark.jobs.rebuild_task import NoSuchTable
from tests.replay import damage
from tests.replay.archiverig import ArchiveRig
from tests.replay.ledgers import SMALL, Versions, logged_calls
from tests.replay.rig import DRIFT
from tests.snapshot.test_export import APP, FULL_ROW
from tests.spark.reading import made
from tests.spark.spark_nodes import SHOP, exported, fill, make_node

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node with the calls of `fill`, a recovery point, and some deposits behind it."""
    folder = tmp_path_factory.mktemp("shop") / "node"
    with cmdlog.open(folder, versions.load("shop_v1", SHOP), partitions=2, **SMALL) as opened:
        fill(opened)
        opened.node.take_point()
        for answer in [opened.submit("deposit", account=n % 8, amount=7) for n in range(40)]:
            answer.result()
    return folder


@pytest.fixture
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where tasks have their folders; empty again when each of them has ended."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def asked(directory: object, table: str, **given: Any) -> ReadOptions:
    """The options of such a read."""
    paths = [str(one) for one in directory] if isinstance(directory, list) else [str(directory)]
    options = {name: str(value) for name, value in given.items()}
    return parse_options({"paths": orjson.dumps(paths).decode(), "table": f"state.{table}", **options})


def tasks_of(directory: object, table: str, columns: list[str] | None = None, **given: Any) -> list[StateTask]:
    """What is planned, by partition."""
    options = asked(directory, table, **given)
    found = find_table(options)
    names = columns or list(columns_of(found, include_metadata=options.include_metadata))
    return sorted(plan_state(options, found, names), key=lambda task: task.partition)


def rows(directory: object, table: str, columns: list[str] | None = None, **given: Any) -> list[dict[str, Any]]:
    """The rows, partition by partition."""
    return [
        row for task in tasks_of(directory, table, columns, **given) for batch in read_state(task) for row in batch.to_pylist()
    ]


def test_rows_are_those_of_recover_at_every_moment(node: Path, tmp_path: Path) -> None:
    """In the middle of a batch, where the snapshots stand, between them and the end, and at the end; row for row, in order."""
    calls = logged_calls(node)
    inside = [call.txn_id for call in calls if 0 < call.position < call.count - 1]
    point = int(next(iter((node / "snapshots" / "points").iterdir())).stem)
    moments = [inside[7], point, next(txn for txn in reversed(inside) if txn > point), calls[-1].txn_id]
    assert len(set(moments)) == 4
    for number, moment in enumerate(moments):
        (work := tmp_path / str(number)).mkdir()
        wanted = exported(node, work, until=moment)
        assert rows(node, "accounts", asOfTxn=moment) == wanted["accounts"], moment
        assert rows(node, "rates", asOfTxn=moment) == wanted["rates"], moment
        assert rows(node, "prices", asOfTxn=moment) == wanted["prices"], moment
    assert rows(node, "accounts") == rows(node, "accounts", asOfTxn=moments[-1])
    assert rows(node, "rates", asOfTimestamp=calls[-1].txn_id >> 21) == rows(node, "rates")


def test_every_type_is_exact(versions: Versions, tmp_path: Path) -> None:
    """Spark's types are those of an export, and so are the values, NULLs too."""
    db = versions.load("every_v1", APP)
    with cmdlog.open(tmp_path / "node", db, partitions=2, **SMALL) as opened:
        opened.call("add", **FULL_ROW)
        opened.call("empty", id=2)
        opened.call("fill", id=3, count=2)
    found = find_table(asked(tmp_path / "node", "THINGS"))
    assert found.name == "things"
    assert found.columns == {
        "id": "bigint", "big": "bigint", "flag": "boolean", "real": "double", "price": "decimal(12,2)", "exact": "decimal(18,6)",
        "at": "timestamp", "day": "date", "ident": "string", "nested": "string", "text": "string",
        "kind": "string", "raw": "binary",
    }  # fmt: skip
    by_id = {row["id"]: row for row in rows(tmp_path / "node", "things")}
    assert by_id[1] == {**FULL_ROW, "nested": '{"a":1.5,"b":[1,null,"x"]}'}
    assert by_id[2] == {**dict.fromkeys(found.columns), "id": 2, "nested": "null"}
    (work := tmp_path / "work").mkdir()
    wanted = {row["id"]: row for row in exported(tmp_path / "node", work)["things"]}
    assert by_id[1] == wanted[1]
    lines = rows(tmp_path / "node", "lines", columns=["note", "line"])
    assert lines == [{"note": "", "line": 0}, {"note": "n", "line": 1}]


def test_before_the_first_call_a_table_is_empty(node: Path) -> None:
    """There are rows from the first call on; what lies before anything at all, or is still to come, is refused."""
    calls = logged_calls(node)
    assert rows(node, "accounts", asOfTxn=calls[0].txn_id - 1) == []
    assert len(rows(node, "accounts", asOfTxn=calls[0].txn_id)) == 1
    with pytest.raises(UntilBeyond, match="is before the first one"):
        rows(node, "accounts", asOfTxn=1)
    with pytest.raises(UntilBeyond, match=r"was not reached.*\n.*omit asOfTxn and asOfTimestamp to get the newest state$"):
        rows(node, "accounts", asOfTxn=calls[-1].txn_id + (1 << 30))


def test_table_of_later_code_was_empty_before_it(versions: Versions, tmp_path: Path) -> None:
    """A table is known by any version of the code, whichever moment is asked for."""
    make_node(versions, tmp_path / "node")
    before = logged_calls(tmp_path / "node")[-1].txn_id
    more = SHOP + '\ndb.table("labels", Column("id", Integer, primary_key=True), Column("label", Text), partition_by="id")\n'
    with cmdlog.open(tmp_path / "node", versions.load("shop_v1", more), partitions=2, **SMALL) as opened:
        opened.call("deposit", account=1, amount=1)
    assert find_table(asked(tmp_path / "node", "labels")).columns == {"id": "bigint", "label": "string"}
    assert rows(tmp_path / "node", "labels") == rows(tmp_path / "node", "labels", asOfTxn=before) == []
    assert len(rows(tmp_path / "node", "accounts", asOfTxn=before)) == 8


def test_table_that_no_code_declares_is_found_in_the_snapshots(node: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns then have the types that SQLite gives them."""
    wanted = rows(node, "rates")
    monkeypatch.setattr(state_table, "_declared", lambda _catalogs: iter(()))
    assert find_table(asked(node, "rates")).columns == {"name": "string", "rate": "bigint"}
    assert {tuple(row.values()) for row in rows(node, "rates")} == {tuple(row.values()) for row in wanted}


def test_moment_that_is_not_at_hand_any_more_is_refused(tmp_path: Path, scratch: Path) -> None:
    """The log begins behind it, and no snapshot is old enough; and a plan that has grown so old gives no row."""
    rig = ArchiveRig(tmp_path, rules={"window_s": 0}, segments=6)
    rig.rotate(2)
    old = tasks_of(rig.directory, "accounts")
    wanted = [batch.to_pylist() for task in old for batch in read_state(task)]
    rig.deposits(3)
    assert [batch.to_pylist() for task in old for batch in read_state(task)] == wanted
    rig.rotate(4)
    rig.close()
    with pytest.raises(PlanOutdated, match="load the table again"):
        next(read_state(old[0]))
    assert list(scratch.iterdir()) == []
    with pytest.raises(UntilUnreachable, match=r"blocks 1 to \d+ of the log cannot be read"):
        rows(rig.directory, "accounts", asOfTxn=rig.history[0][0])
    assert {row["id"]: row["balance"] for row in rows(rig.directory, "accounts")} == rig.history[-1][1]


def test_latest_point_is_one_moment_of_all_partitions(node: Path) -> None:
    """It is cheap, since its snapshots stand at it; each partition says its last transaction up to it."""
    point = int(next(iter((node / "snapshots" / "points").iterdir())).stem)
    tasks = tasks_of(node, "accounts", asOfTxn="latestPoint")
    assert [task.legs[-1].until for task in tasks] == [point, point]
    assert sum(leg.calls for task in tasks for leg in task.legs) == 0
    assert rows(node, "accounts", asOfTxn="latestPoint") == rows(node, "accounts", asOfTxn=point)
    found = rows(node, "accounts", asOfTxn="latestPoint", includeMetadata="true")
    assert {row["_partition_id"] for row in found} == {0, 1}
    assert all(row["_txn_id"] <= point for row in found)
    with pytest.raises(BadOption, match="there is no recovery point"):
        rows(made(node.parent / "pointless", 1).directory, "accounts", asOfTxn="latestPoint")


def test_partitions_are_chosen_and_replicated_tables_come_once(node: Path) -> None:
    """A table that all partitions hold is read in one of those that are wanted."""
    every = rows(node, "accounts", includeMetadata="true")
    assert rows(node, "accounts", partitions="1", includeMetadata="true") == [r for r in every if r["_partition_id"] == 1]
    assert (
        [row["name"] for row in rows(node, "rates")]
        == [row["name"] for row in rows(node, "rates", partitions="1")]
        == ["eur", "usd"]
    )
    with pytest.raises(BadOption, match="there is no 7; the log has 0, 1"):
        rows(node, "accounts", partitions="0,7")


def test_unknown_table_is_refused_by_the_near_name(node: Path) -> None:
    """The message has all names that there are."""
    with pytest.raises(NoSuchTable, match=r"no table account; did you mean state.accounts\? There are: accounts, prices, rates"):
        find_table(asked(node, "account"))


def test_read_that_ends_early_leaves_nothing(node: Path, scratch: Path) -> None:
    """The folder is gone before the first row: whoever reads may be killed behind it."""
    reading = read_state(tasks_of(node, "accounts")[0])
    assert next(reading).num_rows > 0
    assert list(scratch.iterdir()) == []


def test_damage_behind_the_plan_is_an_error_with_its_place(tmp_path: Path, scratch: Path) -> None:
    """P15: nothing is given out, no folder is left, and a second attempt says the same."""
    rig = made(tmp_path / "a")
    task = tasks_of(rig.directory, "accounts")[1]
    segment = damage.segments(rig.directory)[0]
    damage.flip(segment, 6 * 4096 + 80)
    for _ in range(2):
        with pytest.raises(Corrupt, match="offset 24576") as error:
            next(read_state(task))
        assert os.path.basename(segment) in str(error.value)
        assert "partition 1" in error.value.__notes__[0]
        assert list(scratch.iterdir()) == []
    with pytest.raises(Corrupt, match="offset 24576"):
        tasks_of(rig.directory, "accounts")


def test_divergence_is_an_error_that_names_the_call(tmp_path: Path, scratch: Path) -> None:
    """A replay that does something else than the log says gives no row."""
    rig = made(tmp_path / "a", 2)
    rig.restart()
    rig.batch(0, [(DRIFT, [0])])
    rig.close()
    with pytest.raises(Divergence, match=r"partition 0 at index \d+, transaction \d+"):
        rows(rig.directory, "accounts", partitions="0")
    assert list(scratch.iterdir()) == []


def test_executor_with_other_versions_is_refused(node: Path) -> None:
    """Another SQLite might give other rows without a trace."""
    task = tasks_of(node, "accounts")[0]
    other = replace(task, versions={**task.versions, "sqlite": "3.0.0"})
    with pytest.raises(OtherVersions, match="partition 0 has sqlite"):
        next(read_state(other))


def test_directory_in_a_store_is_read_like_a_folder(
    node: Path, tmp_path: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan and each task fetch what they read, and leave nothing; what is not there is refused."""
    memory = fs._MockFileSystem()
    fs.copy_files(str(node), "node", destination_filesystem=memory)
    for module in (filesystems, fetching):
        monkeypatch.setattr(module, "filesystem_of", lambda uri: (memory, uri.removeprefix("store://")))
    assert rows("store://node", "accounts", asOfTxn="latestPoint") == rows(node, "accounts", asOfTxn="latestPoint")
    assert list(scratch.iterdir()) == []
    for nowhere in (tmp_path / "nowhere", "store://nowhere"):
        with pytest.raises(BadOption, match="does not exist"):
            find_table(asked(nowhere, "a"))
    with pytest.raises(BadOption, match="given twice"):
        find_table(asked([node, f"file://{node}"], "accounts"))


def load(spark: SparkSession, directory: object, table: str, **options: Any) -> DataFrame:
    """The table by its name."""
    reader = spark.read.format("cmdlog").option("table", table)
    return reader.options(**{name: str(value) for name, value in options.items()}).load(str(directory))


def test_frame_has_the_rows_and_exact_types(spark: SparkSession, node: Path) -> None:
    """Schema and rows are those of the plan; fewer columns by a schema; a limit ends a read early, and no folder is left."""
    frame = load(spark, node, "state.prices", includeMetadata="true")
    assert [f"{c.name} {c.dataType.simpleString()}" for c in frame.schema.fields] == [
        "id bigint", "price decimal(10,8)", "_partition_id int", "_txn_id bigint",
    ]  # fmt: skip
    assert sorted(map(str, (row.asDict() for row in frame.collect()))) == sorted(
        map(str, rows(node, "prices", includeMetadata="true"))
    )
    reader = spark.read.format("cmdlog").option("table", "state.accounts")
    assert {tuple(row) for row in reader.schema("balance long, id long").load(str(node)).collect()} == {
        (row["balance"], row["id"]) for row in rows(node, "accounts")
    }
    assert len(frame.limit(1).collect()) == 1
    assert list(Path(str(spark.conf.get("spark.local.dir"))).rglob("cmdlog-state-*")) == []


def test_states_and_calls_join_in_sql(spark: SparkSession, node: Path) -> None:
    """Two moments of one table and the calls between them: what an account gained is what was deposited."""
    point = int(next(iter((node / "snapshots" / "points").iterdir())).stem)
    views = {
        "before": f"table 'state.accounts', asOfTxn '{point}'",
        "now": "table 'state.accounts'",
        "calls": f"startingTxn '{point + 1}', procedures 'deposit'",
    }
    for name, options in views.items():
        spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW {name} USING cmdlog OPTIONS (path '{node}', {options})")
    wrong = spark.sql("""
        SELECT now.id FROM now JOIN before ON now.id = before.id LEFT JOIN
          (SELECT int(get_json_object(params, '$.account')) AS id, sum(int(get_json_object(params, '$.amount'))) AS gained
           FROM calls GROUP BY 1) AS paid ON paid.id = now.id
        WHERE now.balance - before.balance IS DISTINCT FROM paid.gained
    """)
    assert wrong.collect() == []


def test_moment_stays_while_the_node_writes_on(spark: SparkSession, versions: Versions, tmp_path: Path) -> None:
    """A frame stands where its first action found the log, whatever is asked of it later; `asOfTxn` says the moment for all."""
    with cmdlog.open(tmp_path / "node", versions.load("shop_v1", SHOP), partitions=2, **SMALL) as opened:
        fill(opened)
        then = logged_calls(tmp_path / "node")[-1].txn_id
        frame = load(spark, tmp_path / "node", "state.accounts")
        first = sorted(frame.collect())
        for account in range(8):
            opened.call("deposit", account=account, amount=1)
        opened.node.take_snapshot()
        total = sum(row.balance for row in first)
        assert frame.selectExpr("sum(balance) AS total").collect()[0].total == total
        assert sorted(load(spark, tmp_path / "node", "state.accounts", asOfTxn=then).collect()) == first
        assert sum(row.balance for row in load(spark, tmp_path / "node", "state.accounts").collect()) == total + 8


def test_damage_fails_the_job_with_its_place(spark: SparkSession, tmp_path: Path) -> None:
    """P15: what the driver meets is an error of the job, and so is a table that is none."""
    rig = made(tmp_path / "a")
    with pytest.raises(PySparkException, match=r"no table acounts; did you mean state\.accounts"):
        load(spark, rig.directory, "state.acounts")
    frame = load(spark, rig.directory, "state.accounts")
    damage.flip(damage.segments(rig.directory)[0], 6 * 4096 + 80)
    with pytest.raises(
        PySparkException, match=r"seg-0000000000000001\.wal.*offset 24576|offset 24576.*seg-0000000000000001\.wal"
    ):
        frame.collect()
