"""Programs as Python starts them: what runs once runs again, and is recovered in an empty folder from the log alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

END_S = 300
TABLES = """
from sqlalchemy import Column, Integer
from cmdlog import Database
db = Database("shop")
t = db.table("t", Column("id", Integer, primary_key=True), partition_by="id")
"""
PUT = """
@db.procedure(partition_by="id")
def put(tx, id: int) -> str:
    tx.execute(t.insert(), id=id)
    return SAID
"""
RUN = """
if __name__ == "__main__":
    import sys, cmdlog
    with cmdlog.open(sys.argv[1], db, partitions=1) as shop:
        print(shop.call("put", id=int(sys.argv[2])))
"""
SAID = 'SAID = "put"\n'


@dataclass(frozen=True)
class Program:
    """Files, and how Python is started."""

    start: Sequence[str]
    files: Mapping[str, str | bytes]
    path: str = ""  # a folder on PYTHONPATH
    says: str = "put"
    options: Mapping[str, str] = field(default_factory=dict)


DIST_INFO = {
    "vendor/word/__init__.py": "def say():\n    from word.more import MORE\n    return MORE\n",
    "vendor/word/more.py": 'MORE = "put"\n',
    "vendor/word-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: word\nVersion: 1.0\n",
    "vendor/word-1.0.dist-info/INSTALLER": "pip\n",
}
USES_WORD = TABLES + "import word\n" + PUT.replace("return SAID", "return word.say()") + RUN
PROGRAMS = {
    "module of a package": Program(
        ("-m", "pkg.main"),
        {"pkg/__init__.py": "", "pkg/tables.py": TABLES, "pkg/main.py": "from .tables import db, t\n" + SAID + PUT + RUN},
    ),
    "package": Program(
        ("-m", "pkg"),
        {
            "pkg/__init__.py": SAID,
            "pkg/tables.py": TABLES,
            "pkg/__main__.py": "from . import SAID\nfrom .tables import db, t\n" + PUT + RUN,
        },
    ),
    "deep, in a namespace": Program(
        ("-m", "space.app.run.main"),
        {"space/app/tables.py": TABLES, "space/app/run/main.py": "from ..tables import db, t\n" + SAID + PUT + RUN},
    ),
    "script that a sibling imports": Program(
        ("shop.py",), {"shop.py": TABLES + SAID + "import procs\n" + RUN, "procs.py": "from shop import SAID, db, t\n" + PUT}
    ),
    "module that a sibling imports": Program(
        ("-m", "pkg.main"),
        {
            "pkg/__init__.py": "",
            "pkg/main.py": TABLES + SAID + "from . import procs\n" + RUN,
            "pkg/procs.py": "from pkg.main import SAID\nfrom .main import db, t\n" + PUT,
        },
    ),
    "script in another folder": Program(
        ("far/shop.py",), {"far/shop.py": TABLES + "from words import SAID\n" + PUT + RUN, "far/words.py": SAID}
    ),
    "files of editors": Program(
        ("shop.py",),
        {
            "shop.py": b"\xef\xbb\xbf" + ("from words import SAID\f\n" + TABLES + PUT + RUN).replace("\n", "\r\n").encode(),
            "words.py": "# -*- coding: latin-1 -*-\nSAID = 'p\xfct'[0:3:2] and 'p\xfct'\n".encode("latin-1"),
        },
        says="p\xfct",
    ),
    "hints that do not exist": Program(
        ("shop.py",),
        {
            "shop.py": "from __future__ import annotations\nfrom typing import TYPE_CHECKING\n" + TABLES + SAID
            + "if TYPE_CHECKING:\n    from cmdlog import Transaction as Tx\n" + PUT.replace("(tx,", "(tx: Tx | None,") + RUN
        },
    ),
    "vendored": Program(
        ("shop.py",),
        {"shop.py": USES_WORD, **DIST_INFO, "vendor/word-1.0.dist-info/RECORD": "word/__init__.py,,\nword/more.py,,\n"},
        path="vendor",
    ),
    "vendored without a list": Program(
        ("shop.py",), {"shop.py": USES_WORD, **DIST_INFO, "vendor/word-1.0.dist-info/top_level.txt": "word\n"}, path="vendor"
    ),
    "vendored beside the program": Program(
        ("shop.py",),
        {"shop.py": USES_WORD} | {
            name.removeprefix("vendor/"): text
            for name, text in {**DIST_INFO, "vendor/word-1.0.dist-info/RECORD": "word/__init__.py,,\nword/more.py,,\n"}.items()
        },
        path=".",
    ),
    "metadata of a build": Program(
        ("shop.py",),
        {
            "shop.py": TABLES + "from words import SAID\n" + PUT + RUN,
            "words.py": SAID,
            "words.egg-info/PKG-INFO": "Metadata-Version: 2.1\nName: words\nVersion: 1.0\n",
            "words.egg-info/SOURCES.txt": "words.py\n",
            "words.egg-info/top_level.txt": "words\nshop\n",
        },
    ),
}  # fmt: skip
SLICE = ("module of a package",)


def started(folder: Path, *arguments: object, path: str = "") -> subprocess.CompletedProcess[str]:
    """Python, started in the folder."""
    command, environment = [sys.executable, *map(str, arguments)], _environment(path)
    return subprocess.run(command, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=END_S)


def _environment(path: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONPATH", None)
    return {**environment, "PYTHONPATH": path} if path else environment


def written(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """The folder with these files."""
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in SLICE else pytest.mark.torture) for name in PROGRAMS])
def test_what_python_runs_is_recovered(tmp_path: Path, name: str) -> None:
    """Two starts in a row, then a recovery elsewhere, which has the installed packages and nothing of the program."""
    program = PROGRAMS[name]
    home, empty = written(tmp_path / "home", program.files), tmp_path / "empty"
    empty.mkdir()
    installed = str(home / program.path) if program.path else ""
    for number in (1, 2):
        done = started(home, *program.start, tmp_path / "data", number, path=installed)
        assert (done.stdout.strip(), done.returncode) == (program.says, 0), done.stderr
    again = started(empty, "-m", "cmdlog.cli", "recover", tmp_path / "data", "--to", tmp_path / "again", path=installed)
    assert again.returncode == 0, again.stdout + again.stderr
