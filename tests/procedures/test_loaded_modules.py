"""A bundle's modules stand in `sys.modules` only while one of them imports."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import LoadedModules

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
