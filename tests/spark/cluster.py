"""A standalone Spark cluster on loopback: a master, two workers of one core each, every process in a group of its own.

Its executors run a Python that has the packages which we need, and not this one: what they run of ours was shipped to them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyspark

from replay.spark.base.java import find_java
from tests.waiting import PATIENCE_S, wait_for

UP_S_MAX = 120.0
STOP_S_MAX = PATIENCE_S
RUN_S_MAX = PATIENCE_S
HOSTS = ("127.0.0.1", "127.0.0.2")  # Spark starts a second attempt at a slow task on another host only
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
    folder: Path  # not the checkout; here drivers start

    def executors(self) -> list[int]:
        """Process ids of the executors that run."""
        return [pid for worker in self.workers for pid in children(worker) if "CoarseGrainedExecutorBackend" in command_line(pid)]

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """A driver, up to its end."""
        process = self.start(*command, **environ)
        try:
            printed, errors = process.communicate(timeout=RUN_S_MAX)
        finally:
            process.kill()
            process.wait()
        return subprocess.CompletedProcess(command, process.returncode, printed, errors)

    def start(self, *command: str, **environ: str) -> subprocess.Popen[str]:
        """A driver."""
        pipe = subprocess.PIPE
        return subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=self.environ | environ, cwd=self.folder)


def children(pid: int) -> list[int]:
    """Process ids."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(child) for child in path.read_text().split()]
    return found


def command_line(pid: int) -> str:
    """What runs under a process id; empty when nothing does any more."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def open_files(pid: int) -> list[str]:
    """Paths."""
    found = []
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            found.append(os.readlink(descriptor))
    return found


def bare_python(folder: Path, planted: str = "") -> str:
    """A Python with all packages of this one, but for those of an editable install; `planted` runs when it starts."""
    venv.create(folder, symlinks=True)
    site = Path(sysconfig.get_path("purelib", vars={"base": str(folder)}))
    packages = [entry for entry in sys.path if entry.endswith("-packages")]
    (site / "packages.pth").write_text("\n".join(packages))  # links of those folders to elsewhere are not followed
    (site / "sitecustomize.py").write_text(planted)
    return str(folder / "bin" / "python")


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """Up when it is given, gone at the end."""
    conf = folder / "conf"
    conf.mkdir(parents=True)
    (conf / "log4j2.properties").write_text(LOG4J)
    environ = {
        **{name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        "PYSPARK_PYTHON": bare_python(folder / "python"),
        "SPARK_LOCAL_IP": HOSTS[0],
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
        for number, host in enumerate(HOSTS):
            worker = ["worker.Worker", "--host", host, "-c", "1", "-m", "1200m", "--webui-port", "0"]
            log, pid = _start(
                stack,
                folder / f"worker{number}.log",
                [*worker, "-d", str(folder / f"w{number}"), url],
                environ | {"SPARK_LOCAL_IP": host},
            )
            _wait(log, r"(Successfully registered with master)")
            workers.append(pid)
        yield Cluster(url, workers, environ, folder)


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
    found = wait_for(
        lambda: re.search(pattern, log.read_text(errors="replace")),
        UP_S_MAX,
        lambda: f"{log} does not say {pattern}: {log.read_text(errors='replace')[-2000:]}",
    )
    assert found is not None
    return found[1]


def other_python() -> tuple[str, str] | None:
    """(minor version, program) of a Python of this machine that is not ours."""
    folders = [*os.get_exec_path(), *map(str, Path.home().glob(".pyenv/versions/*/bin"))]
    ours = sys.version_info.minor
    for minor in sorted((minor for minor in range(9, 20) if minor != ours), key=lambda minor: abs(minor - ours - 0.5)):
        for program in (os.path.join(folder, f"python3.{minor}") for folder in folders):
            with suppress(OSError, subprocess.SubprocessError):
                subprocess.run([program, "-c", ""], check=True, capture_output=True, timeout=STOP_S_MAX)
                return f"3.{minor}", program
    return None


def start_command(cluster: Cluster, *arguments: str, **environ: str) -> subprocess.Popen[str]:
    """`cmdlog spark …` on the cluster."""
    return cluster.start(sys.executable, "-m", "cmdlog.cli", "spark", *arguments, "--master", cluster.url, "--json", **environ)
