"""`cmdlog spark` as an operator and a scheduler meet it: results, progress, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
import pytest
from pyarrow import parquet

from cmdlog.cli.app import run
from cmdlog.cli.demo.spark import Story, _compare
from cmdlog.cli.output import out
from cmdlog.wal.ids import make_txn_id
from replay.spark.feeding.input import CallFiles, uri_of
from tests.replay.ledgers import Versions, logged_calls
from tests.spark.spark_nodes import ACCOUNTS, SHOP, make_node

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def node(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stopped node."""
    return make_node(versions, tmp_path_factory.mktemp("shop") / "node")


@pytest.fixture
def command(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a command in this process: its exit code, and the JSON values that it printed."""

    def command(*arguments: str) -> tuple[int, list[dict[str, Any]]]:
        assert spark is not None
        monkeypatch.setattr(out, "json", False)
        monkeypatch.setattr(sys, "argv", ["cmdlog", "spark", *arguments])
        with pytest.raises(SystemExit) as ended:
            run()
        text = capsys.readouterr().out
        code = ended.value.code
        return (code if isinstance(code, int) else 0), [json.loads(line) for line in text.splitlines() if line.startswith("{")]

    return command


def test_rebuild_tells_progress_and_the_manifest(command: Any, node: Path, tmp_path: Path) -> None:
    """With --json the last line is the result, those before it say how far it is; a second run over OUT gives it again."""
    calls = logged_calls(node)
    moments = [str(calls[20].txn_id), str(calls[-1].txn_id)]
    arguments = ["rebuild", str(node), "--to", str(tmp_path / "out"), "--json", "--table", "accounts"]
    arguments += [f"--until={moment}" for moment in moments]
    code, lines = command(*arguments)
    assert code == 0
    assert [point["as_of_txn"] for point in lines[-1]["points"]] == moments
    assert [list(point["tables"]) for point in lines[-1]["points"]] == [["accounts"]] * 2
    progress = lines[-2]["progress"]
    assert (progress["job"], progress["calls"], progress["partitions_done"]) == ("rebuild", len(calls), 2)
    code, lines = command(*arguments)
    assert (code, [line["already"] for line in lines]) == (0, [True])
    code, lines = command(*arguments, "--accept-data-loss")
    assert (code, "finished rebuild, but you asked for one with other accept_data_loss" in lines[-1]["error"]["message"]) == (
        1,
        True,
    )
    code, lines = command("rebuild", str(node), "--to", str(tmp_path / "other"), "--json", "--table", "acounts")
    assert (code, lines[-1]["error"]["message"][:26]) == (2, "there is no table acounts;")


def test_backfill_shows_what_differs(command: Any, node: Path, versions: Versions, tmp_path: Path) -> None:
    """Counts by table, and the first call that ended otherwise, for people and as JSON."""
    versions.load("shop_cli", SHOP, factor="amount * 2")
    code, lines = command("backfill", str(node), "--app", "shop_cli:db", "--to", str(tmp_path / "out"), "--json")
    assert code == 0
    assert lines[-1]["changes"]["accounts"] == {"added": 0, "removed": 0, "changed": ACCOUNTS}
    firsts = [of["first"]["txn_id"] for of in lines[-1]["outcomes"].values()]
    first = next(call for call in logged_calls(node) if [type(value) for value in call.params] == [int, int])
    assert min(firsts, key=int) == str(first.txn_id)
    code, lines = command("backfill", str(node), "--app", "shop_cli:db", "--to", str(tmp_path / "again"), "--table", "rates")
    assert (code, lines) == (0, [])


def test_demo_proves_its_figures(command: Any, tmp_path: Path) -> None:
    """Query, rebuild and what-if agree with the model, and what it kept is there."""
    code, lines = command("demo", "--calls", "200", "--keep", str(tmp_path / "kept"), "--json")
    assert (code, lines[-1]["proved"]) == (0, True)
    assert 0 < sum(lines[-1]["running"]["votes"].values()) <= 200
    assert {"data", "half", "whatif"} <= {path.name for path in (tmp_path / "kept").iterdir()}


def test_demo_refuses_a_session_that_cannot_be_before_it_makes_calls(command: Any, tmp_path: Path) -> None:
    """A setting that is none, and a master that is not there."""
    for option, why in (
        ("--conf=fast", "--conf takes KEY=VALUE, not 'fast'"),
        ("--master=spark://127.0.0.1:9", "no Spark master"),
    ):
        code, lines = command("demo", "--keep", str(tmp_path / "kept"), option, "--json")
        assert (code != 0, len(lines)) == (True, 1)
        assert lines[0]["error"]["message"].startswith(why)
        assert not (tmp_path / "kept").exists()


def test_beginning_of_the_log_is_compared_by_partition() -> None:
    """A vote that is missing in front of the last one, or is counted twice, fails the demo."""
    ids: list[int] = [make_txn_id(millis=millis, counter=0, partition=millis % 2) for millis in range(1, 9)]
    story = Story(ids, [(1, 1)] * len(ids))
    assert _compare({0: (3, ids[5]), 1: (4, ids[6])}, story)["proved"]
    assert not _compare({0: (2, ids[5]), 1: (4, ids[6])}, story)["proved"]
    assert not _compare({0: (3, ids[5]), 1: (5, ids[6])}, story)["proved"]


def test_calls_of_a_feed_are_a_path_or_a_uri(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A path is one of this machine, whatever Spark's own file system is; what has a scheme goes to Spark as it is."""
    monkeypatch.chdir(tmp_path)
    assert uri_of("calls.json") == f"file://{tmp_path}/calls.json"
    for uri in ("file:///data/calls.parquet", "s3a://bucket/calls", "hdfs://name:8020/calls"):
        assert uri_of(uri) == uri


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes some seconds to start; bad input must not wait for it."""

    def refuse(*_: object, **__: object) -> SparkSession:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr("cmdlog.cli.spark.spark_session", refuse)


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("none", None, "{path} does not exist"),
        ("empty/", None, "{path} contains no file"),
        ("text.json", b"procedure,params\n", "{path} does not hold JSON lines: its first line is not a JSON value"),
        ("number.json", b"\n12\n", "{path} does not hold JSON lines: its first line is not an object"),
        ("columns.json", b'{"proc": "a", "params": {}}\n', "{path} has no column procedure; its columns are proc, params"),
        ("text.parquet", b"procedure,params\n", "{path} is not a Parquet file"),
    ],
)
@pytest.mark.usefixtures("no_spark")
def test_calls_that_are_none_are_told_before_spark_starts(
    command: Any, tmp_path: Path, name: str, content: bytes | None, why: str
) -> None:
    """The path and what is wrong with it, in one line, and nothing is left."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    elif name.endswith("/"):
        path.mkdir()
    code, lines = command("feed", str(path), "--job", "x", "--to", str(tmp_path / "fx"), "--json")
    assert (code, len(lines)) == (2, 1)
    assert lines[0]["error"]["message"].startswith(why.format(path=path))
    assert not list(tmp_path.glob("fx*"))


@pytest.mark.usefixtures("no_spark")
def test_bad_arguments_are_told_before_spark_starts(command: Any, node: Path, tmp_path: Path) -> None:
    """A moment that is none, a directory that is not there, an output that holds something, each by name."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not lose")
    calls = tmp_path / "calls.json"
    calls.write_text('{"procedure": "a", "params": {}}\n')
    for arguments, why in (
        (("rebuild", str(node), "--to", f"{tmp_path}/out", "--until", "soon"), "soon"),
        (("backfill", str(node), "--app", "tests.node.apps.faulty:db", "--to", f"{tmp_path}/out", "--until", "soon"), "soon"),
        (("rebuild", f"{tmp_path}/nobody", "--to", f"{tmp_path}/out"), f"{tmp_path}/nobody"),
        (("backfill", f"{tmp_path}/nobody", "--app", "tests.node.apps.faulty:db", "--to", f"{tmp_path}/out"), "nobody"),
        (("rebuild", str(node), "--to", f"{tmp_path}/full"), f"{tmp_path}/full is not empty"),
        (("feed", str(calls), "--job", "x", "--to", f"{tmp_path}/full"), f"{tmp_path}/full is not empty"),
        (("feed", str(calls), "--job", "x", "--to", f"{tmp_path}/out", "--url", "here"), "'here' is not a server address"),
    ):
        code, lines = command(*arguments, "--json")
        assert (code != 0, len(lines)) == (True, 1), arguments
        assert why in lines[0]["error"]["message"], arguments
    assert not list(tmp_path.glob("*.unfinished"))


@pytest.mark.parametrize("damage", ["half", "page"])
def test_damaged_file_of_calls_is_one_error(command: Any, tmp_path: Path, damage: str) -> None:
    """Found before Spark starts, or by Spark when it reads the rows: the file is named, and no traceback is told."""
    (tmp_path / "calls").mkdir()
    bad = tmp_path / "calls" / "b.parquet"
    for path in (tmp_path / "calls" / "a.parquet", bad):
        parquet.write_table(pyarrow.table({"procedure": ["a"] * 9, "params": ["{}"] * 9}), path)
    data = bad.read_bytes()
    bad.write_bytes(b"PAR1 half" if damage == "half" else data[:4] + b"\xff" * 60 + data[64:])
    code, lines = command("feed", f"{tmp_path}/calls", "--job", "x", "--to", f"{tmp_path}/out", "--json")
    assert (code, len(lines)) == (2 if damage == "half" else 1, 1)
    assert str(bad) in lines[0]["error"]["message"]
    assert "Traceback" not in lines[0]["error"]["message"]
    assert not list(tmp_path.glob("out*"))


def test_params_of_json_lines_come_as_they_are_written(spark: SparkSession, tmp_path: Path) -> None:
    """An object is taken as text: no key of another row, no number by way of a float. A name with a pattern's signs is a name."""
    written = ['{"a": 99999999999999999999}', '{"b": 0.12345678901234567890, "c": null}', "{}"]
    rows = [f'{{"procedure": "x", "params": {params}}}\n' for params in written]
    path = tmp_path / "[odd] *.json"
    path.write_text("".join(rows) + '{"procedure": "x"}\n')
    found = [row.params for row in CallFiles.at(path).read(spark).collect()]
    assert found == [*written, None]


def test_feed_says_that_it_waits_for_the_server(command: Any, tmp_path: Path) -> None:
    """The lines of progress name the reason while the server is down; behind the limit one error names it and how to go on."""
    calls = tmp_path / "calls.json"
    calls.write_text('{"procedure": "a", "params": {}}\n')
    arguments = ["feed", str(calls), "--job", "x", "--to", f"{tmp_path}/out", "--url", "http://127.0.0.1:9", "--json"]
    code, lines = command(*arguments, "--give-up-after-s", "0.3")
    told = [line["progress"].get("waiting", "") for line in lines[:-1]]
    assert any(reason.startswith("server unreachable, retrying: ") for reason in told)
    assert code == 1
    assert "the server at http://127.0.0.1:9 does not name its cluster: no answer for 0.3 s" in lines[-1]["error"]["message"]
    assert "--give-up-after-s" in lines[-1]["error"]["hint"]
