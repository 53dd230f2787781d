"""The container: its Dockerfile is carried out, its server started and probed as the file says."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest

from cmdlog.cli.files import read_deploy_file
from tests.cli.image_steps import NO_MOUNTS, Dockerfile
from tests.project.wheel_hashes import PATH, plain_name, requirements, runtime
from tests.waiting import PATIENCE_S, ask_for

CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGES = ("cmdlog", "procedures", "replay", "snapshot")
UID = "8642"
APPLICATION = """\
from procedures.samples.bank import db as db
"""


def dockerfile() -> Dockerfile:
    """That of the package."""
    return Dockerfile.parse(read_deploy_file("Dockerfile"))


def put_context(folder: Path) -> Path:
    """What a user has beside the Dockerfile."""
    folder.mkdir()
    for name in ("Dockerfile", "cmdlog-requirements.txt"):
        (folder / name).write_text(read_deploy_file(name))
    (folder / "shop.py").write_text(APPLICATION)
    return folder


def put_wheel(folder: Path) -> None:
    """The product as a wheel, without its parts in C: it works without."""
    about = f"cmdlog-{version('cmdlog')}.dist-info"
    with zipfile.ZipFile(folder / f"cmdlog-{version('cmdlog')}-py3-none-any.whl", "w") as wheel:
        for path in (path for package in PACKAGES for path in (CHECKOUT / package).rglob("*")):
            if path.is_file() and path.suffix not in (".so", ".pyc"):
                wheel.write(path, path.relative_to(CHECKOUT))
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: cmdlog\nVersion: {version('cmdlog')}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/entry_points.txt", "[console_scripts]\ncmdlog = cmdlog.cli:main\n")
        wheel.writestr(f"{about}/RECORD", "")


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts and other users need root")
def test_the_image_is_built_and_serves(tmp_path: Path) -> None:
    """Its server starts as a user of its own, the probe passes the gate that holds strangers, and SIGTERM ends it in order."""
    apart = ["unshare", "--mount", "--net", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    os.umask(0o022)  # of who builds: the image's user reads what is in the context
    context, root = put_context(tmp_path / "context"), tmp_path / "root"
    put_wheel(context)
    root.mkdir()
    program = [*apart, sys.executable, "-m", "tests.cli.image_steps", str(context), str(root)]
    done = subprocess.run(program, cwd=CHECKOUT, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode == NO_MOUNTS:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout) == {
        "ready": True,
        "uids": [[UID, UID]],
        "stranger": 401,
        "modes": {name: [int(UID), mode] for name, mode in {"node": "0o750", "tokens": "0o600", "probe": "0o600"}.items()},
        "ended": 0,
    }


def docker(*words: str) -> str:
    """What it prints. Raises: CalledProcessError."""
    return subprocess.run(["docker", *words], check=True, capture_output=True, text=True, timeout=PATIENCE_S).stdout


@pytest.fixture
def builder() -> None:
    """A daemon that has the base, or gets it."""
    try:
        docker("info")
        docker("pull", "--quiet", dockerfile().base)
    except (OSError, subprocess.SubprocessError):
        pytest.skip("no builder of containers")


@pytest.mark.slow
@pytest.mark.timeout(900)  # it installs all packages
def test_a_builder_makes_an_image_that_serves(tmp_path: Path, builder: None) -> None:
    """The commands of the first lines, and then the same as above, by the probe within the container."""
    context, name = put_context(tmp_path / "context"), f"cmdlog-test-{os.urandom(4).hex()}"
    put_wheel(context)
    found = dockerfile()
    try:
        for line in found.commands:
            words = re.sub(r"\bshop\b(?!\.py)", name, line).replace("127.0.0.1:8642:8642", "127.0.0.1::8642")
            subprocess.run(shlex.split(words), cwd=context, check=True, capture_output=True, timeout=3 * PATIENCE_S)
        probe = ["docker", "exec", name, *found.probe]
        ask_for(lambda: subprocess.run(probe, capture_output=True, check=False).returncode == 0, why="the probe finds no server")
        assert docker("exec", name, "id", "-u").strip() == UID
        docker("stop", name)
        assert docker("inspect", "--format", "{{.State.ExitCode}}", name).strip() == "0"
    finally:
        for undo in (("rm", "--force", name), ("volume", "rm", "--force", f"{name}-data"), ("rmi", "--force", name)):
            subprocess.run(["docker", *undo], capture_output=True, check=False)


def test_the_base_is_one_by_digest() -> None:
    """A tag may become another image; what pip installs is named by hash, too."""
    assert re.fullmatch(r"python:3\.11\.\d+-slim@sha256:[0-9a-f]{64}", dockerfile().base)
    installs = re.findall(r"pip install.*", read_deploy_file("Dockerfile"))
    assert all("--require-hashes" in line or "--no-index" in line for line in installs)


def test_hashes_are_of_the_versions_that_the_tests_run_with() -> None:
    """Each package of a server, once; for `make hashes` where this fails."""
    listed = re.findall(r"^(\S+==\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", PATH.read_text(), re.MULTILINE)
    assert [name for name, _ in listed] == runtime()
    assert all(hashes.count("--hash") in (1, 2) for _, hashes in listed), "one file, or one for each processor"


def test_one_file_for_all_processors_has_one_hash() -> None:
    """Names are compared as pip does."""

    def report(digest: str) -> dict[str, object]:
        found = {
            "metadata": {"name": "Some.Thing", "version": "1"},
            "download_info": {"archive_info": {"hashes": {"sha256": digest}}},
        }
        return {"install": [found]}

    assert plain_name("Some_Thing==1") == "some-thing"
    written = [requirements(["some_thing==1"], map(report, digests)) for digests in (("a", "a"), ("a", "b"))]
    assert [re.findall("sha256:(.)", text) for text in written] == [["a"], ["a", "b"]]
