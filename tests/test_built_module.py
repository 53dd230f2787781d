"""Modules in C: what counts as one, and what is left alone."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from cmdlog.built_module import SWITCH, built_module


def test_a_module_of_this_interface_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was built of other sources, is missing, or is switched off is none."""
    monkeypatch.delenv(SWITCH, raising=False)
    made = ModuleType("made_for_a_test")
    made.INTERFACE = 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "made_for_a_test", made)
    assert built_module("made_for_a_test", 3) is made
    assert built_module("made_for_a_test", 4) is None
    assert built_module("made_by_nobody", 3) is None
    monkeypatch.setenv(SWITCH, "1")
    assert built_module("made_for_a_test", 3) is made
    monkeypatch.setenv(SWITCH, "0")
    assert built_module("made_for_a_test", 3) is None
