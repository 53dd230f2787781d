"""Opens one directory again and again, each time in a fork with other limits or rights: `python -m tests.node.opener`.

Reads a case per line on standard input, as JSON; answers each with a line: how the attempt ended, in which class and words.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import tempfile
import traceback
from typing import Any

import cmdlog
from cmdlog.errors import CmdlogError
from cmdlog.node.settings import BadSetting
from cmdlog.operator_error import full_text
from cmdlog.wal.errors import WalError
from procedures.errors import ProceduresError
from replay.errors import ReplayError
from snapshot.errors import SnapshotError
from tests.node.apps.faulty import db
from tests.waiting import PATIENCE_S

DOCUMENTED = (WalError, SnapshotError, ReplayError, ProceduresError, BadSetting)
SMALL: dict[str, Any] = {"segment_bytes": 1 << 20, "segments": 4, "log_reserve_bytes": 64 << 10, "call_bytes_max": 100_000}


def attempt(case: dict[str, Any]) -> dict[str, Any]:
    """Opens the directory under the case's limits and calls once, unless the case says not to."""
    for name, value in case.get("limits", {}).items():
        kind = getattr(resource, name)
        resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))
    if "user" in case:
        os.setuid(case["user"])
    settings = {**SMALL, "partitions": 2, **case.get("settings", {})}
    try:
        with cmdlog.open(case["directory"], db, **settings) as node:
            for number in range(case.get("calls", 0)):
                node.call("store", id=1, seq=number, data=b"x" * 50_000)
        return {"ended": "opened"}
    except DOCUMENTED as error:
        return {"ended": "documented", "kind": type(error).__name__, "message": full_text(error)}
    except CmdlogError as error:
        return {"ended": "call", "kind": type(error).__name__, "message": str(error)}
    except BaseException as error:  # noqa: BLE001 - that is what the tests look for
        return {"ended": "raw", "kind": type(error).__name__, "message": str(error), "trace": traceback.format_exc()[-3000:]}


def main() -> None:
    """Entry point."""
    with tempfile.TemporaryDirectory() as folder:  # loads what is loaded late: another user may not read it
        attempt({"directory": folder, "calls": 1})
    for line in sys.stdin:
        read, write = os.pipe()
        if os.fork() == 0:
            signal.alarm(int(PATIENCE_S))
            os.write(write, json.dumps(attempt(json.loads(line))).encode())
            os._exit(0)
        os.close(write)
        with open(read, "rb") as answer:
            told = answer.read()
        _, status = os.wait()
        silent = {"ended": "killed", "kind": str(status), "message": ""}
        print(told.decode() if told else json.dumps(silent), flush=True)


if __name__ == "__main__":
    main()
