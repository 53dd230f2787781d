"""A node killed at any step of a deploy starts with the former code and tables, or with the new ones; never with a part."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.node.deploy_victim import PARTITIONS, ROWS, SCENARIOS
from tests.node.deployed import make_version
from tests.node.rig import ask, open_node

pytestmark = pytest.mark.slow
BEFORE = [(number, 1) for number in range(ROWS)]
AFTER = {
    "code": BEFORE,
    "additions": [(*row, "none") for row in BEFORE],
    "migration": [(number, 2, "doubled") for number in range(ROWS)],
}


def found_after(directory: Path, folder: Path) -> tuple[int, list[Any]]:
    """The version that answers, and all rows, of a restart with the former program."""
    node = open_node(directory, app=make_version(folder, 1)[0], inline=True, partitions=PARTITIONS)
    try:
        return ask(node, "version", id=1), sorted(map(tuple, node.query("SELECT * FROM tally").rows))
    finally:
        node.close()


TRIED = [("migration", 1)]


@pytest.mark.parametrize(
    ("scenario", "first"),
    [
        pytest.param(scenario, first, marks=() if (scenario, first) in TRIED else pytest.mark.torture)
        for scenario in sorted(SCENARIOS)
        for first in (1, 2, 3, 4)
    ],
)
def test_a_kill_at_any_step_leaves_the_one_or_the_other(tmp_path: Path, scenario: str, first: int) -> None:
    """The first steps leave the former version, the later ones the new one, and none anything else.

    Here every fourth step of a deploy with a migration is tried; by `make torture` all.
    """
    versions = []
    for step in range(first, 100, 4):
        directory = tmp_path / f"data-{step}"
        arguments = [str(directory), str(tmp_path / f"victim-{step}"), scenario, str(step)]
        code = subprocess.run([sys.executable, "-m", "tests.node.deploy_victim", *arguments], check=False).returncode
        assert code in (-signal.SIGKILL, 0)
        version, rows = found_after(directory, tmp_path)
        assert rows == (BEFORE if version == 1 else AFTER[scenario]), f"killed at step {step}"
        versions.append(version)
        if code == 0:
            break
    assert versions == sorted(versions)
    assert versions[-1] == 2
    assert first > 1 or versions[0] == 1  # the fourth step may already be behind the deploy's place in the log
