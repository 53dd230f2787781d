"""Pages for browsers: the description with Swagger UI, the status page, and the form that asks for a token.

One rule: a page is one answer, which loads nothing: a browser would ask for further files without the token of its tab. Swagger
UI comes from the package `fastapi-offline`. The token stays in the tab (`sessionStorage`) and travels in the Authorization header
alone, never in an address.
"""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from typing import Any, Final

import orjson
from starlette.types import Send

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


POLICY: Final = (
    b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
    b"font-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS: Final = [
    (b"content-type", b"text/html; charset=utf-8"),
    (b"content-security-policy", POLICY),
    (b"x-frame-options", b"DENY"),
]
"""Of every page. It may run its own script and ask this server; a procedure's result that slipped into markup could load nothing.

The page that is fetched with a token is written into the document of the form, and so has the policy of the form alone.
"""

SIGN_IN_PAGE: Final = b"""<!doctype html>
<html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width"><title>cmdlog: sign in</title>
<style>
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
form { max-width: 22rem; margin: 20vh auto; padding: 0 1rem; display: grid; gap: .6rem }
input, button { font: inherit; padding: .4rem .6rem } h1 { font-size: 1.2rem; margin: 0 } p { margin: 0; min-height: 1.5em }
</style>
<form><h1>cmdlog</h1><label for=token>Access token</label>
<input id=token type=password autocomplete=current-password required autofocus><button>Sign in</button><p role=alert></p></form>
<script>
(() => { // a scope of its own: the page that is fetched is written into this document
const form = document.querySelector("form"), note = document.querySelector("p");
async function enter(token) {
  const answer = await fetch(location.pathname, {headers: {Authorization: "Bearer " + token, Accept: "text/html"}});
  if (!answer.ok) { sessionStorage.removeItem("cmdlog-token"); return answer.status; }
  sessionStorage.setItem("cmdlog-token", token);
  const page = await answer.text();
  document.open(); document.write(page); document.close();
  return 200;
}
form.addEventListener("submit", async event => {
  event.preventDefault();
  const status = await enter(form.token.value.trim());
  if (status !== 200) note.textContent = status === 403 ? "This credential may not see the page." : "The token is not accepted.";
});
const kept = sessionStorage.getItem("cmdlog-token");
if (kept) enter(kept);
})();
</script></html>
"""


async def send_sign_in(send: Send) -> None:
    """Answers 401 with the form."""
    headers = [*PAGE_HEADERS, (b"www-authenticate", b"Bearer"), (b"content-length", b"%d" % len(SIGN_IN_PAGE))]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": SIGN_IN_PAGE})


def dashboard_page() -> str:
    """The status page."""
    return files("cmdlog.api").joinpath("dashboard.html").read_text(encoding="utf-8")
