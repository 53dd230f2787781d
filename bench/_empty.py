"""An application of FastAPI that does nothing, under the same server: `python -m bench._empty`; prints its port."""

from __future__ import annotations

import socket
from typing import Any

import uvicorn
from fastapi import FastAPI


def main() -> None:
    app = FastAPI()

    @app.post("/nothing")
    async def nothing() -> dict[str, Any]:
        return {}

    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(
        app, loop="uvloop", http="httptools", ws="none", lifespan="off", access_log=False, log_level="error", server_header=False
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
