"""`GET /docs` with Swagger UI: the description as a page on which calls can be made.

One rule: the page is one answer. What it needs comes from the package `fastapi-offline`, which is Swagger UI's files and nothing
that runs here, and is written into the page: a browser would ask for further files without the token of its tab.
"""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from typing import Any, Final

import orjson

PACKAGE: Final = "fastapi_offline"
FILES: Final = ("swagger-ui-bundle.js", "swagger-ui.css")
START: Final = """
const described = JSON.parse(document.getElementById("described").textContent);
window.ui = SwaggerUIBundle({
  spec: described,
  dom_id: "#swagger",
  deepLinking: true,
  displayRequestDuration: true,
  validatorUrl: null,
  requestInterceptor: request => {
    // The token of this tab, and a new key for each call: what is shown as curl can be repeated without running twice.
    const headers = request.headers, token = sessionStorage.getItem("cmdlog-token");
    if (token && !headers.Authorization) headers.Authorization = "Bearer " + token;
    const call = new URL(request.url, location.href).pathname.startsWith("/v1/procedures/");
    if (call && request.method === "POST" && !headers["Idempotency-Key"]) headers["Idempotency-Key"] = newKey();
    return request;
  },
});
function newKey() { // a UUID of version 7: it carries its time, so the server need not store it to refuse it later
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const time = Date.now().toString(16).padStart(12, "0");
  for (let at = 0; at < 6; at++) bytes[at] = parseInt(time.slice(2 * at, 2 * at + 2), 16);
  bytes[6] = bytes[6] & 15 | 112;
  bytes[8] = bytes[8] & 63 | 128;
  const text = Array.from(bytes, byte => byte.toString(16).padStart(2, "0")).join("");
  return text.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
"""


def swagger_page(described: dict[str, Any]) -> str:
    """HTML of an OpenAPI description, with Swagger UI."""
    folder = files(PACKAGE) / "static"
    script, style = (re.sub(r"</(?=script|style)", r"<\\/", (folder / name).read_text(encoding="utf-8")) for name in FILES)
    data = orjson.dumps(described).decode().replace("<", "\\u003c")
    title = f"{escape(described['info']['title'])} {escape(described['info']['version'])}"
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{title}</title><style>{style}</style><div id=swagger></div>"
        f"<script type=application/json id=described>{data}</script>"
        f"<script>{script}</script><script>{START}</script></html>"
    )
