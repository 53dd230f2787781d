"""The Pythons of the tests' Spark session, forked from one process that has imported what they need.

Spark starts many: a daemon for each kind of work, one Python for each stream, and another one after each task or plan that
failed. Each imported PySpark (from a zip, compiled again every time), pandas and the package, for two to four seconds of
processor, which was half of the time of these tests.

PYSPARK_PYTHON names a shell script that runs `start_python.py`. It asks the process of the imports to fork the program, with the
environment, folder and standard streams that Spark gave it, passes SIGTERM on, and ends when the program does. A program with
another hash seed starts as usual, and so does each one under `TESTS_START=cold`.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import select
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from tests import warm_start

IMPORTED: Final = (
    "pyspark.daemon", "pyspark.worker", "pyspark.sql.worker.commit_data_source_write", "pyspark.sql.worker.create_data_source",
    "pyspark.sql.worker.lookup_data_sources", "pyspark.sql.worker.plan_data_source_read",
    "pyspark.sql.worker.write_into_data_source", "pyspark.sql.streaming.python_streaming_source_runner",
    "pandas", "pyarrow.parquet", "replay.spark.base.quiet_daemon", "replay.spark.datasource.log_tables",
    "replay.spark.datasource.source", "replay.spark.datasource.state_table", "replay.spark.datasource.stream",
    "replay.spark.discover.pyspark_cmdlog", "replay.spark.jobs.backfill_task",
    "replay.spark.jobs.rebuild_task", "replay.spark.reading.arrow_rows",
)  # fmt: skip


@contextmanager
def importing(folder: Path) -> Iterator[str]:
    """A path for PYSPARK_PYTHON, as long as the process of the imports lives: until the end of the block, or of this process."""
    address, program = folder / "imports", folder / "python"
    launcher = Path(__file__).with_name("start_python.py")
    command = [sys.executable, "-IS", str(launcher), str(address), sys.executable]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n')
    program.chmod(0o755)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(address))
        listening.listen()
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.spark.warm_pythons", str(listening.fileno())],
            cwd=warm_start.ROOT, env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(warm_start.ROOT)},
            stdin=subprocess.PIPE, pass_fds=(listening.fileno(),), process_group=0,
        )  # fmt: skip
    with process:  # closes its input at the end, which ends it
        yield str(program)


def serve(listening: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks a program for each connection, until the input is closed. Returns in the programs only: the order, descriptors."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel collects those that ended
    while True:
        ready, _, _ = select.select([listening, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        near, _ = listening.accept()
        data, fds, _, _ = socket.recv_fds(near, warm_start.MESSAGE_BYTES, 3)
        if (program := os.fork()) == 0:
            near.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return json.loads(data), fds
        near.send(str(program).encode())
        near.close()
        for fd in fds:
            os.close(fd)


def main() -> None:
    """In the process of the imports, then in each program."""
    listening = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTED:
        importlib.import_module(module)
    gc.freeze()  # Spark has a Python collect its garbage after each task: it would look at all of this
    own = {"", str(warm_start.ROOT), os.getcwd()}
    base = [path for path in sys.path if path not in own]
    order, fds = serve(listening)
    listening.close()
    warm_start.take_on(order, fds, base)
    warm_start.run()


if __name__ == "__main__":
    main()
