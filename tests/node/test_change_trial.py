"""A change of tables that is tried on copies of a directory's states, in a process of its own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from cmdlog.node.deploying.change_trial import TrialOrder, try_change
from cmdlog.node.deploying.deploy_errors import MigrationRefused
from tests.node.deployed import MIGRATION, RENAMED, make_version
from tests.node.rig import ask, open_node

pytestmark = pytest.mark.slow


def test_a_trial_reports_steps_or_why_it_fails(tmp_path: Path) -> None:
    """The states are as before, and may be in use."""
    db, former = make_version(tmp_path, 1)
    node = open_node(tmp_path / "data", app=db, inline=True, partitions=2)
    ask(node, "hit", id=1)
    bundle = make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION)[1]
    order = TrialOrder(bundle.to_bytes().decode(), former.to_bytes().decode(), str(tmp_path / "data"), 2, 2, 1 << 50)
    found = try_change(order)
    assert (found["partitions"].keys(), found["former_cannot_run"]) == ({"0", "1"}, "")
    failing = make_version(tmp_path, 2, columns=RENAMED, last=MIGRATION.replace("# here", "raise ValueError('no')"))[1]
    with pytest.raises(MigrationRefused, match="ValueError"):
        try_change(replace(order, bundle=failing.to_bytes().decode()))
    assert node.query("SELECT * FROM tally").rows == [(1, 1)]
    node.close()
