"""`cluster/diverged.json`: the partitions of this node whose states are other ones than a majority has, and since which entry.

One rule: it is durable before the node says so, and outlives every restart: the state file keeps what was wrongly done, and later
digests, which are of changed rows alone, may well agree. An operator removes the file when `cmdlog diff` shows no difference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from cmdlog.wal.directory.instance import CLUSTER_FOLDER
from cmdlog.wal.errors import Corrupt
from cmdlog.wal.files import Files
from cmdlog.wal.format.json_reader import load_document

FILE_NAME: Final = "diverged.json"


@dataclass(frozen=True, slots=True)
class PartitionDivergence:
    """One partition's."""

    index: int  # of the first entry that did something else
    reason: str


class DivergenceFile:
    """One thread at a time."""

    def __init__(self, files: Files, directory: str) -> None:
        """Of a node; that of no member names none. Raises: Corrupt."""
        self._files, self._path = files, os.path.join(directory, CLUSTER_FOLDER, FILE_NAME)
        self._known: dict[int, PartitionDivergence] = {}
        if files.exists(self._path):
            try:
                stored = load_document(files, self._path)
                self._known = {int(partition): PartitionDivergence(of["index"], of["reason"]) for partition, of in stored.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise Corrupt(f"{self._path} names no partitions: {error}", path=self._path) from None

    def by_partition(self) -> Mapping[int, PartitionDivergence]:
        """Those that diverged."""
        return dict(self._known)

    def add_divergence(self, partition: int, divergence: PartitionDivergence) -> None:
        """Durable on return. Raises: WalError."""
        self._save({**self._known, partition: divergence})

    def remove_divergence(self, partition: int) -> None:
        """A majority agrees with this node; durable on return. Raises: WalError."""
        self._save({other: of for other, of in self._known.items() if other != partition})

    def _save(self, known: Mapping[int, PartitionDivergence]) -> None:
        value = {str(partition): {"index": of.index, "reason": of.reason} for partition, of in sorted(known.items())}
        self._files.write_file_atomic(self._path, orjson.dumps(value, option=orjson.OPT_INDENT_2))
        self._known = dict(known)
