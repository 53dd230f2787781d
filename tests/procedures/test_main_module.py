"""The main module of a program has the name by which its other modules import it."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

import pytest

from procedures.source.main_module import importable_name, is_main, package_of_main, share_main


def main_module(monkeypatch: pytest.MonkeyPatch, *, file: str | None = None, spec: str | None = None) -> ModuleType:
    """A module that stands as the program's main one."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(spec, None) if spec else None
    if file:
        main.__file__ = file
    monkeypatch.setitem(sys.modules, "__main__", main)
    return main


@pytest.mark.parametrize(
    ("started", "name", "package"),
    [
        ({"spec": "pkg.main"}, "pkg.main", "pkg"),
        ({"spec": "pkg.__main__"}, "pkg.__main__", "pkg"),
        ({"file": "shop.py"}, "shop", ""),
        ({"file": "inner/shop.py"}, "", ""),
        ({"file": "two words.py"}, "", ""),
        ({"file": "random.py"}, "", ""),
        ({"file": "shop"}, "", ""),
        ({}, "", ""),
    ],
)
def test_name_is_the_one_that_an_import_finds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: dict[str, str], name: str, package: str
) -> None:
    """Of `python -m` its own; of a script the name of its file, unless no import would find that."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    file = started.get("file")
    main_module(monkeypatch, file=str(tmp_path / file) if file else None, spec=started.get("spec"))
    assert (importable_name(), package_of_main()) == (name, package)


def test_module_that_declares_is_found_under_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the main module is shared, and a module that is imported already stays."""
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    main = main_module(monkeypatch, file=str(tmp_path / "shop_of_test.py"))
    monkeypatch.delitem(sys.modules, "shop_of_test", raising=False)
    share_main({"another": "namespace"})
    assert "shop_of_test" not in sys.modules
    share_main(vars(main))
    assert is_main(sys.modules["shop_of_test"])
    other = ModuleType("shop_of_test")
    monkeypatch.setitem(sys.modules, "shop_of_test", other)
    share_main(vars(main))
    assert sys.modules["shop_of_test"] is other
    assert not is_main(other)
    assert not is_main(None)


SPAWNING = """
import multiprocessing
import sys

from procedures import Database
from procedures.code.bundle import capture_bundle
from procedures.execution.outcome_bodies import outcome_of

db = Database("spawned")


class Lost(Exception):
    pass


@db.procedure(partition_by="id")
def look(tx, id: int) -> int:
    return id


def tell() -> None:
    bundle = capture_bundle(db)
    print(bundle.target, bundle.hash, "look" in bundle.modules["__main__"], outcome_of(KeyError(Lost))[1].decode())


if __name__ == "__main__":
    tell()
    sys.stdout.flush()
    for method in ("spawn", "forkserver"):
        process = multiprocessing.get_context(method).Process(target=tell)
        process.start()
        process.join()
"""


@pytest.mark.slow
def test_main_module_of_a_process_that_it_starts_is_the_same(tmp_path: Path) -> None:
    """`multiprocessing` runs it again, as `__mp_main__`: its code, and what it raises, have the same names."""
    (tmp_path / "spawning.py").write_text(SPAWNING)
    ran = subprocess.run([sys.executable, "spawning.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    first, *others = ran.stdout.splitlines()
    assert first.startswith("__main__:db ")
    assert "True" in first
    assert "__main__.Lost" in first
    assert others == [first, first]
