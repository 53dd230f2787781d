"""How far the scrub of a node directory is, over restarts: `state/scrub.json`.

One rule: a figure, never a condition. It is written without a sync, and a file that is missing, damaged or of another version
costs one pass from the begin: everything that it says is found again on the disk.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from cmdlog.wal.format.checked_json import decode_checked, encode_checked

NAME: Final = "scrub.json"
FORMAT: Final = 1


@dataclass(slots=True)
class ScrubPass:
    """One pass over everything."""

    began: float  # seconds since 1970
    upto: dict[str, str]  # kind -> the last name when it began
    after: tuple[str, str] = ("", "")  # key of the last file that it finished
    current: tuple[str, str] | None = None  # key of the one that it is reading
    at: dict[str, Any] | None = None  # where in there
    bytes: int = 0  # read so far
    files: int = 0
    damaged: int = 0

    def begin_file(self, key: tuple[str, str]) -> None:
        """It is read from its begin, unless it is the one that is being read."""
        if self.current != key:
            self.current, self.at = key, None

    def note_slice(self, size: int, at: dict[str, Any] | None) -> None:
        """So many bytes more, and where the next slice begins."""
        self.bytes, self.at = self.bytes + size, at

    def end_file(self, key: tuple[str, str], *, whole: int = 0, damaged: int = 0) -> None:
        """It was read to its end, was damaged, or has gone."""
        self.files, self.damaged = self.files + whole, self.damaged + damaged
        self.after, self.current, self.at = key, None, None


@dataclass(slots=True)
class ScrubProgress:
    """All that a restart continues with."""

    under_way: ScrubPass | None = None
    last: dict[str, Any] | None = None  # began, finished, bytes, files, damaged of the last pass
    passes: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)
    sums: dict[str, dict[str, int]] = field(default_factory=dict)  # group -> range -> sum, of the last whole reading of the log

    def begin_pass(self, now: float, upto: dict[str, str]) -> ScrubPass:
        """A new one, over what there is now."""
        self.under_way = ScrubPass(now, upto)
        return self.under_way

    def end_pass(self, now: float) -> dict[str, Any]:
        """The pass under way is over; what is kept of it."""
        of = self.under_way
        assert of is not None
        self.last = {"began": of.began, "finished": now, "bytes": of.bytes, "files": of.files, "damaged": of.damaged}
        self.passes, self.under_way = self.passes + 1, None
        return self.last

    def take_sums(self, sums: dict[str, dict[str, int]]) -> None:
        """In the place of those that were known: others may be reading them."""
        self.sums = sums

    def save(self, folder: str, findings: list[dict[str, Any]]) -> None:
        """Replaces the file. Best effort."""
        self.findings = findings
        write_progress(folder, self)

    @property
    def last_began(self) -> float | None:
        return None if self.last is None else float(self.last["began"])


def read_progress(folder: str) -> ScrubProgress:
    """As it was written last, or a new one."""
    path = os.path.join(folder, NAME)
    with contextlib.suppress(OSError, TypeError, KeyError, ValueError):
        value = decode_checked(Path(path).read_bytes())
        if value.pop("format") == FORMAT:
            now = value.pop("under_way")
            return ScrubProgress(None if now is None else _pass_of(now), **value)
    return ScrubProgress()


def _pass_of(value: dict[str, Any]) -> ScrubPass:
    current = value.pop("current")
    after: tuple[str, str] = tuple(value.pop("after"))
    return ScrubPass(after=after, current=None if current is None else tuple(current), **value)


def write_progress(folder: str, progress: ScrubProgress) -> None:
    """Replaces the file. Best effort."""
    path = os.path.join(folder, NAME)
    temporary = f"{path}.tmp"
    with contextlib.suppress(OSError):
        Path(temporary).unlink(missing_ok=True)
        with open(temporary, "xb") as file:  # "x" follows no link that somebody has put there
            file.write(encode_checked({"format": FORMAT, **asdict(progress)}))
        os.replace(temporary, path)
