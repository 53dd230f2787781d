"""An application's own modules are those that it reaches by import, with source that a log can keep."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from procedures.errors import BundleError
from procedures.source.own_modules import folders_of, own_modules, source_of


@pytest.fixture
def application(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A folder in which imports find modules."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def write(folder: Path, **texts: str) -> None:
    """Modules of the package `shelf`, and beside it."""
    (folder / "shelf").mkdir(exist_ok=True)
    (folder / "shelf" / "__init__.py").write_text("")
    for name, text in texts.items():
        (folder / f"{name.replace('__', '/')}.py").write_text(text)


def test_imports_are_followed_to_what_is_the_applications(application: Path) -> None:
    """Packages, siblings and relative imports are its own; the standard library and installed packages are not."""
    write(application, shelf__app="import json, orjson\nfrom . import rows\nimport beside\n", shelf__rows="", beside="X = 1\n")
    import_module("shelf.app")
    found = own_modules("shelf.app")
    assert list(found) == ["beside", "shelf", "shelf.app", "shelf.rows"]
    assert set(folders_of(found)) == {application.resolve()}
    for name in found:
        del sys.modules[name]


def test_module_without_source_is_refused(tmp_path: Path) -> None:
    """A replay could not run it; what was typed at a prompt has none, and says so elsewhere."""
    module = ModuleType("compiled")
    module.__file__ = str(tmp_path / "compiled.pyc")
    with pytest.raises(BundleError, match="module compiled has no source"):
        source_of(module)
    assert source_of(ModuleType("typed")) == ""


def test_module_that_was_not_imported_is_refused() -> None:
    """By its name."""
    with pytest.raises(BundleError, match="'no_such_module_here' is not imported"):
        own_modules("no_such_module_here")
