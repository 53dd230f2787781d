"""Clients of the HTTP interface: `Client` for threads, `AsyncClient` for tasks.

One rule: this package knows the contract on the wire and imports nothing of the server. What is decided (requests, what an answer
proves, when to send again) is pure and shared; the two clients only carry it out, with httpx.

    request                Python values as JSON; requests
    session                names of calls: idempotency keys, numbers in sessions
    response               what an attempt proves
    retry                  the table of retries; one request from its first attempt to its end
    server_set             which of several servers is asked
    batch_window           a running batch and its answers
    auto_batch             calls that share requests
    connection_pool        connections
    options, client_base   options; what both clients have in common
    client, async_client   the clients
    stub_module            a typed client as a module's text
"""

from __future__ import annotations

from cmdlog.client.async_client import AsyncClient
from cmdlog.client.client import Client
from cmdlog.client.options import AutoBatch
from cmdlog.client.retry import RetryPolicy
from cmdlog.client.server_set import DEFAULT_URL
from cmdlog.procedure_calls import NEW_KEY, Call

__all__ = ["DEFAULT_URL", "NEW_KEY", "AsyncClient", "AutoBatch", "Call", "Client", "RetryPolicy"]
