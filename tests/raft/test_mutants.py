"""The list of planted defects keeps fitting the code, and the tool sees what it should; `make mutants` runs them all."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.raft.defects import MUTANTS, Mutant
from tests.raft.mutants import PACKAGE, ROOT, judge, plant

MUTANTS_MIN = 13 + 25


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_mutant_can_be_planted(mutant: Mutant, tmp_path: Path) -> None:
    """Its snippet occurs exactly once, and what it becomes is Python."""
    (tmp_path / PACKAGE / mutant.module).parent.mkdir(parents=True)
    shutil.copyfile(ROOT / PACKAGE / mutant.module, tmp_path / PACKAGE / mutant.module)
    plant(mutant, tmp_path)
    compile((tmp_path / PACKAGE / mutant.module).read_text(), mutant.module, "exec")


def test_list_is_as_long_as_it_should_be() -> None:
    """The prototype's thirteen and at least 25 more, each with a name of its own."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= MUTANTS_MIN


@pytest.mark.torture
@pytest.mark.parametrize("name", ["two-votes", "commit-earlier-terms"])
def test_mutant_is_caught(name: str) -> None:
    """One that no core may have is seen, by a test that the verdict names; `make mutants` judges all."""
    mutant = next(mutant for mutant in MUTANTS if mutant.name == name)
    assert "test_" in judge(mutant).by
