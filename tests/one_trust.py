"""httpx reads the certificates of all authorities for each client and each `httpx.get`, 45 ms of processor; here it does so once.

Loops of tests that look at a server used up a processor by that, and the servers that they waited for had to share it.
"""

from __future__ import annotations

import ssl
from functools import cache
from typing import Any

import httpx

_create = httpx.create_ssl_context
_default = cache(_create)


def _create_once(verify: Any = True, cert: Any = None, trust_env: bool = True) -> ssl.SSLContext:
    """The one context of clients that name no certificates; any other is made."""
    if verify is True and cert is None:
        return _default(trust_env=trust_env)
    return _create(verify=verify, cert=cert, trust_env=trust_env)


def install() -> None:
    """From now on clients of this process share it."""
    httpx._transports.default.create_ssl_context = _create_once  # type: ignore[attr-defined]
