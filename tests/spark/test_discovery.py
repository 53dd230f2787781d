"""`format("cmdlog")` in sessions that were made without us, found by what an installation puts where Spark looks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pyspark
import pytest

from replay.spark.base.executor_zip import PACKAGES, code_version, write_zip
from replay.spark.base.java import find_java
from tests.replay.ledgers import importable, logged_calls
from tests.spark.bare_python import bare_python
from tests.spark.spark_nodes import make_node

pytestmark = pytest.mark.torture
TREE = Path(__file__).parents[2]
MODULE = "pyspark_cmdlog.py"
COUNT = """
import sys
from pyspark.sql import SparkSession
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
rows = spark.read.format("cmdlog").load(sys.argv[1]).count()
streamed = spark.readStream.format("cmdlog").load(sys.argv[1]).writeStream.format("memory").queryName("calls")
streamed.trigger(availableNow=True).start().awaitTermination()
from replay.spark.base.executor_zip import code_version
print(rows, spark.table("calls").count(), code_version())
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what is installed: a build writes beside its sources."""
    folder = tmp_path_factory.mktemp("tree")
    for package in PACKAGES:
        shutil.copytree(TREE / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "CHANGELOG.md", "ARCHITECTURE.md", "LICENSE"):
        shutil.copy(TREE / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def wheel(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", str(tree), "--no-deps", "--wheel-dir", str(folder))
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stopped node."""
    with importable(tmp_path_factory.mktemp("versions")) as versions:
        yield make_node(versions, tmp_path_factory.mktemp("shop") / "node")


def pip(*arguments: str) -> None:
    """Runs pip; it fetches setuptools for the build."""
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", *arguments], check=True)


def count_in_foreign_session(python: str, node: Path) -> list[str]:
    """Rows of the table, rows of the stream, and the package's version, in a session that its program made itself."""
    return run([python, "-c", COUNT, str(node)], environ_of(python))


def environ_of(python: str) -> dict[str, str]:
    """Of a driver whose workers run this Python."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environ | {"PYSPARK_PYTHON": python, "JAVA_HOME": find_java().home, "SPARK_LOCAL_IP": "127.0.0.1"}


def run(command: list[str], environ: dict[str, str]) -> list[str]:
    """What a driver prints."""
    ended = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.splitlines()[-1].split()


def test_wheel_has_the_module_at_its_top(wheel: Path) -> None:
    """Spark looks at top modules called `pyspark_*`; the wheel has ours, and the tree's packages beside it."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        assert archive.read(MODULE) == (TREE / "replay" / "spark" / "discover" / MODULE).read_bytes()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {MODULE, *PACKAGES}


def test_installed_wheel_is_found_without_a_word_of_ours(wheel: Path, node: Path, tmp_path: Path) -> None:
    """A session that nobody prepared reads the log as table and as stream, with the code of the checkout."""
    python = bare_python(tmp_path / "python")
    pip("--python", python, "install", "--no-deps", str(wheel))
    count = str(len(logged_calls(node)))
    assert count_in_foreign_session(python, node) == [count, count, code_version()]


def test_editable_install_is_found_and_is_one_path(tree: Path, node: Path, tmp_path: Path) -> None:
    """The same of `pip install -e`, which puts a path and the module there, and no import hook."""
    python = bare_python(tmp_path / "python")
    pip("--python", python, "install", "--no-deps", "--editable", str(tree))
    site = next((tmp_path / "python").glob("lib/python*/site-packages"))
    assert {path.name for path in site.glob("__editable__*")} == {"__editable__.cmdlog-0.1.0.pth"}
    assert (site / MODULE).is_file()
    count = str(len(logged_calls(node)))
    assert count_in_foreign_session(python, node) == [count, count, code_version()]


def test_zip_on_the_path_of_spark_submit_is_found(node: Path, tmp_path: Path) -> None:
    """Nothing is installed; a job that does not know us needs `--py-files` and PYTHONPATH, since Spark looks there alone."""
    python, archive, job = bare_python(tmp_path / "python"), write_zip(str(tmp_path)), tmp_path / "job.py"
    job.write_text(COUNT)
    submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    command = [submit, "--master", "local[1]", "--py-files", archive, str(job), str(node)]
    count = str(len(logged_calls(node)))
    assert run(command, environ_of(python) | {"PYTHONPATH": archive}) == [count, count, code_version()]
