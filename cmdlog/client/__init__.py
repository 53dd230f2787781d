"""Clients of the HTTP interface: `Client` for threads, `AsyncClient` for tasks.

One rule: this package knows the contract on the wire and imports nothing of the server. What is decided (requests, what an answer
proves, when to send again) is pure and shared; the two clients only carry it out, with httpx.

    values, keys, ask      Python values, idempotency keys, requests
    answer, lines          what an attempt proves; the answers of a batch
    retry, exchange        the table of retries; one request from its first attempt to its end
    server_set             which of several servers is asked
    window                 a batch under way
    coalesce, …_tasks      calls that share requests
    options, core          options; what both clients have in common
    sync, aio              the clients
"""

from __future__ import annotations

from cmdlog.client.async_client import AsyncClient
from cmdlog.client.client import Client
from cmdlog.client.options import DEFAULT_URL, AutoBatch
from cmdlog.client.retry import RetryPolicy
from cmdlog.procedure_calls import NEW_KEY, Call

__all__ = ["DEFAULT_URL", "NEW_KEY", "AsyncClient", "AutoBatch", "Call", "Client", "RetryPolicy"]
