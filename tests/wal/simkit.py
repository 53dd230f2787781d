"""What power cuts leave of a simulated disk."""

from __future__ import annotations

import random
from collections.abc import Iterator

from cmdlog.wal.files import File, parent
from tests.wal.sim.simdisk import Keep
from tests.wal.sim.simfiles import SimFiles

SEEDS = range(60)


CUTS: tuple[Keep, ...] = ("none", "all", "random")


def durable_file(files: SimFiles, path: str, data: bytes = b"") -> File:
    """A file whose content and name survive a power cut."""
    file = files.open(path, create=True)
    file.pwrite(data, 0)
    file.fsync()
    files.fsync_dir(parent(path))
    return file


def left(files: SimFiles, path: str, keep: Keep = "none", seed: int = 0) -> bytes:
    """Content after a power cut now."""
    return files.power_cut(random.Random(seed), keep).read_file(path)


def cuts(files: SimFiles) -> Iterator[SimFiles]:
    """Many disks that a power cut may leave now."""
    for seed in SEEDS:
        yield files.power_cut(random.Random(seed))
