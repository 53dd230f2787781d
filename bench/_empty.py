"""Applications that do nothing with a call, under uvicorn as the server runs it: `python -m bench._empty KIND`; prints its port.

One rule: the same path, the same bodies in and out as a call of `transfer`. What a kind costs beyond the one before it is its
framework: `asgi` reads the body and answers, `starlette` adds routing and a request object, `fastapi` a typed body and answer.
"""

from __future__ import annotations

import argparse
import gc
import socket
from collections.abc import Callable
from typing import Any, Final

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

PATH: Final = "/v1/procedures/transfer"
TXN_ID: Final = "7318349394477056"
ANSWER: Final = b'{"txn_id":"%s","partition":0,"result":999995}' % TXN_ID.encode()
HEADERS: Final = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(ANSWER))]


class Transfer(BaseModel):
    """What a call of `transfer` sends."""

    branch: int
    source: int
    target: int
    amount: int


class Answer(BaseModel):
    """What it gets."""

    txn_id: str
    partition: int
    result: int


def fastapi_app() -> ASGIApp:
    app = FastAPI()

    @app.post(PATH)
    async def transfer(_body: Transfer) -> Answer:
        return Answer(txn_id=TXN_ID, partition=0, result=999_995)

    return app


def starlette_app() -> ASGIApp:
    async def transfer(request: Request) -> Response:
        await request.body()
        return Response(ANSWER, media_type="application/json")

    return Starlette(routes=[Route(PATH, transfer, methods=["POST"])])


def asgi_app() -> ASGIApp:
    async def app(_scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive()).get("more_body", False):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        await send({"type": "http.response.body", "body": ANSWER})

    return app


APPS: Final[dict[str, Callable[[], Any]]] = {"asgi": asgi_app, "starlette": starlette_app, "fastapi": fastapi_app}


def serve_app(app: ASGIApp) -> None:
    """Serves on a free port, which is printed, until the process is ended."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False, log_config=None, server_header=False
    )
    gc.collect()
    gc.freeze()  # as the server does
    uvicorn.Server(config).run(sockets=[listener])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=APPS)
    serve_app(APPS[parser.parse_args().kind]())


if __name__ == "__main__":
    main()
