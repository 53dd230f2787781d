"""How a process collects garbage, while it loads what it needs and from then on.

One rule: what is loaded is never looked at, and collections are rare. Calls make hundreds of small objects that end by
their count of references; each collection among them walks over those that are still in use. Every 700 objects, as Python does
it, that took 4 % of a single call over HTTP and 5 % of a line of a batch.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

YOUNG_MAX: Final = 20_000  # objects made between two collections: a few megabytes
OLDER_EVERY: Final = 20  # collections of the younger ones, before those that survived them are looked at


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Modules are imported: two hundred thousand objects that live as long as the process, and one in a hundred is garbage.

    A single look at them would take as long as a tenth of the imports.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def settle_garbage_collection() -> None:
    """All that is loaded lives as long as the process: modules, schemas, routes, caches."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_MAX, OLDER_EVERY, OLDER_EVERY)
