"""The newest version is what new calls run; versions only come."""

from __future__ import annotations

import pytest

from procedures.code.code_versions import CodeVersions


def value(version: int) -> dict[str, object]:
    """Of a CATALOG record."""
    return {"version": version, "hash": f"hash-{version}", "bundle": f"bundle-{version}"}


def test_newest_version_counts() -> None:
    """Also when an older one becomes known after it; texts are those of all."""
    code = CodeVersions({1: value(1), 3: value(3)})
    assert (code.newest, code.newest_hash) == (3, "hash-3")
    before = code.by_version
    code.add(value(4))
    code.add(value(2))
    assert (code.newest, code.newest_value) == (4, value(4))
    assert code.texts() == {version: f"bundle-{version}" for version in (1, 2, 3, 4)}
    assert set(before) == {1, 3}, "who looked before has what was known then"


def test_log_names_a_version() -> None:
    """One that names none is no log of a node."""
    with pytest.raises(ValueError, match="empty"):
        CodeVersions({})
