"""Files of a node's directory that stand where they do not belong: doubled, swapped, renamed over each other, or another node's.

One rule: every function moves or copies whole files (of snapshots: files or folders) within one place of the directory, and gives
the paths that hold other bytes than before.
"""

from __future__ import annotations

import os
import random
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from cmdlog.wal.format.segment import segment_name
from tests.replay import damage

PLACES = ("log", "archive", "snapshots")
_NUMBER = re.compile(r"(\d{4,})(?=\D*$)")


def exchange(directory: str, others: Sequence[str], rng: random.Random) -> tuple[list[str], str]:
    """Does one of them; (paths that must be named, what)."""
    place, act = rng.choice(PLACES), rng.choice(sorted(ACTS))
    paths = ACTS[act](os.path.join(directory, place), rng.choice(others), rng)
    return paths, f"{act} {', '.join(os.path.relpath(path, directory) for path in paths)}"


def units(folder: str, rng: random.Random) -> list[str]:
    """Segments, archived segments, or all snapshots; of those as often all files of one name."""
    found = sorted(str(path) for path in Path(folder).iterdir() if not path.name.startswith("free"))
    if os.path.basename(folder) == "snapshots" and rng.random() < 0.5:
        name = rng.choice(sorted({path.name for one in found for path in Path(one).iterdir()}))
        return [path for path in (os.path.join(one, name) for one in found) if os.path.exists(path)]
    suffixes = sorted({os.path.splitext(path)[1] for path in found})
    suffix = rng.choice(suffixes)
    return [path for path in found if os.path.splitext(path)[1] == suffix]


def put(source: str, target: str) -> None:
    """The target holds what the source does."""
    if os.path.isdir(target):
        shutil.rmtree(target)
    if os.path.isdir(source):
        shutil.copytree(source, target)
    else:
        shutil.copyfile(source, target)


def twice(folder: str, _other: str, rng: random.Random) -> list[str]:
    """One stands under a new name, too."""
    source = rng.choice(units(folder, rng))
    target = renumbered(source, rng)
    put(source, target)
    return [source, target]


def renamed(folder: str, _other: str, rng: random.Random) -> list[str]:
    """One stands under a new name."""
    source = rng.choice(units(folder, rng))
    target = renumbered(source, rng)
    os.rename(source, target)
    return [source, target]


def renumbered(path: str, rng: random.Random) -> str:
    """A name of the same kind that nothing has; of a segment often the next one."""
    head, name = os.path.split(path)
    if name.endswith(".log"):
        last = damage.segments(os.path.dirname(head))[-1]
        return os.path.join(head, segment_name(int(Path(last).stem.rpartition("-")[2], 10) + rng.choice((1, 2))))
    while True:
        target = _NUMBER.sub(lambda match: f"{int(match[1]) + rng.randint(-30, 30):0{len(match[1])}d}", name)
        if target == name:
            target = f"{name}0"
        if not os.path.exists(os.path.join(head, target)):
            return os.path.join(head, target)


def two(folder: str, rng: random.Random) -> list[str]:
    """Two of one kind. Of a log those are segments: there is one hard state."""
    while True:
        found = units(folder, rng)
        if len(found) > 1:
            return rng.sample(found, 2)


def swapped(folder: str, _other: str, rng: random.Random) -> list[str]:
    """Two change places."""
    one, other = two(folder, rng)
    damage.swap(one, other)
    return [one, other]


def over(folder: str, _other: str, rng: random.Random) -> list[str]:
    """One is renamed into the place of another."""
    one, other = two(folder, rng)
    put(one, other)
    if os.path.isdir(one):
        shutil.rmtree(one)
    else:
        os.unlink(one)
    return [one, other]


def copied_over(folder: str, _other: str, rng: random.Random) -> list[str]:
    """One stands in the place of another, too."""
    one, other = two(folder, rng)
    put(one, other)
    return [other]


def foreign(folder: str, other: str, rng: random.Random) -> list[str]:
    """One is another node's."""
    target = rng.choice(units(folder, rng))
    put(counterpart(folder, other, target, rng), target)
    return [target]


def foreign_beside(folder: str, other: str, rng: random.Random) -> list[str]:
    """One of another node's stands beside ours, under its own name or one of ours that nothing has."""
    path = rng.choice(units(folder, rng))
    source = counterpart(folder, other, path, rng)
    own = os.path.join(os.path.dirname(path), os.path.basename(source))
    target = renumbered(path, rng) if os.path.exists(own) or rng.random() < 0.5 else own
    put(source, target)
    return [target]


def counterpart(folder: str, other: str, path: str, rng: random.Random) -> str:
    """A file of that kind in the other node's directory."""
    inside = os.path.relpath(path, folder)
    there = os.path.join(other, os.path.basename(folder))
    suffix = os.path.splitext(path)[1]
    depth = inside.count(os.sep)
    found = [one for one in sorted(Path(there).glob("/".join("*" * (depth + 1)))) if one.suffix == suffix]
    found = [one for one in found if not depth or one.name == os.path.basename(path)]
    return str(rng.choice([one for one in found if not one.name.startswith("free")]))


ACTS: dict[str, Callable[[str, str, random.Random], list[str]]] = {
    "twice": twice,
    "renamed": renamed,
    "swapped": swapped,
    "over": over,
    "copied over": copied_over,
    "foreign": foreign,
    "foreign beside": foreign_beside,
}
