"""The steps in C as a whole: whether they are there, that nothing needs them, and how a state with them ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import apsw
import orjson
import pytest

from cmdlog.built_module import SWITCH
from procedures import native
from procedures.errors import EnvironmentFault
from procedures.execution.executor import Status
from tests.procedures.native.bank_run import run_bank
from tests.procedures.native.both_ways import needs_accelerator
from tests.procedures.sites import Site, counters

ROOT: Final = Path(__file__).resolve().parents[3]
BUILD: Final = """
import sys, tomllib
from setuptools import Extension, setup

with open(sys.argv[1], "rb") as file:
    tables = tomllib.load(file)["tool"]["setuptools"]["ext-modules"]
modules = [Extension(**{name.replace("-", "_"): value for name, value in table.items()}) for table in tables]
setup(name="built", ext_modules=modules, script_args=["build_ext", "--inplace"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("switch", ["0", "1"])
def test_a_process_without_the_steps_in_c_has_the_same_digests(tmp_path: Path, switch: str) -> None:
    """A bank's calls end alike, with the same digests, whether a process may use the steps in C or not."""
    command = [sys.executable, "-m", "tests.procedures.native.bank_run", str(tmp_path / "other.db"), "7"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, SWITCH: switch}, capture_output=True, check=True)
    without, found = orjson.loads(done.stdout)
    assert without or switch == "1"
    assert [(hashes, digest) for hashes, digest in found] == run_bank(tmp_path / "here.db", seed=7)


@pytest.mark.slow
def test_a_failing_compiler_leaves_them_out(tmp_path: Path) -> None:
    """Where nothing can be compiled the build succeeds, without the module."""
    pytest.importorskip("setuptools")
    shutil.copytree(ROOT / "procedures" / "native", tmp_path / "procedures" / "native", ignore=shutil.ignore_patterns("*.so"))
    command = [sys.executable, "-c", BUILD, str(ROOT / "pyproject.toml")]
    environment = {**os.environ, "CC": "/bin/false"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, "failed" in done.stderr) == (0, True), done.stderr
    assert [path for path in tmp_path.rglob("*") if path.suffix in (".so", ".pyd", ".o")] == []


def test_every_source_is_built_and_short() -> None:
    """pyproject.toml names each C file, rebuilds when a header changes, and no file is longer than a module may be."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"]
    assert all(table["optional"] for table in tables)
    for table in tables:
        folder = (ROOT / table["sources"][0]).parent
        assert sorted(table["sources"]) == sorted(str(path.relative_to(ROOT)) for path in folder.glob("*.c"))
        assert sorted(table.get("depends", ())) == sorted(str(path.relative_to(ROOT)) for path in folder.glob("*.h"))
        assert {path.name for path in folder.glob("*.[ch]") if len(path.read_text().splitlines()) > 400} == set()


@needs_accelerator
def test_the_routines_are_those_of_the_sqlite_at_hand() -> None:
    """The module calls the SQLite that APSW holds; it states the same version."""
    major, minor, patch = (int(part) for part in apsw.sqlite_lib_version().split("."))
    assert native.accelerator.sqlite_version() == major * 1_000_000 + minor * 1_000 + patch


class NoLoading(apsw.Connection):
    """Of an APSW that loads no extensions."""

    def enable_load_extension(self, enable: bool) -> None:
        raise apsw.SQLError("not compiled in")


def test_what_cannot_be_used_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched off, not built, of other sources, refused by APSW, or of another SQLite: then there is none."""
    with monkeypatch.context() as patched:
        patched.setenv(SWITCH, "0")
        assert native._load() is None
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "procedures.native.accelerator", None)
        patched.delattr(native, "accelerator")
        assert native._load() is None
    with monkeypatch.context() as patched:
        patched.setattr(native, "INTERFACE", native.INTERFACE + 1)
        assert native._load() is None
    with monkeypatch.context() as patched:
        patched.setattr(apsw, "Connection", NoLoading)
        assert native._load() is None
    with monkeypatch.context() as patched:
        patched.setattr(apsw, "sqlite_lib_version", lambda: "3.1.2")
        assert native._load() is None
    with monkeypatch.context() as patched:
        patched.setattr(native, "accelerator", None)
        assert native.open_statements(apsw.Connection(":memory:")) is None


@pytest.mark.parametrize(
    ("code", "kind"), [(1, apsw.SQLError), (19, apsw.ConstraintError), (2067, apsw.ConstraintError), (9, apsw.InterruptError)]
)
def test_errors_are_those_of_apsw(code: int, kind: type[apsw.Error]) -> None:
    """Class, text, codes and place of an error are as APSW sets them."""
    error: Any = native.error_of(code, "what it says", 7)
    assert (type(error), error.args, error.result, error.extendedresult) == (kind, ("what it says",), code & 0xFF, code)
    assert error.error_offset == 7


def open_files() -> set[str]:
    """Paths of the files that this process has open."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        if descriptor.is_symlink():
            found.add(os.path.realpath(descriptor))
    return found


def test_process_that_prepares_no_statement_opens_states(tmp_path: Path) -> None:
    """One that copies a snapshot or looks up keys imports the state alone."""
    program = (
        "import sys\nfrom procedures.storage.state import PartitionState\nPartitionState.open(sys.argv[1], partition=0).close()"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "state.db")], check=True, cwd=ROOT)


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
@pytest.mark.parametrize("force", [False, True])
def test_a_state_with_open_statements_closes(tmp_path: Path, force: bool) -> None:
    """Closing ends the statements and releases the file, after calls as after reads, and in an open transaction."""
    site = Site(tmp_path / "state.db", counters())
    site.apply(("count", {"name": "a", "by": 1}))
    number = site.numbers["peek"]
    assert site.executor.read([(number, ["a"])], catalog=1)[1] == [(Status.OK, b"1")]
    assert str(site.path) in open_files()
    if force:
        site.executor.begin_group()
        site.apply(("count", {"name": "a", "by": 1}))
    site.executor.close()
    site.state.close(force=force)
    site.state.close(force=force)
    assert not [path for path in open_files() if path.startswith(str(tmp_path))]
    again = Site(tmp_path / "state.db", counters())
    assert again.rows("SELECT value FROM counters") == [(1,)]
    again.close()


def test_a_fault_that_rollback_meets_closes_the_state(tmp_path: Path) -> None:
    """Where even the rollback fails the connection is closed by force, with its statements; the file is as it was."""
    site = Site(tmp_path / "state.db", counters())
    site.apply(("count", {"name": "a", "by": 1}))
    batch = site.executor._batch

    class Failing:
        """A cursor on a volume that is gone."""

        def execute(self, sql: str, *_: Any) -> Any:
            if sql in ("ROLLBACK", "COMMIT"):
                raise apsw.IOError("disk I/O error")
            return cursor.execute(sql)

    cursor, batch._cursor = batch._cursor, Failing()  # type: ignore[assignment]
    with pytest.raises(EnvironmentFault):
        site.apply(("count", {"name": "a", "by": 1}))
    assert site.state.statements is None or site.state.statements.open == 0
    with pytest.raises(apsw.ConnectionClosedError):
        site.rows("SELECT 1")
    again = Site(tmp_path / "state.db", counters())
    assert again.rows("SELECT value FROM counters") == [(1,)]
    again.close()
