"""A standalone Spark cluster on loopback: a master, two workers of one core each, every process in a group of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyspark

from replay.spark.java import find_java

UP_S_MAX = 120.0
STOP_S_MAX = 30.0
LOG4J = """rootLogger.level = info
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %p %c{1}: %m%n%ex
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster that runs."""

    url: str
    workers: list[int]  # process ids
    environ: dict[str, str]  # for a driver

    def executors(self) -> list[int]:
        """Process ids of the executors that run."""
        found = []
        for worker in self.workers:
            for path in Path(f"/proc/{worker}/task").glob("*/children"):
                found += [pid for pid in map(int, path.read_text().split()) if _is_executor(pid)]
        return found


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Up when it is given, gone at the end."""
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "log4j2.properties").write_text(LOG4J)
    environ = {
        **os.environ,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_CONF_DIR": str(conf),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_LOCAL_DIRS": str(folder / "local"),
        "JAVA_HOME": find_java().home,
    }
    with ExitStack() as stack:
        master = ["master.Master", "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"]
        log, _ = _start(stack, folder / "master.log", master, environ)
        url = _wait(log, r"Starting Spark master at (spark://\S+)")
        workers = []
        for number in range(2):
            worker = ["worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1200m", "--webui-port", "0"]
            log, pid = _start(stack, folder / f"worker{number}.log", [*worker, "-d", str(folder / f"w{number}"), url], environ)
            _wait(log, r"(Successfully registered with master)")
            workers.append(pid)
        yield Cluster(url, workers, environ)


def _start(stack: ExitStack, log: Path, arguments: list[str], environ: dict[str, str]) -> tuple[Path, int]:
    program = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-class")
    command = [program, f"org.apache.spark.deploy.{arguments[0]}", *arguments[1:]]
    with log.open("wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=file, env=environ, start_new_session=True)
    stack.callback(_stop, process)
    return log, process.pid


def _stop(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait(log: Path, pattern: str) -> str:
    deadline = time.monotonic() + UP_S_MAX
    while time.monotonic() < deadline:
        if found := re.search(pattern, log.read_text(errors="replace")):
            return found[1]
        time.sleep(0.05)
    raise TimeoutError(f"{log} does not say {pattern}: {log.read_text(errors='replace')[-2000:]}")


def _is_executor(pid: int) -> bool:
    try:
        return b"CoarseGrainedExecutorBackend" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def start_command(cluster: Cluster, *arguments: str) -> subprocess.Popen[str]:
    """`cmdlog spark …` on the cluster."""
    command = [sys.executable, "-m", "cmdlog.cli", "spark", *arguments, "--master", cluster.url, "--json"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=cluster.environ)
