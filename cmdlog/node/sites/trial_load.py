"""New code, loaded as a recovery will load it: from the log alone.

One rule: what the log does not hold is missed before the first call is logged, not when a replay needs it. So the process is in
an empty folder while the code is imported, and the program's own folders are not searched.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterator

from procedures import Database
from procedures.code.bundle import Bundle
from procedures.code.loaded_modules import load_bundle
from procedures.execution.call_settings import standard_settings


def load_alone(bundle: Bundle, own_folders: Collection[str], empty: str) -> Database:
    """`own_folders`: real paths that are not searched; `empty`: a folder. Raises: BundleError."""
    with _inside(empty), _without(own_folders), standard_settings():
        return load_bundle(bundle)


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    """The folder that the process was in may be gone, or unreadable: it has no path then."""
    here = os.open(".", os.O_PATH | os.O_CLOEXEC)
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(here)
        os.close(here)


@contextlib.contextmanager
def _without(folders: Collection[str]) -> Iterator[None]:
    """What the code adds to the path meanwhile stays."""
    left_out = [folder for folder in sys.path if os.path.realpath(folder) in folders]
    sys.path[:] = [folder for folder in sys.path if folder not in left_out]
    try:
        yield
    finally:
        sys.path[:0] = left_out
