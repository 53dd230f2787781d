"""What a user installs: the source distribution, and the wheel that is built of it, with every package and document."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from cmdlog.cli.files import FILES

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("cmdlog", "procedures", "replay", "snapshot")
FOR_MAINTAINERS = ("DECISIONS.md", "MODULES.md")  # read in the repository
BUILD = "import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """Names in the source distribution of what git knows, and in the wheel that is made of it; pip fetches setuptools."""
    folder = tmp_path_factory.mktemp("distribution")
    tree, backend, made = folder / "tree", folder / "backend", folder / "made"
    _copy_tracked(tree)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*pip, "install", "--target", str(backend), "setuptools>=77"], check=True)
    made.mkdir()
    _build("sdist", tree, backend, made)
    (archive,) = made.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder / "unpacked", filter="data")
        held = {name.partition("/")[2] for name in packed.getnames()}
    (unpacked,) = (folder / "unpacked").iterdir()
    _build("wheel", unpacked, backend, made)
    (wheel,) = made.glob("*.whl")
    with zipfile.ZipFile(wheel) as packed_wheel:
        return held, set(packed_wheel.namelist())


def _copy_tracked(tree: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git clone: nothing says which files belong to the project")
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            (tree / name).write_bytes((ROOT / name).read_bytes())


def _build(kind: str, tree: Path, backend: Path, made: Path) -> None:
    path = os.pathsep.join((str(backend), str(tree)))
    environment = {**os.environ, "PYTHONPATH": path, "CFLAGS": "-O0"}  # the modules in C are not run
    program = [sys.executable, "-c", BUILD.format(kind=kind), str(made)]
    done = subprocess.run(program, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def modules() -> set[str]:
    """Every module of the product."""
    return {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}


def documents() -> set[str]:
    """Every document of a package that a user reads."""
    found = {path for package in PACKAGES for path in (ROOT / package).rglob("*.md") if path.name not in FOR_MAINTAINERS}
    return {str(path.relative_to(ROOT)) for path in found}


def test_the_source_distribution_has_all_that_it_takes(built: tuple[set[str], set[str]]) -> None:
    """Modules, documents, and what it takes to test them."""
    held, _ = built
    assert modules() | documents() <= held
    assert {path.name for path in ROOT.glob("*.md")} | {"LICENSE", "Makefile", "constraints.txt", "pyproject.toml"} <= held
    assert {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "project").glob("*.py")} <= held


def test_the_wheel_has_every_module_document_and_file(built: tuple[set[str], set[str]]) -> None:
    """A package that pyproject.toml forgets is missed at once; nothing of the tests is installed."""
    _, wheel = built
    assert modules() - wheel == set()
    assert documents() - wheel == set()
    assert {f"cmdlog/deploy/{name}" for name in FILES if name != "cmdlog.toml"} <= wheel
    assert {f"{package}/py.typed" for package in PACKAGES} | {"cmdlog/api/dashboard.html", "pyspark_cmdlog.py"} <= wheel
    shared = {Path(name).name for name in wheel if "/share/doc/cmdlog/" in name}
    assert {"README.md", "CHANGELOG.md"} <= shared
    assert {name.partition("/")[0] for name in wheel if ".d" not in name} == {*PACKAGES, "pyspark_cmdlog.py"}
