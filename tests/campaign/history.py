"""Lives a history: one real node from its first start to its last comparison.

One rule: a call counts once its outcome is known. After a crash, calls of unknown outcome are repeated under their keys before
anything is compared.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import cmdlog
from cmdlog.client import Call
from cmdlog.errors import Aborted, CmdlogError, KeyReused, OutcomeUnknown, ProcedureFailed, ServerFault, Unavailable, Unreachable
from cmdlog.wal.ids import MILLIS_SHIFT
from tests.campaign.application import Outcome, module_of, write_versions
from tests.campaign.checks import Checks
from tests.campaign.plan import History, Step, draw
from tests.campaign.program import Program, Server
from tests.campaign.truth import Made, Planned, Truth, Wrong
from tests.waiting import PATIENCE_S, eventually

CALLERS: Final = 3  # threads of a load
ROOM_S: Final = PATIENCE_S  # for a node to get out of a full log once it may
POINTS_KEPT: Final = 2  # the node's default


@functools.cache
def applications() -> Path:
    """Where the versions lie; importable here and by every process."""
    folder = Path(tempfile.mkdtemp(prefix="cmdlog-campaign-"))
    write_versions(folder)
    sys.path.insert(0, str(folder))
    return folder


def outcome_of(error: CmdlogError) -> Outcome | None:
    """What the call ended with; None where it has no outcome of its own."""
    if isinstance(error, Aborted):
        return "aborted", error.abort_code
    return ("failed", error.error_type) if isinstance(error, ProcedureFailed) else None


class Life:
    """One node and its truth."""

    def __init__(self, history: History, folder: Path, mutant: str = "") -> None:
        self._history, self._directory = history, folder / "node"
        self._program = Program(applications(), mutant)
        self._truth = Truth(history.settings["partitions"])
        self._checks = Checks(self._program, self._directory, self._truth, history.promised)
        self._unknown: list[Planned] = []
        self._version = history.first_version
        self._lock = threading.Lock()
        self._server: Server | None = None
        self.counts: Counter[str] = self._checks.counts

    def run(self) -> None:
        """From the first start to the last comparison. Raises: Wrong."""
        try:
            self._start()
            for step in self._history.steps:
                getattr(self, f"_step_{step.kind}")(step)
                self.counts[step.kind] += 1
        finally:
            if self._server is not None:
                self._server.kill()

    # -- steps -------------------------------------------------------------------------------------------------------------

    def _step_calls(self, step: Step) -> None:
        with self._client() as client:
            for call in step.calls:
                self._make(client, call, step.durability)

    def _step_batch(self, step: Step) -> None:
        calls = [Call(call.procedure, call.params, call.key, _durability(step.durability)) for call in step.calls]
        with self._client() as client:
            for call, answered in zip(step.calls, client.batch(calls, timeout_s=PATIENCE_S), strict=True):
                if isinstance(answered, CmdlogError):
                    self._note_error(call, answered)
                else:
                    self._note(call, answered.txn_id, ("ok", answered.value))

    def _step_load(self, step: Step) -> None:
        """Several callers at a time, and a kill in the middle."""
        server, acknowledged, reached = self._running(), 0, threading.Event()
        kill_at = int(step.share * len(step.calls)) + 1

        def work(calls: Sequence[Planned]) -> None:
            nonlocal acknowledged
            with server.client() as client:
                for call in calls:
                    self._make(client, call, step.durability)
                    with self._lock:
                        acknowledged += 1
                        if acknowledged >= kill_at:
                            reached.set()

        callers = [threading.Thread(target=work, args=(step.calls[n::CALLERS],)) for n in range(CALLERS)]
        for caller in callers:
            caller.start()
        while not reached.wait(0.05) and any(caller.is_alive() for caller in callers):
            pass
        server.kill()
        for caller in callers:
            caller.join()
        self._server = None
        self._start()

    def _step_busy(self, step: Step) -> None:
        """A drill while the ring is written."""
        with ThreadPoolExecutor(1) as caller:
            under_way = caller.submit(self._step_batch, step)
            self._checks.run("drill", step.share, None)
            under_way.result()

    def _step_kill(self, step: Step) -> None:
        self._running().kill()
        self._start()

    def _step_stop(self, step: Step) -> None:
        self._running().stop()
        self._start()

    def _step_deploy(self, step: Step) -> None:
        server = self._running()
        if step.orderly:
            server.stop()
        else:
            server.kill()
        self._version = step.version
        self._start()

    def _step_snapshot(self, step: Step) -> None:
        with self._client() as client:
            client.take_snapshot(timeout_s=PATIENCE_S)

    def _step_point(self, step: Step) -> None:
        with self._client() as client:
            taken = client.take_point(timeout_s=PATIENCE_S)
        txn_id = int(taken["point"]["txn_id"])
        self._checks.points = [*self._checks.points, txn_id][-POINTS_KEPT:]

    def _step_retry(self, step: Step) -> None:
        """Calls of long ago again under their keys: the same transaction, the same outcome."""
        keyed = [made for _, made in sorted(self._truth.calls.items()) if made.call.key is not None]
        with self._client() as client:
            for made in keyed[int(step.share * len(keyed)) :][:10]:
                self._make(client, made.call, step.durability, again=made)

    def _step_misuse(self, step: Step) -> None:
        """A key that belongs to another call: refused, and nothing is executed."""
        keyed = [made for _, made in sorted(self._truth.calls.items()) if made.call.key is not None]
        with self._client() as client:
            for made in keyed[int(step.share * len(keyed)) :][:3]:
                params = {"account": 3, "amount": 1_000_000 + made.call.number}
                try:
                    client.invoke("deposit", params, idempotency_key=made.call.key)
                except KeyReused:
                    continue
                except Unavailable:
                    self._truth.refused += 1
                    continue
                raise Wrong(f"the key of {made.call} was taken for another call")

    def _step_room(self, step: Step) -> None:
        self._make_room()

    def _step_check(self, step: Step) -> None:
        self._settle()
        self._checks.version = self._version
        with self._running().client(attempts_max=20) as client:
            self._checks.run("live", step.share, client)
        if not step.beside:
            self._running().stop()
            self._server = None
        for name in step.checks:
            self._checks.run(name, step.share, None)
        if not step.beside:
            self._start()

    # -- the node ----------------------------------------------------------------------------------------------------------

    def _running(self) -> Server:
        assert self._server is not None
        return self._server

    def _client(self) -> cmdlog.Client:
        return self._running().client()

    def _start(self) -> None:
        self._server = None
        self._server = self._program.serve(self._directory, f"{module_of(self._version)}:db", self._history.settings)
        self._truth.begun(self._server.began_millis << MILLIS_SHIFT, self._version)
        self._settle()

    def _settle(self) -> None:
        """Asks for every outcome that a crash has left unknown."""
        if not self._unknown:
            return
        unknown, self._unknown = self._unknown, []
        with self._running().client(attempts_max=20) as client:
            for call in unknown:
                if not self._make(client, call, "sync"):  # a full log does not even say what has become of a call
                    self._make_room()
                    self._until_made(client, call)
        if self._unknown:
            raise Wrong(f"{self._unknown[0]} has no outcome after a restart")

    def _until_made(self, client: cmdlog.Client, call: Planned) -> None:
        """Raises: Wrong when the call is refused for too long."""
        if not eventually(lambda: self._make(client, call, "sync"), ROOM_S):
            raise Wrong(f"the node does not get out of a full log: {client.status()['log']}")
        self._unknown = [one for one in self._unknown if one.number != call.number]

    def _make_room(self) -> None:
        """The operator gives up the archive, and then the node has to take calls again."""
        ran = self._program.run("archive", "prune", self._directory, "--older-than", "0s", "--force", "--json")
        if ran.code:
            raise Wrong(f"archive prune ended with exit code {ran.code}: {dict(ran.error) or ran.errors}")
        self._checks.promised = False
        self._checks.points = []
        call = Planned(-len(self._truth.calls) - 1, "set_rate", {"name": "room", "value": 1}, f"room-{len(self._truth.calls)}")
        with self._client() as client:
            self._until_made(client, call)

    # -- calls -------------------------------------------------------------------------------------------------------------

    def _make(self, client: cmdlog.Client, call: Planned, durability: str, *, again: Made | None = None) -> bool:
        """Whether the call has an outcome."""
        try:
            result = client.invoke(call.procedure, call.params, idempotency_key=call.key, durability=_durability(durability))
        except CmdlogError as error:
            return self._note_error(call, error, again)
        self._note(call, result.txn_id, ("ok", result.value), again)
        return True

    def _note_error(self, call: Planned, error: CmdlogError, again: Made | None = None) -> bool:
        outcome = outcome_of(error)
        if outcome is not None:
            self._note(call, error.txn_id, outcome, again)
            return True
        if isinstance(error, Unavailable) and not isinstance(error, Unreachable):
            with self._lock:
                self._truth.refused += 1
                self.counts[f"refused {error.code}"] += 1
            return False
        if isinstance(error, OutcomeUnknown | Unreachable | ServerFault) and call.key is not None:
            with self._lock:
                self._unknown.append(call)
            return False
        raise Wrong(f"{call}: {type(error).__name__}: {error}")

    def _note(self, call: Planned, txn_id: int, outcome: Outcome, again: Made | None = None) -> None:
        with self._lock:
            if again is not None and (txn_id, outcome) != (again.txn_id, again.outcome):
                raise Wrong(
                    f"{call} was transaction {again.txn_id} with {again.outcome}; its repetition is {txn_id} with {outcome}"
                )
            self._truth.add(again or Made(txn_id, call, outcome, self._truth.version_at(txn_id)))


def _durability(name: str) -> Any:
    return name


def live(seed: int, folder: Path, *, steps: int, mutant: str = "") -> Counter[str]:
    """The history of a seed in this folder; what happened in it. Raises: Wrong."""
    life = Life(draw(seed, steps=steps), folder, mutant)
    life.run()
    life.counts["acknowledged"] += len(life._truth.calls)
    return life.counts
