"""What a seed makes a history of: settings, calls, and what happens between them. Drawn before anything runs.

One rule: the same seed draws the same history. Only moments are not drawn: at which instruction a kill finds the node, and which
transaction ids there are; a moment to go back to is drawn as a share of what was done.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from cmdlog.client.session import uuid7
from tests.campaign.application import VERSIONS
from tests.campaign.truth import Planned

ACCOUNTS: Final = 12
SESSION_CALLS: Final = 300  # with one floor, below all: any of them may be asked for again
BORN_MS: Final = 1_700_000_000_000  # of the first session
NOTE_BYTES: Final = (10, 200, 2000)
CHECKS: Final = ("recover", "history", "fork", "open", "drill", "verify", "plan")
HAPPENINGS: Final = (
    "calls",
    "batch",
    "load",
    "kill",
    "stop",
    "deploy",
    "snapshot",
    "point",
    "retry",
    "misuse",
    "room",
    "fill",
    "busy",
)
WEIGHTS: Final = (6, 4, 5, 2, 2, 3, 3, 2, 2, 1, 1, 6, 3)


@dataclass(frozen=True, slots=True)
class Step:
    """What happens next."""

    kind: str
    calls: tuple[Planned, ...] = ()
    share: float = 0.0  # of what was done so far: where to go back to; of the calls: after how many the kill comes
    durability: str = "sync"
    version: int = 0
    orderly: bool = True
    beside: bool = True  # the check is made beside the running node
    checks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class History:
    """All of it."""

    seed: int
    settings: dict[str, Any]
    steps: tuple[Step, ...]
    first_version: int = 1

    @property
    def promised(self) -> bool:
        """Whether every moment stays restorable, as long as nobody prunes the archive."""
        return self.settings["retention_window_s"] > 0 and self.settings["archive_full"] == "stop"


def draw(seed: int, *, steps: int) -> History:
    """The history of a seed."""
    chance = random.Random(seed)
    settings = _settings(chance)
    return History(seed, settings, tuple(_Drawing(chance, settings).steps(steps)))


def _settings(chance: random.Random) -> dict[str, Any]:
    partitions = chance.choice([1, 2, 3, 4])
    segment_bytes = chance.choice([64, 128, 256, 512]) << 10
    archive = chance.choice([0, 0, 4, 8]) * segment_bytes
    return {
        "partitions": partitions,
        "segment_bytes": segment_bytes,
        "segments": chance.choice([4, 6, 12]),
        "sites": min(chance.choice([1, 2]), partitions),
        "batch_calls_max": chance.choice([1, 16, 1024]),
        "call_bytes_max": 8000,
        "batch_bytes_max": 16_000,
        "durability": chance.choice(["sync", "async"]),
        "snapshots_kept": chance.choice([2, 3]),
        "snapshot_deltas": chance.choice(["true", "false"]),
        "digest_rows": chance.choice(["true", "true", "false"]),
        "snapshot_age_max_s": chance.choice([0, 1, 3600]),
        "retention_window_s": chance.choice([0, 86_400, 86_400]),
        "archive_bytes_max": archive,
        "archive_full": chance.choice(["stop", "shorten"]),
    }


@dataclass(slots=True)
class _Drawing:
    chance: random.Random
    settings: dict[str, Any]
    number: int = 0
    version: int = 1
    opened: set[int] = field(default_factory=set)
    session: str = ""  # with a number for every other call that has a name
    in_session: int = 0

    def steps(self, count: int) -> Iterator[Step]:
        yield Step("calls", tuple(self._opening()))
        for _ in range(count):
            yield self._step()
            if self.chance.random() < 0.4:
                yield self._check(1)
        yield self._check(3, also=("recover", "history"))

    def _opening(self) -> Iterator[Planned]:
        for account in range(ACCOUNTS // 2):
            yield self._call("begin", {"account": account}, keyed=True)

    def _check(self, count: int, also: tuple[str, ...] = ()) -> Step:
        names = tuple(dict.fromkeys([*also, *self.chance.choices(CHECKS, k=count)]))
        return Step("check", share=self.chance.random(), beside=self.chance.random() < 0.7, checks=names)

    def _step(self) -> Step:
        kind = self.chance.choices(HAPPENINGS, WEIGHTS)[0]
        durability = self.chance.choice(["sync", "sync", "async"])
        if kind == "deploy":
            self.version = self.chance.choice([version for version in VERSIONS if version != self.version])
            return Step(kind, version=self.version, orderly=self.chance.random() < 0.7)
        if kind in ("fill", "busy"):  # a few segments at once
            notes = [
                {"account": self.chance.randrange(ACCOUNTS), "text": "f" * 3000} for _ in range(self.chance.choice([50, 150]))
            ]
            return Step(
                "batch" if kind == "fill" else kind,
                tuple(self._call("note", params, keyed=True) for params in notes),
                durability=durability,
            )
        if kind in ("calls", "batch", "load"):
            count = self.chance.choice([5, 20, 60, 200]) if kind != "calls" else self.chance.choice([3, 10, 30])
            keyed = 0.6 if kind == "calls" else 1.0  # a batch may be answered late, and a load not at all
            calls = tuple(self._any_call(keyed=self.chance.random() < keyed) for _ in range(count))
            return Step(kind, calls, share=self.chance.random(), durability=durability)
        return Step(kind, share=self.chance.random(), durability=durability)

    def _any_call(self, *, keyed: bool) -> Planned:
        account, chance = self.chance.randrange(ACCOUNTS), self.chance
        kinds = [
            "begin",
            "deposit",
            "withdraw",
            "crunch",
            "broken",
            "note",
            "set_rate",
            *(["bonus"] if self.version == VERSIONS[-1] else []),
        ]
        weights = [1, 8, 4, 2, 1, 4, 1, 2][: len(kinds)]
        kind = chance.choices(kinds, weights)[0]
        drawn: dict[str, dict[str, Any]] = {
            "deposit": {"amount": chance.randrange(1, 100)},
            "withdraw": {"amount": chance.randrange(1, 200)},
            "crunch": {"rounds": chance.choice([10, 1000, 20_000])},
            "note": {"text": chance.choice("abc") * chance.choice(NOTE_BYTES)},
        }
        params: dict[str, Any] = {"account": account, **drawn.get(kind, {})}
        if kind == "set_rate":
            params = {"name": chance.choice("xyz"), "value": chance.randrange(-1, 9)}
        return self._call(kind, params, keyed=keyed)

    def _call(self, procedure: str, params: dict[str, Any], *, keyed: bool) -> Planned:
        self.number += 1
        if not keyed:
            return Planned(self.number, procedure, params, None)
        return Planned(self.number, procedure, params, self._number() if self.number % 2 else f"call-{self.number}")

    def _number(self) -> str:
        """The next one of a client session, as an error or a caller writes it; nothing is below its floor."""
        if self.in_session % SESSION_CALLS == 0:
            self.session = uuid7(BORN_MS + self.number, self.chance.randbytes(10))
        self.in_session += 1
        return f"session {self.session}; number={self.in_session % SESSION_CALLS or SESSION_CALLS}"
