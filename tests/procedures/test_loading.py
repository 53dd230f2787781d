"""Modules that are loaded from a log end where they would begin the program."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import cmdlog
from procedures.code.bundle import Bundle, capture_bundle
from procedures.code.loaded_modules import load_bundle
from procedures.errors import BundleError
from procedures.source.loading import is_loading

HEAD = """
import sys
from sqlalchemy import Column, Integer, bindparam, insert
import cmdlog

db = cmdlog.Database("single")
rows = db.table("rows", Column("number", Integer, primary_key=True), partition_by="number")

@db.procedure(partition_by="number")
def add(tx, number: int) -> int:
    tx.execute(insert(rows).values(number=bindparam("n")), n=number)
    return number + LATER
"""
LATER = "LATER = 1\n"


def captured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, *, begins: str) -> Bundle:
    """A module that declares these, and whose file, once it is captured, also begins the program."""
    file = tmp_path / "one_file.py"
    file.write_text(declared)
    module = ModuleType("one_file")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "one_file", module)
    exec(compile(declared, str(file), "exec"), module.__dict__)  # noqa: S102 - the application of the test
    file.write_text(declared + begins)
    return capture_bundle(module.db, "one_file:db")


@pytest.mark.parametrize(
    "begins",
    [
        "shop = cmdlog.open('data', db)\nshop.close()\nAFTER = 1\n",
        "shop = cmdlog.open('data', db)\nshop.call('add', number=1)\nraise AssertionError\n",
        "with cmdlog.open('data', db) as shop:\n    raise AssertionError\n",
        "try:\n    cmdlog.open('data', db).call('add', number=1)\nexcept Exception:\n    pass\nraise AssertionError\n",
        "sys.exit(cmdlog.open('data', db).invoke('add', {'number': 1}).value)\n",
        "sys.exit(2)\n",
        "import threading\nof = threading.Thread(target=lambda: cmdlog.open('data', db).close())\nof.start()\nof.join()\n",
    ],
    ids=["kept", "called", "with", "caught", "invoked", "exit", "thread"],
)
def test_a_program_of_one_file_does_not_begin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str) -> None:
    """Its tables and procedures are there, its directory is not made."""
    monkeypatch.chdir(tmp_path)
    bundle = captured(tmp_path, monkeypatch, HEAD + LATER, begins=begins)
    assert list(load_bundle(bundle).procedures) == ["add"]
    assert not (tmp_path / "data").exists()
    assert not is_loading()


def test_a_database_is_open_outside_of_a_load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the statements of modules that are loaded open nothing."""
    monkeypatch.chdir(tmp_path)
    load_bundle(captured(tmp_path, monkeypatch, HEAD + LATER, begins="shop = cmdlog.open('data', db)\n"))
    with cmdlog.open("data", sys.modules["one_file"].db, partitions=1) as shop:
        assert shop.call("add", number=1) == 2


def test_procedures_that_are_declared_too_late_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle states its procedures; one that lacks some would run others under their numbers."""
    late = HEAD.partition("@db.procedure")
    bundle = captured(tmp_path, monkeypatch, "".join(late) + LATER, begins="")
    begun = late[0] + "cmdlog.open('data', db).status()\n" + "".join(late[1:])
    (tmp_path / "one_file.py").write_text(begun)
    bundle = capture_bundle(sys.modules["one_file"].db, "one_file:db")
    with pytest.raises(BundleError, match="states the procedures add, and its code declares none; declare them before"):
        load_bundle(bundle)


@pytest.mark.parametrize(
    ("begins", "why"),
    [
        ("cmdlog.open(sys.argv[9], db)\n", r"IndexError\('list index out of range'\) \(one_file\.py, line 14\)"),
        ("def divide():\n    return 1 / 0\n\ndivide()\n", r"ZeroDivisionError\('division by zero'\) \(one_file\.py, line 15\)"),
        ("del db\n", r"has no attribute 'db'\"\)$"),
    ],
)
def test_what_raises_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: str, why: str) -> None:
    """The innermost line of the application; none where the module ended well."""
    monkeypatch.setattr(sys, "argv", ["one_file.py"])
    bundle = captured(tmp_path, monkeypatch, HEAD + LATER, begins=begins)
    with pytest.raises(BundleError, match=why):
        load_bundle(bundle)
