"""Programs as Python starts them: what runs once runs again, and is recovered in an empty folder from the log alone."""

from __future__ import annotations

import os
import py_compile
import re
import subprocess
import sys
import zipfile
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
SLICE = ("module of a package", "script that a sibling imports", "files of editors", "vendored without a list")


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


def _zipped(home: Path) -> Sequence[str]:
    with zipfile.ZipFile(home / "shop.zip", "w") as archive:
        archive.writestr("__main__.py", TABLES + SAID + PUT + RUN)
    return ("shop.zip",)


def _compiled(home: Path) -> Sequence[str]:
    written(home, {"words.py": SAID, "shop.py": TABLES + "from words import SAID\n" + PUT + RUN})
    py_compile.compile(str(home / "words.py"), cfile=str(home / "words.pyc"))
    (home / "words.py").unlink()
    return ("shop.py",)


def _reads(home: Path) -> Sequence[str]:
    written(home, {"words.txt": "put", "shop.py": TABLES + 'SAID = open("words.txt").read()\n' + PUT + RUN})
    return ("shop.py",)


def _finds(home: Path) -> Sequence[str]:
    loads = "import importlib\nSAID = importlib.import_module('wo' + 'rds').SAID\n"
    written(home, {"words.py": SAID, "shop.py": TABLES + loads + PUT + RUN})
    return ("shop.py",)


def _vendors(home: Path) -> Sequence[str]:
    written(home, PROGRAMS["vendored beside the program"].files)  # where a recovery finds it by PYTHONPATH alone
    return ("shop.py",)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_vendors, "No module named 'word'"),
        (_zipped, "no source"),
        (_compiled, "module words has no source"),
        (_reads, "words.txt"),
        (_finds, "No module named 'words'"),
    ],
    ids=["installed beside the program", "zip", "pyc", "a file of the folder", "a module that no import names"],
)
def test_what_no_replay_could_run_is_refused_at_the_first_start(tmp_path: Path, make: object, why: str) -> None:
    """The program ends with an error that names it, and nothing of it is logged: the repaired program starts."""
    home = tmp_path / "home"
    home.mkdir()
    assert callable(make)
    done = started(home, *make(home), tmp_path / "data", 1)
    assert done.returncode != 0
    assert why in done.stderr
    written(home, {"shop.py": TABLES + SAID + PUT + RUN})
    assert started(home, "shop.py", tmp_path / "data", 1).stdout.strip() == "put"


READS = TABLES + "SAID = open('words.txt').read()\n" + PUT
LOOKS = TABLES + "import os\nif not os.path.exists('shop.py'):\n    raise LookupError('started elsewhere')\n" + SAID + PUT
RUNS = TABLES + SAID + PUT


def served(home: Path, source: str, *options: str) -> subprocess.Popen[str]:
    """`cmdlog serve` of this source, in its folder."""
    written(home, {"shop.py": source, "words.txt": "put"})
    command = [sys.executable, "-m", "cmdlog.cli", "serve", "shop:db", "--data", "data", "--port", "0", *options]
    return subprocess.Popen(command, cwd=home, env=_environment(""), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def refusal(process: subprocess.Popen[str]) -> str:
    """What a server says that does not start, with the exit code of code that is not there."""
    _, said = process.communicate(timeout=END_S)
    assert process.returncode == 13, said
    return said


def serves(process: subprocess.Popen[str]) -> bool:
    """Whether it comes to serve; it is stopped in order then."""
    assert process.stdout is not None
    ready = any("ready:" in line for line in process.stdout)
    process.terminate()
    process.communicate(timeout=END_S)
    return ready and process.returncode == 0


@pytest.mark.slow
def test_served_code_that_no_replay_could_run_is_not_logged(tmp_path: Path) -> None:
    """Of a first start nothing is made, of a later one nothing changes: the corrected program, or the former one, serves."""
    small = ("--segments", "4", "--segment-bytes", "1MiB", "--partitions")
    said = refusal(served(tmp_path, LOOKS, *small, "3"))
    assert re.search(r"started elsewhere.* \(shop\.py, line 8\)", said), said
    assert "at import they may need what is installed and each other" in said
    assert os.listdir(tmp_path / "data") == ["LOCK"]
    assert serves(served(tmp_path, RUNS, *small, "1"))
    said = refusal(served(tmp_path, READS))
    assert re.search(r"FileNotFoundError: .*words\.txt' \(shop\.py, line 6\)", said), said
    assert serves(served(tmp_path, RUNS))
