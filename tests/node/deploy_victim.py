"""A node that kills itself at one step of a deploy: `python -m tests.node.deploy_victim DIRECTORY WORK SCENARIO STEP`.

Steps are counted before and after everything that a deploy waits for or tells others; a STEP beyond them ends with exit code 0.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cmdlog.node.background.running_work import Work
from cmdlog.node.deploying import deployer
from cmdlog.node.sequencing.block_builder import Opening
from cmdlog.node.sequencing.intake import Intake
from cmdlog.node.sites.inline_sites import InlineSites
from tests.node.deployed import MIGRATION, RENAMED, make_version
from tests.node.rig import ask, open_node

ROWS = 12
PARTITIONS = 2
POINTS: tuple[tuple[Any, str], ...] = (
    (Opening, "add"),
    (Intake, "add_entries"),
    (InlineSites, "add_code"),
    (InlineSites, "prepare"),
    (Work, "enter"),
    (Intake, "hold_calls"),
    (Intake, "switch_code"),
    (Intake, "accept_calls"),
)
SCENARIOS = {
    "code": {},
    "additions": {"columns": ', Column("note", Text, server_default="none")'},
    "migration": {"columns": RENAMED},
}


class Fuse:
    """Kills this process at one step."""

    def __init__(self, step: int) -> None:
        self.left = step

    def burn(self) -> None:
        """A step is reached."""
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a step before and one after it."""

        def burning(*arguments: Any, **named: Any) -> Any:
            self.burn()
            given = function(*arguments, **named)
            self.burn()
            return given

        return burning


def main() -> None:
    """Entry point."""
    directory, work, scenario, step = sys.argv[1:]
    folder = Path(work)
    node = open_node(Path(directory), app=make_version(folder, 1)[0], inline=True, partitions=PARTITIONS)
    for number in range(ROWS):
        ask(node, "hit", id=number)
    bundle = make_version(folder, 2, **SCENARIOS[scenario], last=MIGRATION if scenario == "migration" else "")[1]
    fuse = Fuse(int(step))
    setattr(deployer, "check_bundle", lambda *_, **__: None)  # noqa: B010 - a process of its own, before anything happens
    for owner, name in POINTS:
        setattr(owner, name, fuse.around(getattr(owner, name)))
    node.deployer.deploy(bundle, migrate=True)
    fuse.burn()


if __name__ == "__main__":
    main()
