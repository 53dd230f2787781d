"""What tests of the log share: their files are on a disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder where the system has its temporary files, which is removed at the end; `tests/memory_disk.py` says why."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
