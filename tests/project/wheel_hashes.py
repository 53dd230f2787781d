"""The hashes of the packages that a server's image installs, beside the versions of `constraints.txt`.

`make hashes` writes them: pip resolves each version for the image's Python and processors, and reports the file that it would
install. `tests/cli/test_files.py` holds the versions to `constraints.txt`.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
PATH: Final = ROOT / "cmdlog" / "deploy" / "cmdlog-requirements.txt"
HEAD: Final = """\
# What a cmdlog server runs with, on Python 3.11 of Linux (x86_64 and aarch64): `pip install --require-hashes` takes these files
# and no others. Written by `make hashes` from constraints.txt.
"""
PYTHON: Final = "3.11"
MACHINES: Final = ("x86_64", "aarch64")
LIBRARIES: Final = ("manylinux_2_28", "manylinux_2_17", "manylinux2014")


def runtime() -> list[str]:
    """`name==version` of each package that a server needs, as `constraints.txt` lists them."""
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    return re.findall(r"^\S+==\S+$", text.partition("# runtime\n")[2].partition("\n\n")[0], re.MULTILINE)


def plain_name(requirement: str) -> str:
    """As packages are compared."""
    return re.sub("[-_.]+", "-", requirement.partition("==")[0]).lower()


def requirements(wanted: Iterable[str], reports: Iterable[Mapping[str, Any]]) -> str:
    """The file, from one report of pip per processor."""
    hashes: dict[str, list[str]] = {}
    for report in reports:
        for found in report["install"]:
            digest = found["download_info"]["archive_info"]["hashes"]["sha256"]
            of_package = hashes.setdefault(plain_name(found["metadata"]["name"]), [])
            of_package.extend({digest} - {*of_package})
    lines = (" \\\n    ".join([each, *(f"--hash=sha256:{one}" for one in hashes[plain_name(each)])]) for each in wanted)
    return HEAD + "\n".join(lines) + "\n"


def report_for(machine: str) -> Any:
    """What pip would install there; nothing is installed."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as wanted:
        wanted.write("\n".join(runtime()))
        wanted.flush()
        platforms = [option for library in LIBRARIES for option in ("--platform", f"{library}_{machine}")]
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed", "--no-deps"]
        command += ["--only-binary=:all:", "--python-version", PYTHON, "--target", "none", "--report", "-", *platforms]
        return json.loads(subprocess.check_output([*command, "-r", wanted.name]))


if __name__ == "__main__":
    PATH.write_text(requirements(runtime(), map(report_for, MACHINES)), encoding="utf-8")
