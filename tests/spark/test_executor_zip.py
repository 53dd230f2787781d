"""The zip of this package, and the hash of its sources that tells one version from another."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cmdlog.cli import main
from replay.spark.base.executor_zip import DISCOVERED, PACKAGES, code_version, sources, write_zip
from replay.spark.base.options import parse_options
from replay.spark.base.version_check import OtherVersions
from replay.spark.datasource.source import CallReader, TableReader
from replay.spark.datasource.stream import CallStream

TREE = Path(__file__).parents[2]
ASK = "from replay.spark.base import executor_zip as code; import pyspark_cmdlog; print(code.__file__, code.code_version())"
ASK_CODE = ASK.replace("import pyspark_cmdlog; ", "")


def told_by(path: Path, ask: str = ASK_CODE) -> list[str]:
    """What a Python says that has the package from there: where it is, and its version."""
    environ = {**os.environ, "PYTHONPATH": str(path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", ask]
    return subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, check=True).stdout.split()


def test_zip_holds_every_package_of_the_wheel() -> None:
    """Folders of sources are those that pyproject.toml installs: an installed package has the hash of the checkout."""
    stated = set(tomllib.loads((TREE / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"])
    assert {os.path.dirname(path).replace("/", ".") for path, _ in sources()} == stated
    assert DISCOVERED in dict(sources())


def test_zip_depends_on_sources_alone(tmp_path: Path) -> None:
    """Made twice it has the same bytes, and its name holds version and hash."""
    first = Path(write_zip(str(tmp_path)))
    second = Path(write_zip(str(tmp_path / "again.zip")))
    assert first.name == f"cmdlog-{code_version()}.zip"
    assert hashlib.sha256(first.read_bytes()).digest() == hashlib.sha256(second.read_bytes()).digest()
    assert sorted(tmp_path.iterdir()) == sorted([first, second])
    with zipfile.ZipFile(first) as archive:
        assert archive.read("pyspark_cmdlog.py") == archive.read(DISCOVERED)


@pytest.mark.slow
def test_zip_runs_and_has_the_version_of_the_checkout(tmp_path: Path) -> None:
    """A Python with nothing but the zip of ours says that it runs what the checkout runs, and finds the data source's module."""
    path = Path(write_zip(str(tmp_path)))
    assert told_by(path, ASK) == [f"{path}/replay/spark/base/executor_zip.py", code_version()]


@pytest.mark.slow
def test_one_changed_line_is_another_version(tmp_path: Path) -> None:
    """A copy elsewhere has the same version, caches and other files beside; with another comment in one module it has another."""
    for package in PACKAGES:
        shutil.copytree(TREE / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__", "*.md"))
    (tmp_path / "replay" / "notes").mkdir()
    (tmp_path / "replay" / "notes" / "draft.py").write_text("")
    assert told_by(tmp_path) == [str(tmp_path / "replay/spark/base/executor_zip.py"), code_version()]
    with (tmp_path / "snapshot" / "digest.py").open("a") as file:
        file.write("# changed\n")
    (version,) = told_by(tmp_path)[1:]
    assert version != code_version()
    assert version.partition("-")[0] == code_version().partition("-")[0]


def test_reader_of_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An executor whose code is not that of who planned reads nothing, neither table nor stream, and names both sides."""
    options = parse_options({"path": "/nowhere"})
    with monkeypatch.context() as patch:
        patch.setattr("replay.spark.base.version_check.code_version", lambda: "0.0.9-abc")
        readers: list[Any] = [CallReader(options, ["txn_id"]), TableReader(options, ["table"]), CallStream(options, ["txn_id"])]
    for reader in readers:
        with pytest.raises(OtherVersions, match=f"an executor that reads has cmdlog {code_version()} instead of 0.0.9-abc"):
            next(iter(reader.read(None)))


def test_command_prints_where_the_zip_is(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """One line, for a shell to put behind `--py-files`; a file that is named gets that name."""
    for to, wanted in ((tmp_path, tmp_path / f"cmdlog-{code_version()}.zip"), (tmp_path / "our.zip", tmp_path / "our.zip")):
        monkeypatch.setattr(sys, "argv", ["cmdlog", "spark", "package", str(to)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        assert capsys.readouterr().out == f"{wanted}\n"
        assert zipfile.is_zipfile(wanted)
