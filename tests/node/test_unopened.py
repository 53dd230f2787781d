"""What stands for a database while code is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import cmdlog
from cmdlog.node.deploying.unopened import Unopened
from procedures.samples import bank
from procedures.source.loading import ProgramBegins, loading


def test_every_use_begins_the_program(tmp_path: Path) -> None:
    """Closing is none; nothing is made on disk."""
    with loading():
        shop: Any = cmdlog.open(tmp_path / "data", bank.db)
    assert type(shop) is Unopened
    shop.close()
    uses: tuple[Callable[[], Any], ...] = (
        lambda: shop.call("balance", id=1),
        lambda: shop.query("SELECT 1"),
        lambda: shop.node,
        shop.__enter__,
    )
    for use in uses:
        with pytest.raises(ProgramBegins):
            use()
    assert not (tmp_path / "data").exists()
