"""The main module of a program has the name by which its other modules import it."""

from __future__ import annotations

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
