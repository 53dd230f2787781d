"""What can stop a recovery, in words that an operator can act on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final

from cmdlog.operator_error import OperatorError
from cmdlog.wal.errors import MOVED_ON_HINT

MIGRATION: Final = "migration"  # the procedure of a place that is a migration begins with it
ROWS_MAX: Final = 50  # of a place: enough to see what kind of difference it is
SUSPECTS_TOLD: Final = 3  # calls that the hint names; all are in the place


class ReplayError(OperatorError):
    """Root of this package's errors."""

    place: DivergencePlace | None = None  # the call that the error is about

    @property
    def stops(self) -> Sequence[_AtPlace]:
        """The calls at which a replay stopped, one of each partition."""
        return ()


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One row after the batch in question, as the replay left it and as the live run had it."""

    table: str
    key: Mapping[str, Any]  # column -> value, of the primary key; bytes as base64
    txn_id: int  # of the call that changed it last in the batch; 0 = not known
    replayed: Mapping[str, Any] | None  # None: there is no such row
    live: Mapping[str, Any] | None
    live_as_of_index: int | None  # where the live row was read; None: no live state at or after the batch is at hand

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "txn_id": str(self.txn_id)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RowDifference:
        return cls(**{**value, "txn_id": int(value["txn_id"])})

    @property
    def cells(self) -> tuple[str, str, str, str]:
        """Table, key, replayed, live."""
        at = self.live_as_of_index
        live = "not at hand" if at is None else f"{_pairs(self.live)} as of index {at}"
        return self.table, _pairs(self.key), _pairs(self.replayed), live


@dataclass(frozen=True, slots=True)
class DivergencePlace:
    """The invocation at which a replay diverged from the live run. `position` is -1 when only the batch is known."""

    partition: int
    index: int
    txn_id: int
    position: int
    procedure: str
    expected: str
    got: str
    catalog: int = 0  # version of the code that ran
    source_hash: str = ""  # of that version's bundle; "" = not at hand
    rows: tuple[RowDifference, ...] = ()  # that the call, or one of the batch, changed; those that differ first
    rows_left_out: int = 0  # beyond ROWS_MAX
    reruns: str = ""  # what replaying it again brought; "" = not tried
    kind: str = ""  # divergence, fault, hang, death, code; "" = not said
    suspects: tuple[tuple[int, str], ...] = ()  # TxnId, procedure: calls that a quarantine sets aside here, at most ROWS_MAX
    suspects_left_out: int = 0

    def to_json(self) -> dict[str, Any]:
        suspects = [{"txn_id": str(txn_id), "procedure": name} for txn_id, name in self.suspects]
        return {**asdict(self), "txn_id": str(self.txn_id), "rows": [row.to_json() for row in self.rows], "suspects": suspects}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DivergencePlace:
        rows = tuple(RowDifference.from_json(row) for row in value["rows"])
        suspects = tuple((int(one["txn_id"]), str(one["procedure"])) for one in value.get("suspects", ()))
        return cls(**{**value, "txn_id": int(value["txn_id"]), "rows": rows, "suspects": suspects})

    @property
    def call(self) -> str:
        """Describes the call and its code."""
        name = f"call {self.position} ({self.procedure}" if self.position >= 0 else f"one of ({self.procedure}"
        if self.procedure.startswith(MIGRATION):
            return f"{self.procedure} (of catalog version {self.catalog}, code {self.source_hash[:12]})"
        version = f" of catalog version {self.catalog}" if self.catalog else ""
        return f"{name}{version}{f', code {self.source_hash[:12]}' if self.source_hash else ''})"

    def __str__(self) -> str:
        return f"partition {self.partition} at index {self.index}, transaction {self.txn_id}, {self.call}"


class _AtPlace(ReplayError):
    """A partition's replay ended at a call; the others continued to their ends, or to places of their own."""

    what: ClassVar[str]
    cause: str
    place: DivergencePlace

    def __init__(self, place: DivergencePlace, also: Sequence[_AtPlace] = ()) -> None:
        self.place = place
        self.also = tuple(also)  # the other partitions that stopped
        super().__init__("; also stopped: ".join(stop.summary for stop in (self, *also)), hint=self.cause)

    @property
    def stops(self) -> tuple[_AtPlace, ...]:
        """Of every partition that stopped."""
        return (self, *self.also)

    @property
    def summary(self) -> str:
        """This partition alone, with the tables whose rows are at hand: values are in the place, a text may leave the node."""
        count, tables = len(self.place.rows) + self.place.rows_left_out, sorted({row.table for row in self.place.rows})
        return f"{self.headline}; rows at hand: {count}, of {', '.join(tables)}" if tables else self.headline

    @property
    def headline(self) -> str:
        """The call, and what it did, in one line, without its rows."""
        text = f"{self.what} in {self.place}: {self.why()}"
        return f"{text}; {self.place.reruns}" if self.place.reruns else text

    def why(self) -> str:
        return f"live {self.place.expected}, replayed {self.place.got}"

    def keeps(self, paths: Sequence[str]) -> None:
        """Adds where the untrusted states are kept, if the live run left any."""
        if paths:
            kept = "is" if len(paths) == 1 else "are"
            self.cause += f"; the state that was not trusted {kept} kept as {', '.join(paths)} until a start succeeds"
            self.hint = self.cause

    def advise(self, command: str) -> None:
        """Names the command that recovers without the calls in question. No advice where that command would stop as well."""
        if not all(stop.place.suspects for stop in self.stops):
            return
        calls = [f"{txn_id} ({name})" for stop in self.stops for txn_id, name in stop.place.suspects]
        more = len(calls) - SUSPECTS_TOLD + sum(stop.place.suspects_left_out for stop in self.stops)
        named = ", ".join(calls[:SUSPECTS_TOLD]) + (f" and {more} more" if more > 0 else "")
        what = "transaction" if len(calls) == 1 else "transactions"
        self.hint = (
            f"{self.cause}; `{command}` recovers without the effect of {what} {named}, and of any later call "
            "that stops the replay, and lists them"
        )


class Divergence(_AtPlace):
    """The same invocation behaved differently from the live run."""

    exit_code = 16
    what = "divergence"
    cause = (
        "the procedure is not deterministic, code or environment differ, or it was written under another hash seed (an embedding "
        "program without PYTHONHASHSEED=0): see `cmdlog check`; the partition's state was removed"
    )


class Poison(_AtPlace):
    """An invocation that cannot be run, though it could when it was live. The partition's state is as before its batch."""

    what = "a call that cannot be replayed"
    cause = "repair the named cause and start again"

    def __init__(self, place: DivergencePlace, also: Sequence[_AtPlace] = ()) -> None:
        super().__init__(place, also)
        self.exit_code = 13 if place.kind == "code" else 16

    def why(self) -> str:
        return self.place.got


class StateDamaged(ReplayError):
    """A state file of a node that was killed is not an intact database. It is no longer trusted."""

    exit_code = 10
    hint = "start again: the partition is rebuilt from snapshot and log"


class Interrupted(ReplayError):
    """The run was interrupted from outside; every state file is intact at the end of an entry."""

    exit_code = 130  # as of any program that Ctrl-C ends; the command line knows when it was another signal
    hint = "run the same command again to resume"


class Incomplete(ReplayError):
    """Log and snapshots at hand do not reach every acknowledged invocation."""

    exit_code = 17
    hint = "restore the missing files from a backup, or recover what is left with `--accept-data-loss --to OUT`"

    @classmethod
    def of(cls, losses: Sequence[str]) -> Incomplete:
        """All of them are its text; the first alone is its headline."""
        return cls("; ".join(losses), details=tuple(losses))

    @property
    def headline(self) -> str:
        return first_of(self.details) if self.details else self.message


class NotSoleVoter(Incomplete):
    """One directory of a cluster, or one whose log was emptied, was to be read or served as if its node decided alone."""

    hint = (
        "recover from the directories of all nodes (`cmdlog recover DIR DIR2 DIR3 --to OUT`), start it together with the other "
        "nodes (`cmdlog serve APP --data DIR --join cluster.json --node N`), or recover what it holds by itself with "
        "`cmdlog recover DIR --accept-data-loss --to OUT`"
    )


class BadUntil(ReplayError):
    """Invalid `--until`."""

    exit_code = 2
    hint = "give a transaction id, or a time with its UTC offset"


class UntilUnreachable(ReplayError):
    """No snapshot before that moment is left, and the log does not reach back far enough."""

    hint = "choose a later moment, or restore an older snapshot"


class UntilBeyond(ReplayError):
    """The moment is after the newest transaction, or before the first one: there is no such state."""

    hint = "choose a moment in between, or omit --until to get the newest state"


class PlanOutdated(ReplayError):
    """The directory has changed since the plan was made."""

    hint = "make a new plan with `cmdlog recover --plan`"


class EntryMissing(ReplayError):
    """The log lacks an entry of a partition."""

    exit_code = 10
    hint = "see `cmdlog log verify`; restore the log from a backup, or recover from another node's directory"


class BadPlan(ReplayError):
    """The file is not a recovery plan."""

    exit_code = 2


class StreamDamaged(ReplayError):
    """A chosen log cannot be read as far as its partitions need it."""

    exit_code = 10
    hint = "the directory is untouched; take the range from another node's log, or restore the file from a backup"

    def __init__(self, log: str, waiting: Mapping[int, tuple[int, int]], what: str, *, held_bytes: int) -> None:
        """`waiting` is partition -> (index that comes next, last index that is wanted)."""
        self.log, self.waiting, self.held_bytes = log, dict(waiting), held_bytes
        streams = ", ".join(f"partition {p} from index {n} to {upto}" for p, (n, upto) in sorted(self.waiting.items()))
        super().__init__(
            f"log {log} cannot be read further for {streams or 'nothing'}: {what}; {held_bytes:,} bytes of it are buffered"
        )


class LogMovedOn(StreamDamaged):
    """Nothing is damaged: a running node let go of a part of its log before that was read, and no archive has it."""

    exit_code = 1
    hint = MOVED_ON_HINT


class ReshapeRefused(ReplayError):
    """The states cannot be placed in the requested number of partitions; nothing was made."""

    hint = "without --partitions the node is recovered in its present shape"


class WorkerFailed(ReplayError):
    """A replay process ended without an answer. The state files are intact; a recovery that is started again resumes from
    them."""


class RemoteError(ReplayError):
    """An error that a replay process reported."""

    def __init__(self, told: dict[str, Any]) -> None:
        """`told` is the error's `to_json`."""
        super().__init__(str(told["message"]), hint=told["hint"], exit_code=told["exit_code"], kind=told["kind"])


def first_of(items: Sequence[str]) -> str:
    """The first of several messages, and how many more there are: for an error of one line."""
    return items[0] + (f" (and {len(items) - 1} more)" if len(items) > 1 else "")


def _pairs(values: Mapping[str, Any] | None) -> str:
    return "no row" if values is None else " ".join(f"{name}={value!r}" for name, value in values.items())


class NoLogs(ReplayError):
    """None of the directories holds a log that may be used. `exit_code` is that of the first refusal, else that of `Incomplete`:
    a log that was emptied held something."""

    hint = "check the paths; each must be a node's directory"

    def __init__(self, what: str, exit_code: int = 1) -> None:
        super().__init__(what, exit_code=exit_code or Incomplete.exit_code)


class ForeignDirectory(ReplayError):
    """Directories of different clusters were given together."""

    exit_code = 11
    hint = "give the directories of one cluster"


class TwoCopies(ReplayError):
    """Two directories of the same node: at most one of them is current."""

    hint = "give the newer one, or recover each of them separately"


class ForkedFaultLogs(ReplayError):
    """Two fault records that cannot be in one history. Each is given as (directory, sequence, checksum)."""

    hint = "these directories have diverged; recover each side separately, and compare them with `cmdlog diff`"

    def __init__(self, one: tuple[str, int, int], other: tuple[str, int, int]) -> None:
        self.one, self.other = one, other
        told = (
            f"{directory} holds fault record {sequence} with checksum {checksum:08x}"
            for directory, sequence, checksum in (one, other)
        )
        super().__init__("two histories: " + ", ".join(told))


class ConflictingCommits(ReplayError):
    """Two logs know different entries to be committed in one place."""

    hint = "these directories have diverged, or one was made with lost data; recover each side separately"
