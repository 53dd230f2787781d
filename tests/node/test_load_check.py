"""New code of an embedded program is loaded once, in another process, before anything of it is logged."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from structlog.testing import capture_logs

import cmdlog
from cmdlog.child_process import ChildProcess
from cmdlog.node import node
from cmdlog.node.deploying import code_trial, load_check
from cmdlog.node.deploying.load_check import NotReplayable
from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle, content_of, hash_of
from tests.node.deployed import make_version

IN_A_BUNDLE = 'if "__file__" not in globals(): '


@pytest.fixture(autouse=True)
def nothing_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other test has had the same code loaded."""
    monkeypatch.setattr(load_check, "_loaded", set())


def refuse_to_start(*_: Any, **__: Any) -> None:
    """Stands for a process."""
    raise AssertionError("a process was started")


def other_hash(db: Database, target: str | None) -> Bundle:
    """The same modules under another name."""
    bundle = capture_bundle(db, target)
    content = {**content_of(bundle), "main": "another"}
    return Bundle(**content, hash=hash_of(content))


def hit(directory: Path, db: Database) -> int:
    """One call in an opened directory."""
    with cmdlog.open(directory, db, partitions=1) as opened:
        answer: int = opened.call("hit", id=1)
    return answer


@pytest.mark.parametrize(
    ("begin", "why"),
    [
        ("HERE = __file__", "NameError.*__file__"),
        (IN_A_BUNDLE + "raise KeyboardInterrupt('pressed')", "ended its import: KeyboardInterrupt: pressed"),
    ],
    ids=["error", "interrupt"],
)
@pytest.mark.slow
def test_code_that_only_the_program_can_run_is_not_logged(tmp_path: Path, begin: str, why: str) -> None:
    """The error says what failed; the directory takes other code, and then refuses this one in its place."""
    for _ in range(2):
        with pytest.raises(NotReplayable, match=why):
            cmdlog.open(tmp_path / "data", make_version(tmp_path, 1, tables=begin)[0], partitions=1)
        with cmdlog.open(tmp_path / "data", make_version(tmp_path, 2)[0], partitions=1) as opened:
            assert opened.call("hit", id=1) == 2
            assert opened.status()["catalog_version"] == 1


@pytest.mark.slow
def test_code_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither again for another directory, nor for one that has it."""
    db = make_version(tmp_path, 1)[0]
    assert hit(tmp_path / "data", db) == 1
    monkeypatch.setattr(load_check, "ChildProcess", refuse_to_start)
    assert hit(tmp_path / "other", db) == 1
    monkeypatch.setattr(load_check, "_loaded", set())
    assert hit(tmp_path / "data", db) == 1
    with pytest.raises(AssertionError, match="started"):
        cmdlog.open(tmp_path / "third", db)


@pytest.mark.slow
def test_modules_that_the_log_has_are_not_judged_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code that a version without this check has logged is opened by it, though it calls the same modules another version."""
    db = make_version(tmp_path, 1, tables="HERE = __file__")[0]
    with monkeypatch.context() as before:
        before.setattr(code_trial, "check_loads", lambda bundle, timeout_s: None)
        assert hit(tmp_path / "data", db) == 1
    monkeypatch.setattr(node, "capture_bundle", other_hash)
    with cmdlog.open(tmp_path / "data", db) as opened:
        assert opened.status()["catalog_version"] == 2
    with pytest.raises(NotReplayable):
        cmdlog.open(tmp_path / "other", db)


def test_an_import_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that serves at import would be waited for without end."""
    monkeypatch.setattr(ChildProcess, "finish", lambda _child, *, patience_s: None)
    with pytest.raises(NotReplayable, match="not ready after 60 s: look at the load of the machine and at its disk"):
        cmdlog.open(tmp_path / "data", make_version(tmp_path, 1)[0])


def test_where_no_process_starts_nothing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter inside another program may have no executable; the log says that the code was not checked."""
    db = make_version(tmp_path, 1)[0]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with capture_logs() as logged:
        assert hit(tmp_path / "data", db) == 1
    assert [(entry["event"], entry["reason"]) for entry in logged if entry["event"] == "code_not_checked"] == [
        ("code_not_checked", "exit code 1")
    ]


PROMPT: Final = """
from sqlalchemy import Column, Integer
from cmdlog import Database
db = Database("typed")
db.table("t", Column("id", Integer, primary_key=True), partition_by="id")
@db.procedure(partition_by="id")
def hit(tx, id: int) -> int:
    return id
"""


@pytest.mark.slow
def test_code_of_a_prompt_is_opened_with_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log cannot hold it, so later code cannot replay its calls: the program's own line is warned. A module is not."""
    prompt = ModuleType("prompt")
    monkeypatch.setitem(sys.modules, "prompt", prompt)
    exec(PROMPT, vars(prompt))  # noqa: S102 - as a prompt does
    with pytest.warns(UserWarning, match="database 'typed' was declared at a prompt .* import .* from a module") as warned:
        assert hit(tmp_path / "data", prompt.db) == 1
    assert [one.filename for one in warned] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hit(tmp_path / "other", make_version(tmp_path, 1)[0]) == 1
