"""The result of replaying one partition."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(slots=True)
class PartitionResult:
    """The result of replaying one partition."""

    partition: int
    entries: int = 0
    calls: int = 0
    batches: int = 0
    digests: int = 0  # batches whose results were compared with the live run's
    distrusted: int = 0  # batches that were not, since the log's digests are of a state that other nodes did not have
    distrust: str = ""  # … and since when, in which log
    index: int = 0
    term: int = 0
    checksum: int = 0
    txn_id: int = 0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)
