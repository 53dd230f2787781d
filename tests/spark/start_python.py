"""`start_python.py ADDRESS PYTHON -m MODULE …`: Spark's Python, forked by the process of the imports (`warm_pythons.py`).

One rule: the standard library alone, since it runs without `site`, in a hundredth of a second.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from types import FrameType


def start(address: str, argv: list[str]) -> int:
    """A descriptor of the program (pidfd), which has the standard streams of this process alone."""
    order = {"argv": argv, "environ": dict(os.environ), "cwd": os.getcwd(), "fds": [0, 1, 2]}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as near:
        near.connect(address)
        socket.send_fds(near, [json.dumps(order).encode()], [0, 1, 2])
        program = os.pidfd_open(int(near.recv(64)))
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    return program


def main() -> None:
    """Ends when the program has ended."""
    address, python, *arguments = sys.argv[1:]
    argv = [python, *arguments]
    if os.environ.get("TESTS_START") == "cold" or os.environ.get("PYTHONHASHSEED") != "0" or arguments[:1] != ["-m"]:
        os.execv(python, argv)  # noqa: S606 - what Spark asked for
    program = start(address, argv)

    def pass_on(number: int, _frame: FrameType | None) -> None:
        signal.pidfd_send_signal(program, number)

    signal.signal(signal.SIGTERM, pass_on)  # by which Spark ends one
    select.select([program], [], [])


if __name__ == "__main__":
    main()
