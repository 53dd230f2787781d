"""Commands that run in the test's own process start as a new one would."""

from __future__ import annotations

import pytest

from cmdlog.cli.output import out


@pytest.fixture(autouse=True)
def _for_people(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--json` of an earlier command is forgotten."""
    monkeypatch.setattr(out, "json", False)
