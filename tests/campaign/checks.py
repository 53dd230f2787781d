"""What is compared with the truth, each through another way to the state: the running node, recoveries, history, forks, drills.

One rule: what the node promises must be there; what it does not promise may be refused by name, and then is counted.
"""

from __future__ import annotations

import importlib
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import cmdlog
from replay.state.trust import state_path
from snapshot.table_digest import open_image
from tests.campaign.application import Ledger, module_of
from tests.campaign.program import Program, Ran
from tests.campaign.truth import Truth, Wrong, same

OUT_OF_REACH: Final = ("UntilUnreachable", "Incomplete", "UntilBeyond", "RestUnreadable")


@dataclass(slots=True)
class Checks:
    """Over one node directory. `settled`: every outcome is known."""

    program: Program
    directory: Path
    truth: Truth
    promised: bool
    counts: Counter[str] = field(default_factory=Counter)
    points: list[int] = field(default_factory=list)  # transactions of recovery points, oldest first
    version: int = 1

    def run(self, name: str, share: float, client: cmdlog.Client | None) -> None:
        """Raises: Wrong."""
        checks: dict[str, Callable[[], str]] = {
            "live": lambda: self._live(client),
            "recover": lambda: self._recover(share),
            "history": self._history,
            "fork": lambda: self._fork(share),
            "open": lambda: self._open(share),
            "drill": self._drill,
            "verify": self._verify,
            "plan": self._plan,
        }
        self.counts[f"{name} {checks[name]()}".strip()] += 1

    # -- the ways ----------------------------------------------------------------------------------------------------------

    def _live(self, client: cmdlog.Client | None) -> str:
        assert client is not None
        accounts = {row[0]: (row[1], row[2]) for row in client.query("SELECT id, balance, note FROM accounts").rows}
        rates = Counter((name, value) for name, value in client.query("SELECT name, value FROM rates").rows)
        truth = self.truth.state()
        same("accounts of the running node", accounts, truth.accounts)
        same("rates of the running node", dict(rates), dict.fromkeys(truth.rates.items(), truth.partitions))
        return ""

    def _recover(self, share: float) -> str:
        until = self._moment(share)
        out = self._out()
        ran = self.program.run("recover", self.directory, "--to", out, "--until", until, "--json")
        if self._is_out_of_reach(ran, until):
            return "out of reach"
        self._expect(ran, f"recover --until {until}")
        self._same_state(f"recovered to {until}", out, until)
        if until not in self.points:
            return ""
        return "to a point"

    def _open(self, share: float) -> str:
        """The newest state, recovered and then opened in this process."""
        out = self._out()
        self._expect(self.program.run("recover", self.directory, "--to", out, "--json"), "recover --to")
        truth = self.truth.state()
        db = importlib.import_module(module_of(self.version)).db
        with cmdlog.open(out, db) as node:
            rows = node.query("SELECT id, balance, note FROM accounts").rows
            same("accounts of the opened recovery", {row[0]: (row[1], row[2]) for row in rows}, truth.accounts)
            rate = {"name": "opened", "value": int(share * 100)}
            result = node.invoke("set_rate", rate)
            same("a call of the opened recovery", ("ok", result.value), truth.call("set_rate", rate, self.version))
            if result.txn_id <= max(self.truth.calls):
                raise Wrong(f"the opened recovery gave transaction {result.txn_id} again")
        return ""

    def _history(self) -> str:
        ran = self.program.run("log", "history", self.directory)
        self._expect(ran, "log history")
        listed = {int(row["txn_id"]): (row["procedure"], row["params"], row["key"]) for row in ran.values}  # once, if on all
        rows = [(txn, *row) for txn, row in listed.items()]
        first = rows[0][0] if rows else 0
        calls = self.truth.calls
        told = [(txn, procedure, params) for txn, procedure, params, _ in rows if txn in calls]
        wanted = [
            (txn, calls[txn].call.procedure, dict(calls[txn].call.params))
            for txn in self.truth.txn_ids()
            if rows and txn >= first
        ]
        same("log history", told, wanted)
        if self.promised and len(told) != len(calls):
            raise Wrong(f"log history begins at {first}, with {len(calls) - len(told)} calls before it")
        keys = {key for txn, _, _, key in rows if txn in calls}
        strangers = [row for row in rows if row[0] not in calls and row[3] not in keys]
        if strangers and len(told) == len(calls):
            raise Wrong(f"log history has {len(strangers)} calls that nobody was told of, first {strangers[0]}")
        return "" if len(told) == len(calls) else "in part"

    def _fork(self, share: float) -> str:
        """The same code again from a moment since which nothing else ran."""
        others = [made.txn_id for made in self.truth.calls.values() if made.version != self.version]
        since = max(others, default=0)
        later = [txn for txn in self.truth.txn_ids() if txn >= since]
        at: Any = later[int(share * len(later))] if later and since else "start"
        out = self._out()
        ran = self.program.run(
            "fork", self.directory, "--at", at, "--app", f"{module_of(self.version)}:db", "--to", out, "--json"
        )
        if self._is_out_of_reach(ran, 0 if at == "start" else at):
            return "out of reach"
        self._expect(ran, f"fork --at {at}")
        if ran.values[-1]["changed"]:
            raise Wrong(f"fork --at {at}: {ran.values[-1]['changed']} calls ended otherwise: {ran.values[-1]['first']}")
        self._same_state(f"fork at {at}", out, None)
        return ""

    def _drill(self) -> str:
        ran = self.program.run("drill", self.directory, "--json")
        self._expect(ran, "drill")
        return str(ran.values[-1]["verdict"])

    def _verify(self) -> str:
        for group in ("log", "snapshot", "archive"):
            ran = self.program.run(group, "verify", self.directory, "--json")
            if group != "archive" or self.promised:
                self._expect(ran, f"{group} verify")
        return ""

    def _plan(self) -> str:
        ran = self.program.run("recover", self.directory, "--plan", "--json")
        self._expect(ran, "recover --plan")
        if ran.values[-1]["estimate_s"] > 600:
            raise Wrong(f"recover --plan estimates {ran.values[-1]['estimate_s']} s for {ran.values[-1]['calls']} calls")
        return ""

    # -- with what ---------------------------------------------------------------------------------------------------------

    def _moment(self, share: float) -> int:
        """A transaction: sometimes that of a recovery point."""
        txn_ids = self.truth.txn_ids()
        if self.points and share < 0.2:
            return self.points[-1]
        return txn_ids[int(share * len(txn_ids))]

    def _is_out_of_reach(self, ran: Ran, until: int) -> bool:
        if ran.error.get("kind") not in OUT_OF_REACH:
            return False
        if self.promised or (until in self.points and self.points[-1] == until):
            raise Wrong(f"what was promised is out of reach: {ran.error['message']}")
        return True

    def _expect(self, ran: Ran, what: str) -> None:
        if ran.code:
            raise Wrong(f"{what} ended with exit code {ran.code}: {dict(ran.error) or ran.errors}")

    def _same_state(self, what: str, out: Path, until: int | None) -> None:
        truth, found = self.truth.state(until), Ledger(self.truth.partitions)
        for partition in range(self.truth.partitions):
            connection = open_image(state_path(str(out), partition))
            try:
                tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
                if "accounts" not in tables:
                    continue
                found.accounts |= {
                    int(row[0]): (int(row[1]), str(row[2]))
                    for row in connection.execute("SELECT id, balance, note FROM accounts")
                }
                rates = {str(name): int(value) for name, value in connection.execute("SELECT name, value FROM rates")}
            finally:
                connection.close()
            same(f"rates, partition {partition}, {what}", rates, truth.rates)
        same(f"accounts, {what}", found.accounts, truth.accounts)

    def _out(self) -> Path:
        out = self.directory.with_name("out")
        shutil.rmtree(out, ignore_errors=True)
        return out
