"""A program whose files were changed after it imported them is not opened."""

from __future__ import annotations

import importlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import cmdlog
from procedures.code.running_code import check_running_code
from procedures.errors import BundleError

NAME: Final = "shop_that_changes"
SHOP: Final = """
from sqlalchemy import Column, Integer
from procedures import Database

db = Database("shop")
rows = db.table("rows", Column("id", Integer, primary_key=True), partition_by="id")

def fee(n):
    return n + 1 if n in {1, 2, 3} else (lambda m: m * 2)(n)

@db.procedure(partition_by="id")
def price(tx, id: int) -> int:
    return fee(id)
"""
CHANGES: Final = {
    "a constant": ("n + 1 if", "n + 2 if"),
    "its type": ("n + 1 if", "n + 1.0 if"),
    "a lambda in it": ("m * 2", "m * 3"),
    "a name": ("fee(id)\n", "abs(id)\n"),
    "a default set": ("{1, 2, 3}", "{1, 2, 4}"),
}
SAME: Final = {
    "a comment above": ("def fee", "# about fees\ndef fee"),
    "the end": ("return fee(id)\n", "return fee(id)\n\nMORE = 1\n"),
    "a broken file": ("def fee(n):", "def fee(n:"),
}


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """An application in a file, imported."""
    (tmp_path / f"{NAME}.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    yield importlib.import_module(NAME)
    del sys.modules[NAME]


def change(shop: ModuleType, before: str, after: str) -> None:
    """The file is edited."""
    assert before in SHOP
    Path(str(shop.__file__)).write_text(SHOP.replace(before, after))


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_file_is_refused(what: str, shop: ModuleType, tmp_path: Path) -> None:
    """Whatever part of a function differs; and nothing is made on the disk."""
    for _ in range(100):  # the interpreter specializes what runs often
        shop.fee(2)
    check_running_code(shop.db)
    change(shop, *CHANGES[what])
    with pytest.raises(BundleError, match=rf"{NAME}\.py was changed after this program imported it: {NAME}\.(fee|price) is"):
        cmdlog.open(tmp_path / "data", shop.db)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("what", SAME)
def test_what_changes_no_function_is_no_change(what: str, shop: ModuleType) -> None:
    """Other lines, comments; and a file that does not compile says nothing."""
    change(shop, *SAME[what])
    check_running_code(shop.db)


def test_the_order_of_a_set_of_constants_is_no_change(shop: ModuleType) -> None:
    """It depends on the hash seed of the process that compiled the file, and on which texts were known to it."""
    change(shop, "{1, 2, 3}", "{8, 0, 16}")  # one place of the hash table for all: the order is that of insertion
    orders = {repr(frozenset(order)): frozenset(order) for order in itertools.permutations((0, 8, 16))}
    assert len(orders) > 1
    for other in orders.values():
        consts = tuple(other if isinstance(value, frozenset) else value for value in shop.fee.__code__.co_consts)
        shop.fee.__code__ = shop.fee.__code__.replace(co_consts=consts)
        check_running_code(shop.db)


def test_code_of_no_module_is_left_alone(shop: ModuleType) -> None:
    """A database that was loaded from a log, say: there is no file beside it that could have changed."""
    del sys.modules[NAME]
    try:
        check_running_code(shop.db)
    finally:
        sys.modules[NAME] = shop


def test_other_loaders_are_left_alone(shop: ModuleType) -> None:
    """A tool that rewrites modules as they are imported makes other functions of the same file."""
    change(shop, *CHANGES["a constant"])

    class Rewriting(importlib.machinery.SourceFileLoader):
        pass

    shop.__loader__ = Rewriting(NAME, str(shop.__file__))
    check_running_code(shop.db)


@pytest.mark.slow
def test_a_program_of_one_file_is_compared_too(tmp_path: Path) -> None:
    """Its module has no import of its own; and what a decorator made of a function is not compared."""
    program = tmp_path / "program.py"
    program.write_text(
        "import functools, sys, pathlib, cmdlog\n"
        + SHOP
        + "\n@functools.cache\ndef cached(n):\n    return n\n"
        + "\nif __name__ == '__main__':\n"
        + "    with cmdlog.open(sys.argv[1], db) as opened:\n        print(opened.call('price', id=1))\n"
        + "    pathlib.Path(__file__).write_text(pathlib.Path(__file__).read_text().replace('n + 1', 'n + 5'))\n"
        + "    try:\n        cmdlog.open(sys.argv[1] + '2', db)\n    except Exception as error:\n        print(error)\n"
    )
    command = [sys.executable, str(program), str(tmp_path / "data")]
    environment = {"PYTHONPATH": str(Path(__file__).resolve().parents[2])}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    assert done.stdout.splitlines()[0] == "2"
    assert "was changed after this program imported it: __main__.fee" in done.stdout
