"""Executors that are processes of their own and have nothing of ours but what was shipped to them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pyspark
import pytest

import cmdlog
from cmdlog.wal.files import RealFiles
from replay.plan.node_plan import Planned
from replay.plan.planner import PAST, make_plan
from replay.recover.execute import Target, execute
from replay.spark.base.java import find_java
from replay.state.trust import state_path
from snapshot.table_digest import open_image, table_digests
from tests.replay.ledgers import LEDGER, SMALL, TEXTS, importable, logged_calls
from tests.spark.bare_python import bare_python

pytestmark = pytest.mark.torture
MASTER: Final = "local-cluster[2,1,700]"  # two executors that Spark starts itself
PARTITIONS = 3
DEPOSITS = 2000
WINDOW = 500  # calls under way at a time
ACCOUNTS = 30
FOREIGN = '''
"""A session that its owner made: what executors have, before and after shipping; then table, stream and back-fills."""
import importlib, json, sys
from pathlib import Path
from pyspark.sql import SparkSession

master, node, folder = sys.argv[1], sys.argv[2], Path(sys.argv[3])
spark = (
    SparkSession.builder.master(master).config("spark.ui.enabled", "false").config("spark.executor.memory", "700m").getOrCreate()
)
told = {}


def where(batches):
    import pyarrow
    for _ in batches:
        try:
            import replay
            found = replay.__file__
        except ImportError as error:
            found = str(error)
        yield pyarrow.RecordBatch.from_pydict({"found": [found]})


def ask():
    return sorted({row.found for row in spark.range(0, 4, 1, 4).mapInArrow(where, "found string").collect()})


import replay.spark
told["before"] = ask()
told["version"] = replay.spark.ship(spark)
replay.spark.ship(spark)
replay.spark.session()
told["after"] = ask()

replay.spark.register(spark)
calls = spark.read.format("cmdlog").load(node)
told["scan"] = [list(row) for row in calls.groupBy("partition_id").count().orderBy("partition_id").collect()]
query = (
    spark.readStream.format("cmdlog").option("maxTxnsPerTrigger", 8_000).load(node).writeStream.format("parquet")
    .option("checkpointLocation", f"file://{folder}/checkpoint").trigger(availableNow=True).start(f"file://{folder}/stream")
)
query.awaitTermination()
streamed = spark.read.parquet(f"file://{folder}/stream")
told["stream"] = [list(row) for row in streamed.groupBy("partition_id").count().orderBy("partition_id").collect()]
told["twice"] = streamed.count() - streamed.dropDuplicates(["partition_id", "txn_id"]).count()

sys.path.insert(0, str(folder))
sys.dont_write_bytecode = True
told["changes"] = []
for version, source in enumerate(sys.argv[4:]):
    (folder / "changed.py").write_text(Path(source).read_text())
    sys.modules.pop("changed", None)
    importlib.invalidate_caches()
    done = replay.spark.backfill(spark, node, importlib.import_module("changed").db, to=str(folder / f"what{version}"))
    state = spark.read.parquet(f"file://{folder}/what{version}/state/accounts")
    told["changes"].append([done.changes["accounts"]["changed"], state.groupBy().sum("balance").first()[0]])
told["files"] = sorted({Path(uri).name for uri in spark.sparkContext.listFiles})
print(json.dumps(told))
spark.stop()
'''

SUBMITTED = r'''
"""A job of `spark-submit --py-files`: what a plain session finds, then table, stream and rebuild as the manual has them."""
import json, re, sys
from pyspark.sql import SparkSession

node, folder = sys.argv[1], sys.argv[2]
plain = SparkSession.builder.getOrCreate()
told = {}
try:
    told["plain"] = plain.read.format("cmdlog").load(node).count()
except Exception as error:
    told["plain"] = re.search(r"\[(\w+)\]", str(error))[1]

import replay.spark
spark = replay.spark.session()
told["home"], told["master"] = replay.spark.__file__, spark.conf.get("spark.master")
told["table"] = spark.read.format("cmdlog").load(node).count()
stream = spark.readStream.format("cmdlog").load(node).writeStream.format("memory").queryName("calls")
stream.trigger(availableNow=True).start().awaitTermination()
told["stream"] = spark.table("calls").count()
told["rebuilt"] = replay.spark.rebuild(spark, node, to=f"{folder}/out").calls
told["files"] = sorted(uri.rpartition("/")[2] for uri in spark.sparkContext.listFiles)
print(json.dumps(told))
'''


@dataclass(frozen=True, slots=True)
class Drivers:
    """Where drivers start: not in the checkout, and with a Python for executors that lacks what this one has of ours."""

    environ: dict[str, str]
    folder: Path

    def run(self, *command: str) -> str:
        """What a driver prints last, once it has ended well."""
        pipe = subprocess.PIPE
        ended = subprocess.run(command, stdout=pipe, stderr=pipe, text=True, env=self.environ, cwd=self.folder, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Drivers]:
    """What the executors leave is removed; nothing moves the folder in which they live."""
    folder = tmp_path_factory.mktemp("drivers")
    work = Path(pyspark.__file__).parent / "work"
    before = set(work.iterdir()) if work.exists() else None
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYSPARK_PYTHON": bare_python(folder / "python"), "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_DIRS": str(folder / "local"), "JAVA_HOME": find_java().home,
    }  # fmt: skip
    yield Drivers(environ, folder)
    for path in set(work.iterdir()) - (before or set()) if work.exists() else ():
        shutil.rmtree(path)
    if before is None and work.exists():
        work.rmdir()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A stopped node."""
    with importable(tmp_path_factory.mktemp("versions")) as versions:
        folder = tmp_path_factory.mktemp("ledger") / "node"
        with cmdlog.open(folder, versions.load("ledger_v1"), partitions=PARTITIONS, **{**SMALL, "segments": 12}) as opened:
            for account in range(ACCOUNTS):
                opened.call("begin", account=account)
            for first in range(0, DEPOSITS, WINDOW):
                for answer in [opened.submit("deposit", account=n % ACCOUNTS, amount=n) for n in range(first, first + WINDOW)]:
                    answer.result()
        yield folder


def test_session_of_others_ships_the_package_once(drivers: Drivers, node: Path, tmp_path: Path) -> None:
    """Before it is shipped no executor has it, afterwards it is in the zip. Table and stream give each call once, and a module
    that changes between two back-fills of a session runs as it is now."""
    (tmp_path / "driver.py").write_text(FOREIGN)
    sources = []
    for factor in (2, 3):
        sources.append(tmp_path / f"factor{factor}.txt")
        sources[-1].write_text(LEDGER.replace(TEXTS["factor"], f"amount * {factor}"))
    command = [sys.executable, str(tmp_path / "driver.py"), MASTER, str(node), str(tmp_path), *map(str, sources)]
    told: dict[str, Any] = json.loads(drivers.run(*command))
    assert told["before"] == ["No module named 'replay'"]
    name = f"cmdlog-{told['version']}.zip"
    assert [Path(path).parts[-3:] for path in told["after"]] == [(name, "replay", "__init__.py")] * len(told["after"])
    assert told["files"] == [name]
    per_partition = Counter(call.partition for call in logged_calls(node))
    assert told["scan"] == told["stream"] == [[p, count] for p, count in sorted(per_partition.items())]
    assert told["twice"] == 0
    deposited = sum(range(DEPOSITS))
    assert told["changes"] == [[ACCOUNTS, 2 * deposited], [ACCOUNTS, 3 * deposited]]


def test_spark_submit_needs_the_zip_alone(drivers: Drivers, node: Path, tmp_path: Path) -> None:
    """The documented line: a driver without the package gets everything from `--py-files`, and nothing is sent twice."""
    archive = drivers.run(sys.executable, "-m", "cmdlog.cli", "spark", "package", str(tmp_path))
    job = tmp_path / "job.py"
    job.write_text(SUBMITTED)
    submit = os.path.join(os.path.dirname(pyspark.__file__), "bin", "spark-submit")
    options = ["--master", MASTER, "--conf", "spark.executor.memory=700m", "--py-files", archive]
    told = json.loads(drivers.run(submit, *options, str(job), str(node), str(tmp_path)))
    calls = len(logged_calls(node))
    assert {name: told[name] for name in ("table", "stream", "rebuilt")} == dict.fromkeys(("table", "stream", "rebuilt"), calls)
    assert Path(archive).name in Path(told["home"]).parts
    assert told["files"] == [Path(archive).name]
    assert told["plain"] == "DATA_SOURCE_NOT_FOUND"  # Spark looks before it knows --py-files: `session` or `register` tells it


def test_rebuild_on_executors_is_the_recovery(drivers: Drivers, node: Path, tmp_path: Path) -> None:
    """The digests are those of a recovery in this process."""
    out = tmp_path / "out"
    command = [sys.executable, "-m", "cmdlog.cli", "spark", "rebuild", str(node), "--to", str(out), "--json"]
    drivers.run(*command, "--master", MASTER, "--conf", "spark.executor.memory=700m")
    tables = json.loads((out / "manifest.json").read_text())["points"][0]["tables"]
    found = {(file["partition"], name): file["digest"] for name, table in tables.items() for file in table["files"]}
    (tmp_path / "work" / "state").mkdir(parents=True)
    plan = make_plan(RealFiles(), str(node), PAST).plan
    execute(Planned.of(RealFiles(), plan), Target(RealFiles(), str(tmp_path / "work")), workers=0)
    for part in plan.partitions:
        connection = open_image(state_path(str(tmp_path / "work"), part.partition))
        wanted = {(part.partition, table): digest.sha256 for table, digest in table_digests(connection).items()}
        connection.close()
        assert {key: digest for key, digest in found.items() if key[0] == part.partition}.items() <= wanted.items()
    assert {partition for partition, table in found if table == "accounts"} == set(range(PARTITIONS))
