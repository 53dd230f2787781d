"""Writes what pytest makes of the tests' assertions, before its processes collect them: `python -m tests.kept_asserts`.

Each process collects all tests. In a fresh clone every one would take nine seconds of processor for this, and write the same
files as the others; here all cores share the work. pytest has no command for it, so this uses its inner parts, whose version
constraints.txt fixes; `tests/test_kept_asserts.py` says whether pytest takes what is written here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from _pytest.assertion import rewrite

TESTS = Path(__file__).parent
CHUNK = 16  # files


def modules(folder: Path) -> Iterator[Path]:
    """Those whose assertions pytest rewrites."""
    yield from (path for path in folder.rglob("*.py") if path.name == "conftest.py" or path.name.startswith("test_"))


def kept_at(module: Path) -> Path:
    """Where pytest looks for it."""
    return rewrite.get_cache_dir(module) / (module.stem + rewrite.PYC_TAIL)


def keep(module: Path) -> None:
    """Writes the file that pytest would write, unless it is there."""
    kept = kept_at(module)
    if rewrite._read_pyc(module, kept) is None:
        kept.parent.mkdir(exist_ok=True)
        source, code = rewrite._rewrite_test(module, None)  # type: ignore[arg-type]
        rewrite._write_pyc(None, code, source, kept)  # type: ignore[arg-type]


def main() -> None:
    """All of them, where Python may write bytecode."""
    if not sys.dont_write_bytecode:
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            list(pool.map(keep, sorted(modules(TESTS)), chunksize=CHUNK))


if __name__ == "__main__":
    main()
