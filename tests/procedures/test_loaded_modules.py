"""A bundle's modules stand in `sys.modules` only while one of them imports."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import pytest

from procedures.code.bundle import DIALECT, Bundle, content_of, hash_of
from procedures.code.loaded_modules import LoadedModules, load_bundle
from procedures.errors import BundleError

MODULES = {
    "pack": "import pack.part as part\nVALUE = 1\n",
    "pack.part": "import sys\nSEEN = 'pack' in sys.modules\n\ndef late():\n    import pack.other\n    return pack.other.VALUE\n",
    "pack.other": "from pack import VALUE\n",
}


def test_modules_displace_others_for_their_import_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for an import inside a function, long after; what had their names has them again."""
    ours = ModuleType("pack")
    monkeypatch.setitem(sys.modules, "pack", ours)
    loaded = LoadedModules(Bundle("pack:db", MODULES, ["pack"], sql={}, procedures=[], hash="")).load("pack")
    assert loaded is not ours
    assert loaded.part.SEEN
    assert loaded.part.late() == 1
    assert sys.modules["pack"] is ours
    assert "pack.part" not in sys.modules


def test_bundle_of_a_newer_dialect_is_refused() -> None:
    """Its statements may mean something else there, so the code is not even loaded: the error names bundle and remedy."""
    newer = Bundle("pack:db", {"pack": "raise SystemExit\n"}, ["pack"], sql={}, procedures=[], hash="", dialect=DIALECT + 1)
    with pytest.raises(BundleError, match="pack:db was made by a newer version of cmdlog; use that version"):
        load_bundle(replace(newer, hash=hash_of(content_of(newer))))
