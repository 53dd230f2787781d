"""Typed clients as modules: what they declare, what a type checker makes of them, and that they work."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cmdlog import AsyncClient, Call, Client, Result
from cmdlog.client.stub_module import stub_module
from cmdlog.node.slot_map import describe_routes, make_routes
from cmdlog.testing import Server
from procedures import Database
from procedures.samples import bank
from tests.api import every_type
from tests.client import odd_names, typed_shop
from tests.type_checkers import EACH_CHECKER, marked_lines, wrong_lines


def _written(db: Database, folder: Path, name: str) -> Path:
    path = folder / f"{name.lower()}_stubs.py"
    path.write_text(stub_module(describe_routes(make_routes(db)), name=name, source="a test"))
    return path


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[path.stem] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_odd_names_and_texts_are_still_python() -> None:
    """Keywords, members that are no names, quotes in a docstring and two objects of one title give a module that compiles."""
    members = {"type": "object", "title": "Odd", "properties": {"a-b": {"type": "integer"}}, "required": []}
    entry: dict[str, Any] = {
        "name": "import",
        "partition_by": None,
        "description": 'Says """this"\\and that"',
        "parameters": {"properties": {"idempotency_key": {"type": "string"}, "odd": members}, "required": ["odd"]},
        "result": {"type": "object", "title": "Odd", "properties": {"c": {"enum": ["x", 1]}}, "required": ["c"]},
    }
    text = stub_module([entry], name="Odd", source="a test")
    compile(text, "stubs.py", "exec")
    assert "def import_(" in text
    assert "class Odd2(TypedDict)" in text
    assert "list[Odd2]" in text


HOSTILE = (
    '"); ran.append(1); ("', "'); ran.append(1); ('", '"""\nran.append(1)\n"""', '\\"""\nran.append(1)\n"""',
    "]; ran.append(1); [", "a\nran.append(1)", "\rran.append(1)", "\u2028ran.append(1)", "{ran.append(1)}", "x = ran.append(1)",
    "\\", "\0", '"', "", "class",
)  # fmt: skip
PLACES: dict[str, Any] = {
    "name": lambda text: {"name": text},
    "description": lambda text: {"description": text},
    "partition_by": lambda text: {"partition_by": text},
    "parameter": lambda text: {"parameters": {"properties": {text: {"type": "string"}}, "required": [text]}},
    "member": lambda text: {"result": {"type": "object", "title": "T", "properties": {text: {"type": text}}, "required": [text]}},
    "title": lambda text: {"result": {"type": "object", "title": text, "properties": {"c": {"format": text, "type": "string"}}}},
    "choice": lambda text: {"result": {"enum": [text, {text: text}]}},
    "constant": lambda text: {"result": {"type": "object", "properties": {"a-b": {"const": text}}}},
}


@pytest.mark.parametrize("place", PLACES)
def test_a_hostile_catalog_stays_data(place: str) -> None:
    """Whatever a server says, wherever: importing the module runs nothing of it."""
    plain: dict[str, Any] = {"name": "put", "partition_by": None, "parameters": {"properties": {}}, "result": {"type": "null"}}
    for text in HOSTILE:
        module = stub_module([{**plain, **PLACES[place](text)}], name="Shop", source=text)
        ran: list[int] = []
        exec(compile(module, "stubs.py", "exec", dont_inherit=True), {"ran": ran, "__name__": "stubs"})  # noqa: S102 - it is the test
        assert ran == [], module


class FakeClient:
    """Notes the calls that reach it."""

    def __init__(self) -> None:
        self.calls: list[Call[Any]] = []

    def invoke(self, call: Call[Any], **_: Any) -> Result[Any]:
        """As `Client.invoke`."""
        self.calls.append(call)
        value: Any = None
        return Result(0, 0, value)


def test_names_of_the_module_itself_do_not_hide_a_procedure(tmp_path: Path) -> None:
    """Procedures and parameters called like methods, types and classes of the module are called under the application's names."""
    client, odd = FakeClient(), _imported(_written(odd_names.db, tmp_path, "Odd"))
    stubs = odd.OddClient(client)
    stubs.batch__(item=1, self_="a", call="call")
    stubs.batch_(item=2)
    stubs.client_(item=3, date_=date(2026, 1, 31), idempotency_key="a", key_of_call="b", key_of_call_="key")
    stubs.list_(item=4, Client_=None, _given_=1, OddCalls_="x")
    stubs.staticmethod_(item=5, self_={}, self__=6)
    assert [(call.procedure, dict(call.params)) for call in client.calls] == [
        ("batch", {"item": 1, "self": "a", "call": "call"}),
        ("batch_", {"item": 2}),
        ("client", {"item": 3, "date": date(2026, 1, 31), "idempotency_key": "a", "key_of_call": "b"}),
        ("list", {"item": 4, "Client": None, "_given": 1, "OddCalls": "x"}),
        ("staticmethod", {"item": 5, "self_": {}, "self": 6}),
    ]
    assert odd.Client is Client
    assert odd.Client2.__annotations__.keys() == {"name", "date", "until"}


USE = """
from shop_stubs import ShopCalls, ShopClient
from cmdlog import Client

def use(client: Client) -> int:
    shop = ShopClient(client)
    shop.put(item=1, cuont=2)  # bad
    shop.put(item="1", count=2)  # bad
    left, note = shop.reserve(item=1, count=1, note={"text": "a"})
    shop.reserve(item=1, count=1, note={"test": "a"})  # bad
    for answer in shop.batch([ShopCalls.put(item=1, count=2)]):
        print(answer)
    return left + shop.rate_count()[0] + len(note["text"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("checker", EACH_CHECKER)
def test_the_modules_pass_a_strict_type_checker(tmp_path: Path, checker: str) -> None:
    """mypy and pyright have nothing to say of the modules of four applications, and see wrong uses of one."""
    paths = [
        _written(typed_shop.db, tmp_path, "Shop"),
        _written(bank.db, tmp_path, "Bank"),
        _written(every_type.db, tmp_path, "Every"),
        _written(odd_names.db, tmp_path, "Odd"),
    ]
    use = tmp_path / "use.py"
    use.write_text(USE)
    assert wrong_lines(checker, [*paths, use]) == marked_lines(use)


@pytest.mark.slow
def test_the_module_works_against_a_server(tmp_path: Path) -> None:
    """Calls, keys, a batch and the asynchronous class give Python values; a parameter that is left out has its default."""
    shop = _imported(_written(typed_shop.db, tmp_path, "Shop"))
    running = Server("tests.client.typed_shop:db", tmp_path / "server", partitions=2)
    try:
        running.start()
        with Client(running.url) as client:
            stubs = shop.ShopClient(client)
            assert stubs.put(item=1, count=10, idempotency_key="order-1") == 10
            assert stubs.put(item=1, count=10, idempotency_key="order-1") == 10
            assert stubs.reserve(item=1, count=3) == (7, {"text": "-", "within": "PT1H"})
            assert stubs.set_rate(rate=1) is None
            assert stubs.rate_count() == [1, 1]
            (answer,) = stubs.batch([shop.ShopCalls.put(item=2, count=1)])
            assert isinstance(answer, Result)

        async def later() -> Any:
            async with AsyncClient(running.url) as client:
                return await shop.AsyncShopClient(client).reserve(item=1, count=1)

        assert asyncio.run(later())[0] == 9
    finally:
        running.close()


@pytest.mark.slow
def test_texts_come_back_as_pythons_own_types(tmp_path: Path) -> None:
    """Decimals and times of results are Decimal and datetime, not text."""
    faulty = importlib.import_module("tests.node.apps.faulty")
    module = _imported(_written(faulty.db, tmp_path, "Faulty"))
    running = Server("tests.node.apps.faulty:db", tmp_path / "server")
    at = datetime(2026, 1, 31, 12, tzinfo=UTC)
    try:
        running.start()
        with Client(running.url) as client:
            mixed = module.FaultyClient(client).mixed(id=1, amount=Decimal("2.50"), at=at, raw=b"\xff")
            assert (mixed["amount"], mixed["at"]) == (Decimal("2.50"), at)
    finally:
        running.close()
