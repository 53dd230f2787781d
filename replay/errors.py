"""What can stop a recovery, told so that an operator can act. `exit_code` is the command line's exit code for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


class ReplayError(Exception):
    """Root of this package's errors. `hint` is what to do about it."""

    exit_code: ClassVar[int] = 1
    hint: ClassVar[str] = ""

    def __str__(self) -> str:
        message = super().__str__()
        return f"{message} ({self.hint})" if self.hint else message


@dataclass(frozen=True, slots=True)
class Place:
    """The invocation at which a replay left the path of the live run. `position` is -1 when only the batch is known."""

    partition: int
    index: int
    txn_id: int
    position: int
    procedure: str
    expected: str
    got: str


class Divergence(ReplayError):
    """The same invocation did something else than when it was live."""

    exit_code = 16
    hint = (
        "the procedure is not deterministic, or code or environment differ: see `cmdlog check`; the partition's state was removed"
    )

    def __init__(self, place: Place) -> None:
        self.place = place
        call = f"call {place.position} ({place.procedure})" if place.position >= 0 else f"one of {place.procedure}"
        super().__init__(
            f"divergence in partition {place.partition} at index {place.index}, transaction {place.txn_id}, {call}: "
            f"live {place.expected}, replayed {place.got}"
        )


class Incomplete(ReplayError):
    """Log and snapshots at hand do not reach every acknowledged invocation."""

    exit_code = 17
    hint = "restore the missing files from a copy, or recover what there is with `--accept-data-loss --to OUT`"


class BadUntil(ReplayError):
    """What was given as `--until` is no moment."""

    exit_code = 2
    hint = "give a transaction id, or a time with its offset from UTC"


class UntilUnreachable(ReplayError):
    """No snapshot before that moment is left, and the log does not reach back."""

    hint = "choose a later moment, or restore an older snapshot"


class PlanOutdated(ReplayError):
    """The directory is not any more what the plan was made from."""

    hint = "make a new plan with `cmdlog recover --plan`"


class BadPlan(ReplayError):
    """The plan file is none."""

    exit_code = 2


class WorkerFailed(ReplayError):
    """A replay process ended without an answer. The state files are whole; recovery goes on from them when started again."""


class RemoteError(ReplayError):
    """An error of a replay process, as it told it."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.kind = str(told["kind"])
        self.code = int(told["exit_code"])
        super().__init__(str(told["message"]))

    @property
    def exit_code(self) -> int:  # type: ignore[override]
        return self.code
