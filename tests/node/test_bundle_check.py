"""The check of a bundle in a process of its own, and what a bundle looks like as files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.node.deploying.bundle_check import check_bundle, find_problem, write_modules
from cmdlog.node.deploying.deploy_errors import BundleRefused
from procedures.code.bundle import capture_bundle
from procedures.samples import bank
from tests.node.deployed import make_version


def test_modules_are_written_as_they_are_imported(tmp_path: Path) -> None:
    """Packages as folders, other modules as files."""
    bundle = replace(make_version(tmp_path, 1)[1], modules={"shop": "a", "shop.sub": "b", "one": "c"}, packages=["shop"])
    write_modules(bundle, tmp_path / "out")
    found = {str(path.relative_to(tmp_path / "out")): path.read_text() for path in (tmp_path / "out").rglob("*.py")}
    assert found == {"shop/__init__.py": "a", "shop/sub.py": "b", "one.py": "c"}


def test_a_bundle_that_can_be_served_has_no_problem(tmp_path: Path) -> None:
    """Of an application and of a sample of this framework."""
    assert find_problem(make_version(tmp_path, 1)[1]) == ("tally", "")
    assert find_problem(capture_bundle(bank.db)) == (bank.db.name, "")


def test_what_a_bundle_states_must_be_what_it_declares(tmp_path: Path) -> None:
    """Numbers of procedures come from the statement."""
    bundle = make_version(tmp_path, 1)[1]
    other = replace(make_version(tmp_path, 2)[1], procedures=bundle.procedures)
    assert "BundleForged" in find_problem(other)[1] or "hash" in find_problem(other)[1]


@pytest.mark.slow
def test_a_check_prints_what_it_likes(tmp_path: Path) -> None:
    """The application's own output is not the answer; another database is refused."""
    bundle = make_version(tmp_path, 1, last='print("{}")')[1]
    check_bundle(bundle, database="tally")
    with pytest.raises(BundleRefused, match="belongs to database 'bank'"):
        check_bundle(bundle, database="bank")
