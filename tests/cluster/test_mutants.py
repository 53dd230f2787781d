"""The list of planted defects of a cluster keeps fitting the code; `make mutants` plants and judges them all."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import defects_of_stories
from tests.cluster.defects import DEFECTS
from tests.cluster.defects_of_stories import OF_STORIES
from tests.cluster.mutants import CLUSTER, PACKAGE, TESTS, files_for, member_files_for
from tests.raft.defects_members import Mutant
from tests.raft.mutants import ROOT, judge

DEFECTS_MIN = 25
MEMBERSHIP_MIN = 20


@pytest.mark.parametrize("mutant", DEFECTS, ids=lambda mutant: mutant.name)
def test_defect_can_be_planted(mutant: Mutant) -> None:
    """Its snippet occurs exactly once, what it becomes is Python, and tests look at its module."""
    text = (ROOT / PACKAGE / mutant.module).read_text()
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.module, "exec")
    assert all(Path(ROOT, name).is_file() for name in files_for(mutant))


def test_every_defect_has_a_name_and_a_reason() -> None:
    """And there are as many as the issue wants."""
    assert len({mutant.name for mutant in DEFECTS}) == len(DEFECTS) >= DEFECTS_MIN
    assert all(mutant.wrong and mutant.old != mutant.new for mutant in DEFECTS)
    assert {mutant.module for mutant in DEFECTS} == TESTS.keys()


@pytest.mark.parametrize("mutant", OF_STORIES, ids=lambda mutant: mutant.name)
def test_defect_of_membership_can_be_planted(mutant: Mutant) -> None:
    """As the others."""
    text = (ROOT / PACKAGE / mutant.module).read_text()
    assert text.count(mutant.old) == 1
    compile(text.replace(mutant.old, mutant.new), mutant.module, "exec")
    assert all(Path(ROOT, name).is_file() for name in member_files_for(mutant))


def test_every_defect_of_membership_has_a_name_and_a_reason() -> None:
    """And there are as many as the issue wants."""
    names = {mutant.name for mutant in (*OF_STORIES, *DEFECTS)}
    assert len(names) == len(OF_STORIES) + len(DEFECTS)
    assert len(OF_STORIES) >= MEMBERSHIP_MIN
    assert all(mutant.wrong and mutant.old != mutant.new for mutant in OF_STORIES)
    assert {mutant.module for mutant in OF_STORIES} == defects_of_stories.TESTS.keys()


@pytest.mark.torture
@pytest.mark.parametrize("name", ["acknowledge-before-fsync", "runs-past-the-mark"])
def test_defect_is_caught(name: str) -> None:
    """By a test that the verdict names."""
    mutant = next(mutant for mutant in DEFECTS if mutant.name == name)
    assert "test_" in judge(mutant, CLUSTER).by
