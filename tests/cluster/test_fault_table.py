"""FAULTS.md names every row of its part of the reliability plan, and only tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cluster.nemesis import Nemesis
from tests.cluster.sim.cluster_faults import ClusterFaults
from tests.cluster.sim.sim_cluster import SimCluster

TESTS = Path(__file__).resolve().parents[1]
TEXT = (TESTS / "cluster" / "FAULTS.md").read_text()
ROWS = "D21 D22 D23 D24 P5 P6 P8 P10 N1 N2 N3 N4 N5 N6 N7 N8 N9 C1 C2 H2 H3 H4 X9 X10 X11"


def test_every_row_is_there_once() -> None:
    """In the plan's order."""
    assert re.findall(r"^\| ([A-Z]\d+) \|", TEXT, re.MULTILINE) == ROWS.split()


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\btest_\w+\.py(?:::test_\w+)?", TEXT))))
def test_named_test_exists(name: str) -> None:
    """The file, and the function in it."""
    file, _, function = name.partition("::")
    found = list(TESTS.rglob(file))
    assert found
    assert any(f"def {function}" in path.read_text() for path in found)


def test_named_deeds_and_faults_exist() -> None:
    """What the table says in italics or as a kind of the simulation."""
    assert set(re.findall(r"\*([a-z][a-z -]+)\*", TEXT)) <= Nemesis.DEEDS.keys()
    kinds = set(ClusterFaults(SimCluster(0)).names)
    for line in re.findall(r"[Ss]im ((?:`\w+`(?:, | and |))+)", TEXT):
        assert set(re.findall(r"`(\w+)`", line)) <= kinds | {"promises", "settle"}
