"""Where the output of a job must not be: in what it reads, around it, or in the directory of any node."""

from __future__ import annotations

import os
from collections.abc import Iterable

from cmdlog.wal.directory.instance import CREATING_NAME, INSTANCE_NAME
from cmdlog.wal.errors import WrongDirectory
from replay.recover.new_directory import check_apart


def check_output(out: str, names: Iterable[str]) -> None:
    """`names` are the inputs, paths or URIs. Raises: WrongDirectory."""
    check_apart(out, names)
    folder = os.path.realpath(out)
    while folder != os.path.dirname(folder):
        if any(os.path.exists(os.path.join(folder, name)) for name in (INSTANCE_NAME, CREATING_NAME)):
            raise WrongDirectory(f"{out} lies in {folder}, the directory of a node, which must not be changed")
        folder = os.path.dirname(folder)
