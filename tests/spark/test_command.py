"""`cmdlog spark` as an operator and a scheduler meet it: results, progress, exit codes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cmdlog.cli.app import run
from cmdlog.cli.output import out
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
    assert sum(lines[-1]["running"]["calls"].values()) > 0
    assert lines[-1]["rebuild"]["accounts"] == 800
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


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark takes some seconds to start; bad input must not wait for it."""

    def refuse(*_: object, **__: object) -> SparkSession:
        raise AssertionError("Spark was asked for")

    monkeypatch.setattr("cmdlog.cli.spark.spark_session", refuse)


@pytest.mark.usefixtures("no_spark")
def test_bad_arguments_are_told_before_spark_starts(command: Any, node: Path, tmp_path: Path) -> None:
    """A moment that is none, a directory that is not there, an output that holds something, each by name."""
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not lose")
    for arguments, why in (
        (("rebuild", str(node), "--to", f"{tmp_path}/out", "--until", "soon"), "soon"),
        (("backfill", str(node), "--app", "tests.node.apps.faulty:db", "--to", f"{tmp_path}/out", "--until", "soon"), "soon"),
        (("rebuild", f"{tmp_path}/nobody", "--to", f"{tmp_path}/out"), f"{tmp_path}/nobody"),
        (("backfill", f"{tmp_path}/nobody", "--app", "tests.node.apps.faulty:db", "--to", f"{tmp_path}/out"), "nobody"),
        (("rebuild", str(node), "--to", f"{tmp_path}/full"), f"{tmp_path}/full is not empty"),
    ):
        code, lines = command(*arguments, "--json")
        assert (code != 0, len(lines)) == (True, 1), arguments
        assert why in lines[0]["error"]["message"], arguments
    assert not list(tmp_path.glob("*.unfinished"))
