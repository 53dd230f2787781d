"""`cmdlog migrate` and `serve --migrate`, as a user calls them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import orjson
import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.output import out
from cmdlog.cli.server import deploy
from cmdlog.node.migrating.offline_plan import NoCode
from procedures.errors import MigrationFailed
from tests.cli.member_server import run
from tests.node.apps import migrating
from tests.node.migrating.test_table_changes import filled, opened, rows, wanted
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.slow
APP = "tests.node.apps.migrating:"


@pytest.fixture(autouse=True)
def for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until --json is given."""
    monkeypatch.setattr(out, "json", False)


def last_line(capsys: pytest.CaptureFixture[str]) -> Any:
    """The last line of the output."""
    return orjson.loads(capsys.readouterr().out.splitlines()[-1])


def test_plan_then_run_then_nothing_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan has SQL, rows and seconds of every step; people see the same in lines; a second run has nothing to do."""
    filled(tmp_path)
    run("migrate", APP + "third", "--data", str(tmp_path), "--plan")
    text = capsys.readouterr().out
    assert "2 of 2 partitions change" in text
    assert "the code of version 1 cannot run after this" in text
    run("migrate", APP + "third", "--data", str(tmp_path), "--plan", "--json")
    plan = last_line(capsys)
    assert (plan["version"], plan["former_version"], len(plan["partitions"])) == (2, 1, 2)
    assert {step["migration"] for step in plan["partitions"][0]["steps"]} == {"0001_split_name", "0002_finer_money"}
    assert {"sql", "rows", "seconds", "migration"} == plan["partitions"][0]["steps"][0].keys()
    run("migrate", APP + "third", "--data", str(tmp_path), "--json")
    changed = last_line(capsys)["changed"]
    assert [migration["name"] for migration in changed["1"]["migrations"]] == ["0001_split_name", "0002_finer_money"]
    run("migrate", APP + "third", "--data", str(tmp_path), "--json")
    assert last_line(capsys)["changed"] == {}
    node = opened(tmp_path, migrating.third)
    assert rows(node) == wanted(3)
    node.close()


def test_plan_of_a_directory_without_code_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first start made the directory, and ended before it had anything to log."""
    monkeypatch.setattr("cmdlog.node.node.make_boot", raise_planted)
    with pytest.raises(OSError, match="planted"):
        opened(tmp_path, migrating.third)
    with pytest.raises(NoCode, match="holds no code yet, so no tables") as refused:
        run("migrate", APP + "third", "--data", str(tmp_path), "--plan")
    assert "first start" in refused.value.hint


def raise_planted(*_given: Any, **_named: Any) -> None:
    """In place of a step of a start."""
    raise OSError("planted")


def test_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """No directory, a migration that raises, a server that was not asked to migrate: nothing changes."""
    with pytest.raises(CommandFailed, match="is no node directory"):
        run("migrate", APP + "third", "--data", str(tmp_path / "none"))
    data = tmp_path / "data"
    filled(data)
    with pytest.raises(MigrationFailed, match="not on partition 1"):
        run("migrate", APP + "raising", "--data", str(data))
    serve = [sys.executable, "-m", "cmdlog", "serve", APP + "second", "--data", str(data), "--port", "0"]
    ended = subprocess.run(serve, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert "migrations that the tables have not been through: 0001_split_name" in ended.stderr
    node = opened(data, migrating.first)
    assert rows(node) == wanted(1)
    node.close()


def test_a_server_is_asked_as_by_a_deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same order, with leave to pause calls; a directory beside it is refused."""
    asked = list[Any]()
    monkeypatch.setattr(deploy, "deploy", lambda *given, **options: asked.append((given, options)))
    run("migrate", "shop:db", "--url", "http://h:1", "--plan")
    assert asked == [(("shop:db", "http://h:1", None, None), {"migrate": True, "plan": True})]
    with pytest.raises(CommandFailed, match="two places"):
        run("migrate", "shop:db", "--url", "http://h:1", "--data", str(tmp_path))
