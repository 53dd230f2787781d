"""What `requests.c` holds; the Python beside each caller says what it does."""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from typing import Any

def read_line(
    line: bytes | None, routes: dict[str, Any], loads: Callable[[bytes], Any], /
) -> tuple[Any, list[Any], int | None] | None: ...
def examine_json(text: bytes, depth_max: int, value: Any = ..., /) -> int: ...
def split_json(content: bytes, piece_bytes: int, /) -> list[int] | None: ...
def read_call(
    data: bytes, head_bytes_max: int, headers_max: int, read: AbstractSet[bytes], /
) -> tuple[str, dict[bytes, bytes], bytes] | None: ...
