"""An embedded database in somebody's own FastAPI application."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Annotated

import pytest
from fastapi import Depends, FastAPI

from cmdlog import Call, Embedded
from cmdlog.errors import Unreachable
from cmdlog.fastapi import PROBLEMS, IdempotencyKey, answer_problems, call_async, embedded, lifespan, problem_of
from tests.client import typed_shop
from tests.client.typed_shop import Kept, Note, put, reserve
from tests.waiting import PATIENCE_S

with warnings.catch_warnings():  # it prefers a newer httpx, which nothing else here needs
    warnings.simplefilter("ignore")
    from fastapi.testclient import TestClient

ROOT = Path(__file__).parents[1]
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
Shop = Annotated[Embedded, Depends(embedded)]


def _application(folder: Path) -> FastAPI:
    app = FastAPI(lifespan=lifespan(folder, typed_shop.db, partitions=2, query_rows_max=1), responses=PROBLEMS)
    answer_problems(app)

    @app.post("/items/{item}")
    def add(item: int, count: int, shop: Shop, key: IdempotencyKey = None) -> int:
        return shop.invoke(Call.of(put, item=item, count=count).under(key)).value

    @app.post("/items/{item}/reservations")
    async def take(item: int, count: int, note: Note, shop: Shop) -> Kept:
        return await call_async(shop, reserve, item=item, count=count, note=note)

    @app.post("/anything/{name}")
    def anything(name: str, shop: Shop) -> object:
        return shop.call(name, item=1)

    @app.get("/rows")
    def rows(sql: str, shop: Shop) -> list[list[object]]:
        return [list(row) for row in shop.query(sql).rows]

    return app


def test_calls_are_made_in_handlers_of_both_kinds(tmp_path: Path) -> None:
    """A handler with `def` and one with `async def` call procedures, and a key makes a retry the same call."""
    with TestClient(_application(tmp_path)) as http:
        for _ in range(2):
            assert http.post("/items/1?count=10", headers={"Idempotency-Key": "order-1"}).json() == 10
        answer = http.post("/items/1/reservations?count=3", json={"text": "soon", "within": "PT90M"})
        assert answer.json() == [7, {"text": "soon", "within": "PT1H30M"}]
        assert http.get("/openapi.json").json()["components"]["schemas"]["Note"]["title"] == "Note"


def test_the_database_survives_the_application(tmp_path: Path) -> None:
    """The directory is closed with the application, and the next one finds what was acknowledged."""
    for count in (10, 20):
        with TestClient(_application(tmp_path)) as http:
            http.post(f"/items/{count}?count={count}")
            answer = http.post("/items/10/reservations?count=1", json={"text": ""})
            assert answer.json()[0] == 9


def test_errors_are_problems_with_the_codes_of_the_server(tmp_path: Path) -> None:
    """A failed call, bad parameters and an unknown procedure are answered as problem+json."""
    with TestClient(_application(tmp_path)) as http:
        failed = http.post("/items/5/reservations?count=1", json={"text": ""})
        assert failed.headers["content-type"] == "application/problem+json"
        assert (failed.json()["code"], failed.json()["error"]) == ("procedure_failed", "TypeError")
        unfit = http.post("/anything/put")
        assert (unfit.status_code, unfit.json()["problems"]) == (422, [{"field": "count", "problem": "missing"}])
        assert http.post("/anything/nothing").status_code == 404
    assert problem_of(Unreachable("no connection")).status == 503


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("select * from stock", "query_limit"),
        ("select nothing", "invalid_parameters"),
        ("delete from stock", "invalid_parameters"),
    ],
)
def test_errors_of_queries_are_problems_too(tmp_path: Path, sql: str, code: str) -> None:
    """A statement that is refused, or needs more than a query may have, is answered as the server answers it."""
    with TestClient(_application(tmp_path)) as http:
        for item in range(3):
            http.post(f"/items/{item}?count=1")
        answer = http.get("/rows", params={"sql": sql})
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert answer.json()["code"] == code


def test_problems_are_in_the_applications_description(tmp_path: Path) -> None:
    """The answers that `answer_problems` gives are listed for each route, with the codes of their status."""
    with TestClient(_application(tmp_path)) as http:
        answers = http.get("/openapi.json").json()["paths"]["/items/{item}"]["post"]["responses"]
    assert answers.keys() == {"200", "409", "422", "500", "503", "504"}
    assert "aborted" in answers["409"]["description"]
    assert answers["503"]["content"]["application/problem+json"]["schema"]["title"] == "ProblemDetails"


def test_an_application_without_a_database_is_told_how_to_open_one() -> None:
    """The dependency without the lifespan names the line that is missing."""
    app = FastAPI()

    @app.get("/")
    def read(shop: Shop) -> None: ...

    with TestClient(app) as http, pytest.raises(RuntimeError, match="lifespan"):
        http.get("/")


@pytest.mark.slow
def test_the_documented_application_runs(tmp_path: Path) -> None:
    """The block of SERVING.md is a complete program over the README's application."""
    blocks = [re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.S) for name in ("README.md", "cmdlog/SERVING.md")]
    (shop,) = [block for block in blocks[0] if block.startswith("# shop.py")]
    (program,) = [block for block in blocks[1] if "cmdlog.fastapi" in block]
    (tmp_path / "shop.py").write_text(shop)
    (tmp_path / "web.py").write_text(program)
    (tmp_path / "use.py").write_text(
        "from fastapi.testclient import TestClient\nimport shop, web\nwith TestClient(web.app) as http:\n"
        "    for line in ('/items/1?count=4', '/items/1/reservations?count=3', '/items/1/reservations?count=3'):\n"
        "        answer = http.post(line)\n        print(answer.status_code, answer.text)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    done = subprocess.run(
        [sys.executable, "use.py"], cwd=tmp_path, env=environ, capture_output=True, text=True, check=True, timeout=PATIENCE_S
    )
    put_answer, taken, refused = done.stdout.splitlines()
    assert (put_answer, taken) == ("200 null", "200 1")
    assert refused.startswith("409")
    assert '"abort_code":"sold_out"' in refused
