"""Code is imported as a recovery imports it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cmdlog.node.sites.trial_load import load_alone
from procedures.code.bundle import capture_bundle
from procedures.errors import BundleError
from tests.node.deployed import make_version


def test_code_is_loaded_in_an_empty_folder_without_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Afterwards the process is where it was, and searches what it searched, and what the code has added."""
    empty, own, added = tmp_path / "empty", tmp_path / "own", "/added by the code"
    monkeypatch.chdir(tmp_path)
    empty.mkdir()
    own.mkdir()
    (own / "only_there.py").touch()
    monkeypatch.setattr(sys, "path", [str(own), *sys.path])
    look = f"import os, sys\nassert '__file__' in globals() or os.getcwd() == {str(empty)!r}\nsys.path.append({added!r})"
    load_alone(capture_bundle(make_version(tmp_path, 1, tables=look)[0]), [str(own)], str(empty))
    assert (Path.cwd(), sys.path[0]) == (tmp_path, str(own))
    assert added in sys.path
    needs = capture_bundle(make_version(tmp_path, 2, tables="if '__file__' not in globals(): import only_there")[0])
    with pytest.raises(BundleError, match="only_there"):
        load_alone(needs, [str(own)], str(empty))
    assert os.listdir(empty) == []
