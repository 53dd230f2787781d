"""The session of this process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cmdlog.cli.cli_errors import CommandFailed
from cmdlog.cli.spark_options import spark_session
from replay.spark.base.executor_zip import code_version, ship
from replay.spark.session import DAEMON, MasterSilent, _environment, check_master
from tests.spark.reading import made, made_large
from tests.waiting import PATIENCE_S

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.mark.slow
def test_session_has_the_settings_of_the_command_log(spark: SparkSession) -> None:
    """UTC, loopback, no web page, a retry for failed tasks, our daemon, and this very interpreter in the workers."""
    conf = spark.conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.master") == "local[2,4]"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert conf.get("spark.python.daemon.module") == DAEMON
    assert spark.sparkContext.uiWebUrl is None
    assert spark.range(1).mapInArrow(_interpreter, "path string").collect()[0].path == sys.executable


@pytest.mark.slow
def test_environment_of_this_process_stays(spark: SparkSession) -> None:
    """Only the JVM gets our settings: what else this process starts must not inherit them."""
    assert spark.version.startswith("4.")
    assert not {"SPARK_CONF_DIR", "SPARK_LOCAL_IP", "PYSPARK_PYTHON"} & os.environ.keys()
    assert "discover" not in os.environ.get("PYTHONPATH", "")


@pytest.mark.parametrize("chosen", [None, "another-python"])
def test_workers_run_this_python_unless_another_was_chosen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, chosen: str | None
) -> None:
    """Java inherits its path; what the user has set stays."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if chosen is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", chosen)
    assert _environment("local[2,4]", str(tmp_path), "start")["PYSPARK_PYTHON"] == (chosen or sys.executable)


@pytest.mark.slow
def test_running_session_is_used(spark: SparkSession) -> None:
    """A second call gives the session that runs: a process has one JVM."""
    from replay.spark import session

    assert session("other") is spark


@pytest.mark.slow
def test_local_session_gets_no_zip(spark: SparkSession) -> None:
    """Workers on this machine have the package from where the driver has it."""
    assert ship(spark) == code_version()
    assert not [uri for uri in spark.sparkContext.listFiles if "cmdlog" in uri]


@pytest.mark.slow
def test_read_is_split_over_all_cores_of_the_session(spark: SparkSession, tmp_path: Path) -> None:
    """`defaultParallelism` reaches the process that plans, and minPartitions wins over it."""
    directory = made_large(tmp_path).directory
    assert spark.sparkContext.defaultParallelism == 2
    assert spark.read.format("cmdlog").load(directory).rdd.getNumPartitions() >= 2
    assert spark.read.format("cmdlog").option("minPartitions", "1").load(directory).rdd.getNumPartitions() == 1


SHOWN = """
import sys
import replay.spark
spark = replay.spark.session(tuning="start", master="local[2]")
calls = spark.read.format("cmdlog").load(sys.argv[1])
for _ in range(3):
    calls.show(1)
calls.limit(2).collect()

def refuse(batches):
    raise ValueError("a defect")
    yield

try:
    spark.range(1).mapInArrow(refuse, "id long").collect()
except Exception as error:
    print(error, file=sys.stderr)
"""


@pytest.mark.torture
def test_read_that_ends_early_prints_no_trace(tmp_path: Path) -> None:
    """`show()` closes the socket of a Python that still writes; that it does is nobody's error, while a defect is still shown.

    `test_quiet_daemon.py` holds the same of the daemon alone, without a second Java.
    """
    node = made_large(tmp_path / "node").directory
    done = subprocess.run([sys.executable, "-c", SHOWN, node], capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert done.stdout.count("only showing top 1 row") == 3
    assert "BrokenPipe" not in done.stderr
    assert "ValueError: a defect" in done.stderr


def test_master_is_asked_for_before_java_starts() -> None:
    """One address of a standalone master that takes connections is enough; each silent one is told with its reason."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        alive = f"127.0.0.1:{taken.getsockname()[1]}"
        check_master(f"spark://{alive}")
        check_master(f"spark://127.0.0.1:1,{alive}")
    with pytest.raises(MasterSilent, match=rf"no Spark master listens at spark://{alive} \({alive}: Connection refused\)"):
        check_master(f"spark://{alive}")
    with pytest.raises(MasterSilent, match=r"127\.0\.0\.1:1: Connection refused; head is not HOST:PORT; head:x is"):
        check_master("spark://127.0.0.1:1,head,head:x")
    for other in ("local[2,4]", "local-cluster[2,1,700]", "yarn", "k8s://https://127.0.0.1:1"):
        check_master(other)


def test_setting_without_value_is_refused() -> None:
    """`--conf` takes KEY=VALUE; what is none is named before anything starts."""
    for strange in ("spark.task.cpus", "=2"):
        with pytest.raises(CommandFailed, match="--conf takes KEY=VALUE") as error:
            spark_session(None, conf=["spark.app.name=a=b", strange])
        assert error.value.exit_code == 2


@pytest.mark.slow
@pytest.mark.parametrize("how", ["option", "environment"])
def test_command_with_a_dead_master_ends_at_once(tmp_path: Path, how: str) -> None:
    """Every job takes the master as an option or from SPARK_MASTER; a dead one is an error of one line, and nothing was begun."""
    dead = "spark://127.0.0.1:1"
    node = made(tmp_path / "node", 1).directory
    command = [sys.executable, "-m", "cmdlog.cli", "spark", "rebuild", node, "--to", str(tmp_path / "out")]
    command += ["--master", dead] if how == "option" else []
    environ = os.environ | ({"SPARK_MASTER": dead} if how == "environment" else {})
    ended = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert ended.returncode == 1
    assert f"no Spark master listens at {dead}" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["node"]


def _interpreter(batches: Iterator[Any]) -> Iterator[Any]:
    import pyarrow as pa

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"path": [sys.executable]})
