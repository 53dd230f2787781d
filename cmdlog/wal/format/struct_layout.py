"""Fixed binary layouts: a list of (field, struct code), from which packing and the offset tables of FORMAT.md both follow.

One rule: little-endian, no implicit padding. The document's tables are compared with these lists by a test, so neither can drift.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StructField:
    name: str
    offset: int  # bytes
    size: int  # bytes


class Layout:
    """An ordered set of fields. `pack` takes the values in that order; `unpack` returns them in that order."""

    __slots__ = ("bytes", "codes", "fields", "pack", "title", "unpack_from")

    def __init__(self, title: str, *fields: tuple[str, str]) -> None:
        self.codes = "".join(code for _, code in fields)
        compiled = struct.Struct("<" + self.codes)
        self.title = title
        self.bytes: int = compiled.size
        self.pack = compiled.pack
        self.unpack_from = compiled.unpack_from
        self.fields: tuple[StructField, ...] = tuple(_place(fields))


def _place(fields: tuple[tuple[str, str], ...]) -> list[StructField]:
    placed, offset = [], 0
    for name, code in fields:
        size = struct.calcsize("<" + code)
        placed.append(StructField(name, offset, size))
        offset += size
    return placed
