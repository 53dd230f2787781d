"""Forks' other code: deposits count three times."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from procedures.bundle import Bundle
from tests.replay.rig import APP

TRIPLE = 3
PARAMETERS = {"begin": ["account"], "clock": ["account"], "deposit": ["account", "amount"], "drift": ["account"]}


def stated_bundle(factor: int) -> Bundle:
    """The rig's application, with what a real bundle states of its procedures."""
    content: dict[str, Any] = {
        "target": "ledger:db",
        "modules": {"ledger": f"FACTOR = {factor}\n{APP}"},
        "packages": [],
        "sql": {},
        "procedures": [{"name": name, "parameters": names} for name, names in sorted(PARAMETERS.items())],
    }
    return Bundle(**content, hash=hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest())
