"""The bank's transfer as a plain route of FastAPI over SQLite, under uvicorn: `python -m bench._sqlite_route FILE`.

One rule: what a small service does that has no store but its file. WAL, `synchronous = FULL`, one transaction a request, answered
when it is synced. The route holds up the event loop meanwhile: SQLite has one writer, so the others would wait for a lock, and
the way over a thread made one client a quarter slower and 32 no faster.
"""

from __future__ import annotations

import sys
from pathlib import Path

from fastapi import FastAPI, HTTPException

from bench._empty import PATH, Answer, Transfer, serve_app
from bench._sqlite import Accounts, open_accounts


def sqlite_app(accounts: Accounts) -> FastAPI:
    app = FastAPI()

    @app.post(PATH)
    async def transfer(body: Transfer) -> Answer:
        left = accounts.transfer(body.branch, body.source, body.target, body.amount)
        if left is None:
            raise HTTPException(409, "insufficient funds")
        return Answer(txn_id="0", partition=0, result=left)

    return app


if __name__ == "__main__":
    serve_app(sqlite_app(open_accounts(Path(sys.argv[1]))))
