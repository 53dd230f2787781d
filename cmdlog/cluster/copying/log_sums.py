"""SUMS and KNOWN: what two members ask each other to find out whether their logs hold the same entries.

One rule: a node answers from memory, with what its own scrub has read; it reads nothing for a question. A range that it has not
read is missing in the answer. `stride` says how many entries a range has: a program with other ranges knows none of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from cmdlog.wal.format.json_reader import whole_number

RANGES_MAX: Final = 4096  # in one question


@dataclass(frozen=True, slots=True)
class SumsRequest:
    """SUMS: the sums of a group's ranges first..last."""

    group: int
    first: int
    last: int
    stride: int  # entries of a range

    def to_json(self) -> dict[str, Any]:
        return {"group": self.group, "first": self.first, "last": self.last, "stride": self.stride}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: ValueError, KeyError, TypeError."""
        request = cls(*(whole_number(value[name]) for name in ("group", "first", "last", "stride")))
        if not 0 <= request.first <= request.last < request.first + RANGES_MAX:
            raise ValueError(f"ranges {request.first} to {request.last}, of which there may be {RANGES_MAX}")
        return request


@dataclass(frozen=True, slots=True)
class KnownSums:
    """KNOWN: range -> its sum, of those that the node has read."""

    sums: Mapping[int, int]

    def to_json(self) -> dict[str, Any]:
        return {"sums": {str(number): value for number, value in self.sums.items()}}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """Raises: ValueError, KeyError, TypeError."""
        if len(value["sums"]) > RANGES_MAX:
            raise ValueError(f"{len(value['sums'])} ranges")
        return cls({int(number): whole_number(found) for number, found in value["sums"].items()})
