"""A Python with the packages of this one, and without this one."""

from __future__ import annotations

import sys
import sysconfig
import venv
from pathlib import Path


def bare_python(folder: Path, planted: str = "") -> str:
    """A Python with all packages of this one, but for those of an editable install; `planted` runs when it starts."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    packages = [entry for entry in sys.path if entry.endswith("-packages")]
    (site / "packages.pth").write_text("\n".join(packages))  # links of those folders to elsewhere are not followed
    (site / "sitecustomize.py").write_text(planted)
    return str(folder / "bin" / "python")
