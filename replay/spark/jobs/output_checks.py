"""Where an output must not be: in what a job reads, around it, or in the directory of any node.

One rule: a job never changes what it reads, even when it is killed. `cmdlog recover --to` keeps the same rule.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME
from cmdlog.wal.errors import WrongDirectory


def check_apart(out: str, names: Iterable[str]) -> None:
    """`names` are the inputs, paths or URIs. Raises: WrongDirectory."""
    target = os.path.realpath(out)
    for name in names:
        if not name.startswith("/"):
            continue  # no output is written elsewhere
        source = os.path.realpath(name)
        if _lies_in(target, source):
            raise WrongDirectory(f"{out} lies in {name}, which must not be changed")
        if _lies_in(source, target):
            raise WrongDirectory(f"{out} contains {name}, which must not be changed")
    folder = target
    while folder != os.path.dirname(folder):
        if any(os.path.exists(os.path.join(folder, name)) for name in (INSTANCE_NAME, CREATING_NAME)):
            raise WrongDirectory(f"{out} lies in {folder}, the directory of a node, which must not be changed")
        folder = os.path.dirname(folder)


def _lies_in(path: str, folder: str) -> bool:
    return os.path.commonpath([path, folder]) == folder
