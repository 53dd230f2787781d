"""What is installed: files that a distribution owns, wherever they lie.

One rule: a distribution says so itself, in the metadata beside its files (`*.dist-info`, `*.egg-info`): pip puts them into any
folder (`--user`, `--target`), and folders of an operating system have names of their own. What lies where Python itself keeps
packages is installed as well.

The metadata that a build leaves beside the sources of an application makes nothing of it installed.
"""

from __future__ import annotations

import functools
import site
import sysconfig
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path, PurePosixPath

FOLDERS_READ_MAX = 256  # whose metadata is remembered


@functools.cache
def is_installed(file: str) -> bool:
    """Whether the file belongs to Python or to a distribution."""
    if file.startswith("<frozen"):
        return True
    path = Path(file).resolve()
    if any(path.is_relative_to(folder) for folder in package_folders()):
        return True
    return any(_owns(str(folder), path.relative_to(folder).as_posix()) for folder in path.parents)


@functools.cache
def package_folders() -> frozenset[Path]:
    """Where this Python keeps its own modules and the packages of all programs."""
    paths = sysconfig.get_paths()
    found = [paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")] + site.getsitepackages()
    return frozenset(Path(folder).resolve() for folder in (*found, site.getusersitepackages()))


def holds_distributions(folder: str) -> bool:
    """Whether a distribution owns files in the folder: a replay finds them there as well."""
    return bool(_owned_in(folder))


def _owns(folder: str, name: str) -> bool:
    """Whether a distribution in the folder owns the file of this name: it lists it, or the package that it lies in."""
    owned = _owned_in(folder)
    if not owned:
        return False
    parents = [parent.as_posix() for parent in PurePosixPath(name).parents]
    return name in owned or any(f"{parent}/__init__.py" in owned or f"{parent}/" in owned for parent in parents)


@functools.lru_cache(maxsize=FOLDERS_READ_MAX)
def _owned_in(folder: str) -> frozenset[str]:
    """Files that distributions in the folder list, and `name/` of packages that they name without listing files."""
    return frozenset(name for found in metadata.distributions(path=[folder]) for name in _names_of(found))


def _names_of(found: metadata.Distribution) -> Iterator[str]:
    listed = found.read_text("RECORD")
    if listed is not None:
        yield from (str(file) for file in found.files or ())
    elif found.read_text("SOURCES.txt") is None or found.read_text("installed-files.txt") is not None:
        names = (found.read_text("top_level.txt") or str(found.name or "").replace("-", "_").lower()).split()
        for name in names:
            yield f"{name}.py"
            yield f"{name}/"
