"""`GET /docs`: the OpenAPI description as one page that needs nothing from anywhere else.

One rule: every value is escaped; the page has no script. It is what is served without the package of `swagger_page`.
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
        _operation(described, method, path, operation)
        for path, methods in sorted(described["paths"].items())
        for method, operation in methods.items()
    ]
    schemas = [
        f"<details id={escape(name)}><summary><code>{escape(name)}</code></summary>{_schema(schema)}</details>"
        for name, schema in described["components"]["schemas"].items()
    ]
    title = f"{escape(described['info']['title'])} {escape(described['info']['version'])}"
    about = "".join(f"<p>{escape(part)}</p>" for part in described["info"]["description"].split("\n\n"))
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style><h1>{title}</h1>{about}"
        f'<p>For tools: <a href="/openapi.json">openapi.json</a>.</p>{"".join(operations)}'
        f"<h1>Schemas</h1>{''.join(schemas)}</html>"
    )


def _operation(described: dict[str, Any], method: str, path: str, operation: dict[str, Any]) -> str:
    parts = [f"<p>{escape(operation['description'])}</p>"] if "description" in operation else []
    parts.append(f"<p>Role: {' or '.join(f'<code>{escape(role)}</code>' for role in operation['x-roles'])}</p>")
    for parameter in (_resolved(described, parameter) for parameter in operation["parameters"]):
        told = f"{parameter['in']} <code>{escape(parameter['name'])}</code>: {escape(parameter['description'])}"
        parts.append(f"<p>{told}</p>")
    for kind, body in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Request, <code>{escape(kind)}</code></p>{_schema(body['schema'])}")
        parts += [f"<p>Such as</p>{_schema(example['value'])}" for example in body["examples"].values()]
    for status, response in sorted(operation["responses"].items()):
        whole = _resolved(described, response)
        parts.append(f"<p><code>{escape(status)}</code> {escape(whole['description'])}</p>")
        if status == "200":
            parts += [_schema(body["schema"]) for body in whole["content"].values()]
    head = f"<b>{method.upper()}</b><code>{escape(path)}</code> {escape(operation['summary'])}"
    return f"<details><summary>{head}</summary>{''.join(parts)}</details>"


def _resolved(described: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """What a `$ref` of the description leads to."""
    if "$ref" not in value:
        return value
    _, _, kind, name = value["$ref"].split("/")
    found: dict[str, Any] = described["components"][kind][name]
    return found


def _schema(schema: Any) -> str:
    return f"<pre>{escape(orjson.dumps(schema, option=orjson.OPT_INDENT_2).decode())}</pre>"
