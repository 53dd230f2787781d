"""The versions of the code that the log names; the newest is what new calls run.

One rule: a version is added when the entry that states it is committed, before any batch that runs it is handed to a site.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class CodeVersions:
    """Values of CATALOG records by version. A version is added whole and stays, so any thread may look."""

    def __init__(self, values: Mapping[int, Mapping[str, Any]]) -> None:
        self._values = dict(values)
        self.newest = max(values)

    def add(self, value: Mapping[str, Any]) -> None:
        """The log states one more version."""
        version = int(value["version"])
        self._values = {**self._values, version: value}
        self.newest = max(self.newest, version)

    @property
    def by_version(self) -> Mapping[int, Mapping[str, Any]]:
        """Every version that the log names, and its record's value."""
        return self._values

    @property
    def newest_value(self) -> Mapping[str, Any]:
        return self._values[self.newest]

    @property
    def newest_hash(self) -> str:
        """Hash of the bundle that new calls run."""
        return str(self.newest_value["hash"])

    def texts(self) -> dict[int, str]:
        """Every version's bundle as text."""
        return {version: str(value["bundle"]) for version, value in self._values.items()}
