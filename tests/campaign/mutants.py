"""Planted defects: `python -m tests.campaign.mutants NAME serve ...` is the program with one of them. Each is to be caught.

A defect that a kill cannot show (an answer before the fsync) is not here: `tests/node/test_power_cut.py` cuts the power.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.campaign.application import module_of


def forgotten_keys() -> None:
    """A start does not know the keys of the life before it."""
    from cmdlog.api.routes import batch, call
    from procedures.idempotency import known_outcome

    own = known_outcome.key_fingerprint
    salt = str(os.getpid())
    for module in (call, batch):
        for name, value in vars(module).items():
            if value is own:
                setattr(module, name, lambda scope, key: own(scope + salt, key))


def early_until() -> None:
    """`--until` leaves its own transaction out."""
    from replay.plan import until

    own = until.parse_until
    until.parse_until = lambda text: own(text) - 1 if text.isdecimal() else own(text)


def dropped_segment() -> None:
    """Every other segment is recycled without being archived."""
    from cmdlog.node.background import archiver

    own: Callable[..., bool] = archiver.Archiver._archive
    seen: list[int] = []

    def archive(self: Any, segment: Any, last_block: int) -> bool:
        seen.append(last_block)
        return True if len(seen) % 2 else own(self, segment, last_block)

    archiver.Archiver._archive = archive  # type: ignore[method-assign]


def old_code() -> None:
    """A deploy keeps the first version running."""
    sys.argv = [word if word not in NEWER else f"{module_of(1)}:db" for word in sys.argv]


NEWER: Final = frozenset(f"{module_of(version)}:db" for version in (2, 3))
MUTANTS: Final[dict[str, Callable[[], None]]] = {
    "forgotten-keys": forgotten_keys,
    "early-until": early_until,
    "dropped-segment": dropped_segment,
    "old-code": old_code,
}


def main() -> None:
    """The program, with the defect that its first argument names."""
    name, sys.argv = sys.argv[1], [str(Path(sys.argv[0])), *sys.argv[2:]]
    MUTANTS[name]()
    from cmdlog.cli.app import run

    run()


if __name__ == "__main__":
    main()
