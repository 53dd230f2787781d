"""What several modules of the folder start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from procedures import Database
from procedures.code.loaded_modules import load_bundle
from tests.replay import rig as rigs
from tests.replay.ledgers import importable
from tests.replay.rig import APP, TRIPLE, Rig, make_bundle


@pytest.fixture
def tripled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """The code that forks run: deposits count three times. Rigs have the tables that it declares."""
    monkeypatch.setattr(rigs, "SCHEMA", load_bundle(make_bundle()).schema_statements())
    with importable(tmp_path) as versions:
        yield versions.load("ledger_tripled", f"FACTOR = {TRIPLE}\n{APP}")


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A node with some deposits behind it, running."""
    rig = Rig(tmp_path)
    rig.deposits(6)
    return rig
