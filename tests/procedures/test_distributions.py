"""What a distribution owns is installed, wherever it lies."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest

from procedures.source.distributions import holds_distributions, is_installed


def put(folder: Path, name: str, text: str = "") -> Path:
    """A file of the folder."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("metadata", "file", "owned"),
    [
        ({"v-1.dist-info/RECORD": "vend/__init__.py,,\nvend/a.py,,\n"}, "vend/a.py", True),
        ({"v-1.dist-info/RECORD": "vend/__init__.py,,\n"}, "vend/inner/made_later.py", True),
        ({"v-1.dist-info/RECORD": "single.py,,\n"}, "single.py", True),
        ({"v-1.dist-info/RECORD": "single.py,,\n"}, "app.py", False),
        ({"v-1.dist-info/RECORD": "space/part/__init__.py,,\n"}, "space/mine.py", False),
        ({"v.egg-info/top_level.txt": "vend\n"}, "vend/a.py", True),
        ({"v.egg-info/top_level.txt": "vend\n", "v.egg-info/SOURCES.txt": "vend/a.py\n"}, "vend/a.py", False),
    ],
)
def test_distribution_names_its_files(tmp_path: Path, metadata: dict[str, str], file: str, *, owned: bool) -> None:
    """By its list of files, or by its packages where it has none; what a build left beside sources owns nothing."""
    for name, text in metadata.items():
        put(tmp_path, name, text)
        put(tmp_path, f"{name.partition('/')[0]}/{'METADATA' if 'dist-info' in name else 'PKG-INFO'}", "Name: v\nVersion: 1\n")
    assert is_installed(str(put(tmp_path, file))) is owned
    assert holds_distributions(str(tmp_path)) is ("v.egg-info/SOURCES.txt" not in metadata)


def test_python_itself_is_installed(tmp_path: Path) -> None:
    """The standard library and frozen modules are; a folder without metadata is not."""
    assert is_installed(os.__file__)
    assert is_installed("<frozen importlib._bootstrap>")
    assert is_installed(str(Path(sysconfig.get_path("purelib")) / "any.py"))
    assert not is_installed(str(put(tmp_path, "app.py")))
    assert not holds_distributions(str(tmp_path))
