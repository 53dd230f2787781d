"""`GET /docs`: the OpenAPI description as one page that needs nothing from anywhere else.

One rule: every value is escaped; the page has no script.
"""

from __future__ import annotations

from html import escape
from typing import Any, Final

import orjson

STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
h1 { font-size: 1.5rem } summary { cursor: pointer; padding: .4rem 0; border-top: 1px solid #ddd }
code, pre { font: 13px/1.45 ui-monospace, monospace } pre { background: #f5f5f5; padding: .6rem; overflow-x: auto }
b { display: inline-block; width: 3.5rem; color: #05603a } p { margin: .3rem 0 }
@media (prefers-color-scheme: dark) { body { background: #161616; color: #ddd } pre { background: #222 } b { color: #6ce9a6 } }
"""


def docs_page(described: dict[str, Any]) -> str:
    """HTML of an OpenAPI description."""
    operations = [
        _operation(method, path, operation)
        for path, methods in sorted(described["paths"].items())
        for method, operation in methods.items()
    ]
    title = f"{escape(described['info']['title'])} {escape(described['info']['version'])}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>"
        f"<p>Errors are <code>application/problem+json</code> with a stable <code>code</code>. For tools: "
        f'<a href="/openapi.json">openapi.json</a>.</p>{"".join(operations)}</html>'
    )


def _operation(method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation[name])}</p>" for name in ("description",) if name in operation]
    content = operation.get("requestBody", {}).get("content", {})
    parts += [f"<p>Request, <code>{escape(kind)}</code></p>{_schema(body)}" for kind, body in content.items()]
    for status, response in operation["responses"].items():
        parts.append(f"<p><code>{escape(str(status))}</code> {escape(response['description'])}</p>")
        if str(status) == "200":
            parts += [_schema(body) for body in response.get("content", {}).values() if body.get("schema")]
    head = f"<b>{method.upper()}</b><code>{escape(path)}</code> {escape(operation.get('summary', ''))}"
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _schema(body: dict[str, Any]) -> str:
    return f"<pre>{escape(orjson.dumps(body['schema'], option=orjson.OPT_INDENT_2).decode())}</pre>"
