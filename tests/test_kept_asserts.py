"""What is kept of the tests' assertions: pytest takes it for its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

from tests.kept_asserts import keep, kept_at, modules


def test_what_is_kept_is_what_pytest_makes(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """A module's code is found where pytest looks, and is that which it would make under this configuration."""
    module = Path(shutil.copy(__file__, tmp_path))
    keep(module)
    kept = rewrite._read_pyc(module, kept_at(module))
    _, made = rewrite._rewrite_test(module, pytestconfig)
    assert kept == made
    assert kept_at(module).parent == rewrite.get_cache_dir(module)


def test_every_module_of_tests_is_kept() -> None:
    """Test modules and configurations, and no helper."""
    names = {path.name for path in modules(Path(__file__).parent)}
    assert {"test_kept_asserts.py", "conftest.py"} <= names
    assert "kept_asserts.py" not in names
