"""A user's file with the name of one of this program's packages is named, whichever way the program is started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmdlog.hidden_packages import PACKAGES, ROOT, PackageHidden, check_packages, library_hint
from tests.waiting import PATIENCE_S


def write_module(folder: Path, name: str, *, package: bool) -> Path:
    """A module of that name in the folder, or a package; its path."""
    if not package:
        path = folder / f"{name}.py"
        path.touch()
        return path
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    return folder / name


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("name", PACKAGES)
def test_file_that_hides_a_package_is_named(tmp_path: Path, name: str, package: bool) -> None:
    """With what to rename."""
    path = write_module(tmp_path, name, package=package)
    with pytest.raises(PackageHidden) as hidden:
        check_packages([str(tmp_path), str(ROOT)])
    assert hidden.value.message == f"{path} hides cmdlog's own package `{name}`"
    assert hidden.value.hint == f"rename {path}, and what imports it"


def test_what_hides_nothing_passes(tmp_path: Path) -> None:
    """A folder without code loses to a package, and so does what comes later on the path."""
    (tmp_path / "snapshot").mkdir()
    check_packages([str(tmp_path), str(ROOT)])
    write_module(tmp_path, "procedures", package=False)
    check_packages([str(ROOT), str(tmp_path)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "refused"),
    [
        ("from cmdlog import Database", True),
        ("import cmdlog; cmdlog.open", True),
        ("from cmdlog.cli import main; main()", True),
        ("from cmdlog import Client", False),
    ],
)
def test_program_beside_such_a_file_says_so(tmp_path: Path, program: str, refused: bool) -> None:
    """The application, an embedding program and the command line; a client alone needs none of these packages."""
    path = write_module(tmp_path, "procedures", package=False)
    start = f"import sys; sys.path[:0] = [{str(tmp_path)!r}, {str(ROOT)!r}]; {program}"
    done = subprocess.run([sys.executable, "-c", start], capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (f"{path} hides cmdlog's own package `procedures`" in done.stderr) is refused
    assert (done.returncode != 0) is refused


@pytest.mark.parametrize("package", [False, True])
def test_file_that_hides_pythons_own_is_a_hint(tmp_path: Path, package: bool) -> None:
    """Named with what to do, if it comes before Python's own on the path; a folder without code hides nothing."""
    (tmp_path / "json").mkdir()
    (tmp_path / "shop.py").touch()
    library = os.path.dirname(os.__file__)
    assert library_hint([str(tmp_path), str(tmp_path / "gone"), library]) == ""
    path = write_module(tmp_path, "queue", package=package)
    assert library_hint([str(tmp_path), library]) == f"rename what has the name of a module of Python's own, and hides it: {path}"
    assert library_hint([library, str(tmp_path)]) == ""
