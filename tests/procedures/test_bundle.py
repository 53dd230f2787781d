"""Bundles: all of an application's code comes along, loads beside other versions, and is refused when changed."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import orjson
import pytest

from procedures import Database
from procedures.code.bundle import Bundle, capture_bundle, environment
from procedures.code.loaded_modules import load_bundle
from procedures.errors import BundleError, BundleForged, BundleSqlChanged
from procedures.migration.stated_change import StatedChange
from procedures.samples import bank
from procedures.storage.state import PartitionState
from tests.procedures.sites import txn_at

ROOT: Final = Path(__file__).resolve().parents[2]
SHOP = """
from sqlalchemy import Column, Integer, bindparam, insert
from procedures import Database
from .prices import price_of
import shop.helpers.late

db = Database("shop")
orders = db.table("orders", Column("id", Integer, primary_key=True), Column("cents", Integer), partition_by="id")
ADD = insert(orders).values(id=bindparam("number"), cents=bindparam("cents"))

@db.procedure(partition_by="number")
def order(tx, number: int) -> int:
    from shop.helpers import late
    cents = price_of(number) + late.FEE
    tx.execute(ADD, number=number, cents=cents)
    return cents

if __name__ == "__main__":
    raise SystemExit("the main block ran")
"""


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An application package on disk: procedures, a helper, a late import in a subpackage, and an unrelated module."""
    package = tmp_path / "shop"
    (package / "helpers").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "helpers" / "__init__.py").write_text("")
    (package / "helpers" / "late.py").write_text("FEE = 7\n")
    (package / "prices.py").write_text("import json\ndef price_of(number):\n    return number * 100\n")
    (package / "unrelated.py").write_text("raise RuntimeError('nobody imports this')\n")
    (package / "app.py").write_text(SHOP)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def captured(package: Path) -> Bundle:
    """The bundle of what is on disk now."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]
    importlib.invalidate_caches()
    module = importlib.import_module("shop.app")
    assert package.name == "shop"
    return capture_bundle(module.db, "shop.app:db")


def run_order(db: Database, path: Path) -> bytes:
    """Runs the one procedure on a fresh state."""
    from procedures.execution.executor import Executor, Invocations

    state = PartitionState.open(path, partition=0)
    executor = Executor(state, lambda _: db, digest_rows=True, millis_of=lambda txn: txn >> 21, progress=None)
    executor.apply_schema(index=1, term=1, checksum=0, txn_id=1, change=StatedChange(tuple(db.schema_statements())))
    body = executor.apply(Invocations(2, 1, 0, 1, [txn_at(5)], [0], [[3]], None)).bodies[0]
    state.close()
    return body


def test_bundle_holds_the_application_and_nothing_else(shop: Path) -> None:
    """Helpers and packages come along; the framework, installed packages and modules that nobody imports do not."""
    bundle = captured(shop)
    assert sorted(bundle.modules) == ["shop", "shop.app", "shop.helpers", "shop.helpers.late", "shop.prices"]
    assert list(bundle.sql) == ["shop.app.ADD"]
    assert [dict(entry) for entry in bundle.procedures] == [{"name": "order", "parameters": ["number"]}]


def test_bundle_survives_its_bytes_and_is_the_same_twice(shop: Path) -> None:
    """The bytes are canonical: the same code has the same bytes and hash."""
    bundle = captured(shop)
    assert Bundle.from_bytes(bundle.to_bytes()).to_bytes() == bundle.to_bytes()
    assert captured(shop).to_bytes() == bundle.to_bytes()


def test_changed_helper_is_another_bundle_and_both_run(shop: Path, tmp_path: Path) -> None:
    """Old and new code run side by side; the process's own modules stay what they were, late imports included."""
    old = captured(shop)
    (shop / "prices.py").write_text("def price_of(number):\n    return number * 1000 + 1\n")
    (shop / "helpers" / "late.py").write_text("FEE = 9\n")
    new = captured(shop)
    live = {name: module for name, module in sys.modules.items() if name.startswith("shop")}
    assert old.hash != new.hash
    assert run_order(load_bundle(old), tmp_path / "old.db") == b"307"
    assert run_order(load_bundle(new), tmp_path / "new.db") == b"3010"
    assert {name: module for name, module in sys.modules.items() if name.startswith("shop")} == live
    assert live["shop"].app is live["shop.app"]


def test_bundle_loads_where_the_application_is_not_installed(shop: Path, tmp_path: Path) -> None:
    """A bundle needs no file of the application."""
    bundle = captured(shop)
    for name in [name for name in sys.modules if name.startswith("shop")]:
        del sys.modules[name]
    sys.path.remove(str(shop.parent))
    try:
        assert run_order(load_bundle(Bundle.from_bytes(bundle.to_bytes())), tmp_path / "x.db") == b"307"
    finally:
        sys.path.insert(0, str(shop.parent))
    assert not [name for name in sys.modules if name.startswith("shop")]


def test_every_changed_byte_of_a_bundle_is_detected(shop: Path) -> None:
    """Flipping any byte gives a refusal, never other code."""
    data = captured(shop).to_bytes()
    for position in range(0, len(data), 7):
        forged = data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]
        with pytest.raises(BundleForged):
            Bundle.from_bytes(forged)


@pytest.mark.parametrize("name", ["/x/y", "../y", "a..b", "a/b", "a\\b", "", ".a", "a.", "a\n", "a\0", "~/a", "C:a"])
def test_a_bundle_has_modules_with_names_of_modules(shop: Path, name: str) -> None:
    """A check writes them as files: no name leads out of its folder, though the hash names it."""
    content = {field: value for field, value in orjson.loads(captured(shop).to_bytes()).items() if field != "hash"}
    content["modules"] |= {name: "raise SystemExit"}
    stated = hashlib.sha256(orjson.dumps(content, option=orjson.OPT_SORT_KEYS)).hexdigest()
    with pytest.raises(BundleForged, match="no module"):
        Bundle.from_bytes(orjson.dumps({**content, "hash": stated}))


@pytest.mark.parametrize("value", [b"[" * 600 + b"]" * 600, b"5", b"null", b"[{}]"])
def test_a_bundle_of_any_other_form_is_refused(shop: Path, value: bytes) -> None:
    """By one error, whatever a log holds in its place: nesting too, which JSON can read and not write."""
    content = orjson.loads(captured(shop).to_bytes())
    for name in ("target", "modules", "packages", "sql", "procedures", "hash", "dialect", "requests"):
        with contextlib.suppress(BundleForged):
            Bundle.from_bytes(orjson.dumps({**content, name: "@"}).replace(b'"@"', value))


def test_forged_source_is_refused_at_load(shop: Path) -> None:
    """A bundle whose source was replaced is not run."""
    bundle = captured(shop)
    forged = replace(bundle, modules={**bundle.modules, "shop.prices": "raise SystemExit"})
    with pytest.raises(BundleForged):
        load_bundle(forged)


def test_other_sql_is_refused_at_load(shop: Path) -> None:
    """Statements that compile to other SQL than recorded are another SQLAlchemy: refused by name."""
    bundle = captured(shop)
    content = orjson.loads(bundle.to_bytes())
    content["sql"]["shop.app.ADD"] += " "
    from procedures.code.bundle import hash_of

    content.pop("hash")
    with pytest.raises(BundleSqlChanged, match=r"shop\.app\.ADD"):
        load_bundle(Bundle(**content, hash=hash_of(content)))


def test_target_that_does_not_fit_is_refused() -> None:
    """A module that is not imported is no target."""
    with pytest.raises(BundleError):
        capture_bundle(bank.db, "no.such.module:db")


def test_samples_are_applications() -> None:
    """The samples are bundled although they lie inside the framework."""
    bundle = capture_bundle(bank.db, "procedures.samples.bank:db")
    assert list(bundle.modules) == ["procedures.samples.bank"]
    loaded = load_bundle(bundle)
    assert loaded is not bank.db
    assert [procedure.name for procedure in loaded.procedure_list] == [procedure.name for procedure in bank.db.procedure_list]
    assert sys.modules["procedures.samples.bank"] is bank


def test_modules_that_import_each_other_load(shop: Path) -> None:
    """A package whose `__init__` gathers its parts, which import the package, is loaded as Python itself loads it."""
    (shop / "__init__.py").write_text("RATE = 3\nfrom shop.app import db\n")
    (shop / "prices.py").write_text("from shop import RATE\ndef price_of(number):\n    return number * RATE\n")
    bundle = captured(shop)
    assert {"shop", "shop.app", "shop.prices"} <= bundle.modules.keys()
    assert [procedure.name for procedure in load_bundle(bundle).procedure_list] == ["order"]


def test_environment_names_versions() -> None:
    """Everything that could change what a call does is in the environment record."""
    assert {"python", "sqlite", "apsw", "sqlalchemy", "orjson", "cmdlog"} <= environment().keys()
    assert all(environment().values())


ONE_FILE = """
import sys
from sqlalchemy import Column, Integer, bindparam, insert
from procedures import Database
from procedures.code.bundle import capture_bundle

db = Database("single")
rows = db.table("rows", Column("number", Integer, primary_key=True), partition_by="number")
ADD = insert(rows).values(number=bindparam("number_"))

@db.procedure(partition_by="number")
def add(tx, number: int) -> int:
    tx.execute(ADD, number_=number)
    return number

if __name__ == "__main__":
    sys.stdout.buffer.write(capture_bundle(db).to_bytes())
"""


def test_a_program_of_one_file_is_loaded_with_its_statements(tmp_path: Path) -> None:
    """Its module is `__main__` where it runs and has another name where it is replayed: its statements are the same."""
    program = tmp_path / "single.py"
    program.write_text(ONE_FILE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    made = subprocess.run([sys.executable, str(program)], stdout=subprocess.PIPE, check=True, env=environment)
    bundle = Bundle.from_bytes(made.stdout)
    assert bundle.target == "__main__:db"
    assert "__main__.ADD" in bundle.sql
    assert list(load_bundle(bundle).procedures) == ["add"]
