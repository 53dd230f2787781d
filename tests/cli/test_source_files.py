"""Folders that are watched: those of the application's modules, also where the program cannot be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmdlog.cli.server.source_files import find_folders

APP = """
from sqlalchemy import Column, Integer
from cmdlog import Database
import watched_parts.one

db = Database("watched")
db.table("t", Column("id", Integer, primary_key=True), partition_by="id")


@db.procedure(partition_by="item")
def put(tx, item: int) -> None: ...
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An application with a package beside it, in the current folder."""
    parts = tmp_path / "watched_parts"
    parts.mkdir()
    (parts / "__init__.py").touch()
    (parts / "one.py").touch()
    (tmp_path / "watched_app.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("watched_")]:
        del sys.modules[name]


def test_folders_of_all_modules_are_found(folder: Path) -> None:
    """Those of the bundle."""
    assert find_folders("watched_app:db") == [str(folder), str(folder / "watched_parts")]


@pytest.mark.parametrize("source", ["def (", "import nothing_of_that_name", "raise ValueError"])
def test_folders_of_a_program_that_fails_are_found(folder: Path, source: str) -> None:
    """Its own, that of the module that fails, and that of what was imported before."""
    (folder / "watched_parts" / "one.py").write_text(source)
    found = find_folders("watched_app:db")
    assert found[0] == str(folder)
    assert str(folder / "watched_parts") in found
