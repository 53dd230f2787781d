"""The fold over a log's records: where each partition's stream ends, what is void in it, and which calls are skipped.

One rule: it follows from the records alone, in log order, and every pass over a log keeps these facts this way. A pass adds
what it looks for besides in the hooks of `StreamFold`; what it keeps per record is its own affair.

None of it can be known on the way through a log. A void suffix is known to be void only where its replacement lies, and a SKIP
may lie anywhere after the batch that it concerns. So entries are applied or listed in a second pass.
"""

from __future__ import annotations

from collections.abc import Iterable

from cmdlog.wal.ids import Lsn

Place = tuple[int, int, int]  # (block, offset, number): what a record there says about those before it


def is_void(voids: Iterable[Place], lsn: Lsn, index: int) -> bool:
    """Whether a later record of the log put this entry out of force."""
    return any(index >= first and lsn < (block, offset) for block, offset, first in voids)
