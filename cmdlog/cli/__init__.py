"""The command line: `cmdlog serve | call | status | check | log | …`. It translates; the packages below decide."""

from __future__ import annotations

import json
import os
import sys
from typing import Final

from cmdlog.garbage_collection import loading
from cmdlog.hidden_packages import PackageHidden, check_packages
from cmdlog.operator_error import OperatorError

REPLAYING: Final = ("diff", "drill", "fork", "recover", "snapshot", "spark")
"""Commands that run logged calls, and must do so under the hash seed of sites. Never `serve`: it reads what strangers send."""

OTHERS: Final = 0o027
"""What no file or folder of a command allows, whatever library makes it: files are 0640 at most, folders 0750."""


def main() -> None:
    """Entry point of the `cmdlog` program."""
    os.umask(os.umask(0) | OTHERS)  # here no other thread is there yet
    try:
        check_packages()
        from cmdlog.wal.errors import LimitReached
        from cmdlog.wal.process_limits import check_address_space
        from procedures.execution.hash_seed import pin
    except KeyboardInterrupt:
        sys.exit(130)
    except PackageHidden as error:
        sys.exit(_refused(error))
    try:
        command = next((argument for argument in sys.argv[1:] if not argument.startswith("-")), "")
        if command in ("serve", *REPLAYING):
            check_address_space()
        if command in REPLAYING:
            pin()
        with loading():
            from cmdlog.cli.app import run
    except KeyboardInterrupt:  # before there is anything to say
        sys.exit(130)
    except LimitReached as error:
        sys.exit(_refused(error))

    run()


def _refused(error: OperatorError) -> int:
    """Says so with what is loaded: the memory or the packages that prettier words take may not be there."""
    if "--json" in sys.argv[1:]:
        sys.stdout.write(json.dumps({"error": error.to_json()}) + "\n")
    else:
        sys.stderr.write(f"error: {error.message}\nhint:  {error.hint}\n")
    return error.exit_code
