"""A program that opens a database and calls what settings would decide.

`python … -m tests.procedures.settings_program DIR OUT SETS SITES`
"""

from __future__ import annotations

import json
import locale
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cmdlog
from tests.procedures.settings_app import PROCEDURES, db


def _close_streams() -> None:
    """Standard output and error become pipes that nobody reads."""
    for number in (1, 2):
        reader, writer = os.pipe()
        os.close(reader)
        os.dup2(writer, number)


SETS: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "filters": lambda: warnings.simplefilter("error", UserWarning),
    "limit": lambda: sys.setrecursionlimit(20_000),
    "low limit": lambda: sys.setrecursionlimit(450),
    "digits": lambda: sys.set_int_max_str_digits(0),
    "streams": _close_streams,
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
}


def main() -> None:
    """Calls each procedure once; the outcomes go to a file."""
    directory, out, sets, sites = sys.argv[1:]
    SETS[sets]()
    outcomes: dict[str, Any] = {}
    with cmdlog.open(directory, db, partitions=1, sites=int(sites)) as shop:
        for name in PROCEDURES:
            try:
                outcomes[name] = shop.call(name, item=1)
            except cmdlog.ProcedureFailed as error:
                outcomes[name] = str(error).partition(" (")[0]
    Path(out).write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main()
