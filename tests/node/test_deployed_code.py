"""Which program a start serves after a deploy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cmdlog.node.deploying.deployed_code import REPLACED, REPLACED_MAX, choose_program, gives_way, replaced_by_deploy
from cmdlog.wal.group_state import GroupState, LoggedCatalog
from cmdlog.wal.ids import CLUSTER_GROUP
from procedures.code.code_versions import CodeVersions
from procedures.code.procedure_versions import catalog_value
from tests.node.deployed import make_version


def groups_of(*values: dict[str, Any]) -> dict[int, GroupState]:
    """A log that names these versions."""
    state = GroupState()
    state.catalogs = {value["version"]: LoggedCatalog(value["version"], value, stated_block=1) for value in values}
    return {CLUSTER_GROUP: state}


def test_a_replaced_program_gives_way_to_what_was_deployed(tmp_path: Path) -> None:
    """A new program, the deployed one, and one that a restart replaced are served as they are."""
    (first, one), (second, two), (third, three) = (make_version(tmp_path, version) for version in (1, 2, 3))
    start = catalog_value(first, one, 1, None, partitions=1)
    restarted = catalog_value(second, two, 2, start, partitions=1)
    deployed = restarted | replaced_by_deploy(CodeVersions({1: start}), two)
    assert deployed[REPLACED] == [one.hash]
    assert choose_program(groups_of(), first, one) == (first, one)
    assert choose_program(groups_of(start, restarted), first, one) == (first, one)
    served, bundle = choose_program(groups_of(deployed), first, one)
    assert (bundle.hash, served.name, served is second) == (two.hash, "tally", False)
    assert choose_program(groups_of(deployed), second, two) == (second, two)
    assert choose_program(groups_of(deployed), third, three) == (third, three)


def test_a_rollback_gives_way_to_nothing_it_replaced(tmp_path: Path) -> None:
    """The program that was put back is the newest, and the one that it replaced gives way; old ones are forgotten in the end."""
    (first, one), (_, two) = (make_version(tmp_path, version) for version in (1, 2))
    start = catalog_value(first, one, 1, None, partitions=1)
    long = [f"{number:064x}" for number in range(REPLACED_MAX)]
    newest = {**start, "version": 2, "hash": two.hash, REPLACED: [*long, one.hash]}
    back = {**start, "version": 3, **replaced_by_deploy(CodeVersions({1: start, 2: newest}), one)}
    assert not gives_way(one.hash, back)
    assert gives_way(two.hash, back)
    assert len(back[REPLACED]) == REPLACED_MAX
