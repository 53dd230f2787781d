"""What a browser gets for a page when it has no credential: a form that asks for a token and fetches the page with it.

One rule: the token stays in the tab (`sessionStorage`) and travels in the Authorization header alone, never in an address.
"""

from __future__ import annotations

from typing import Final

from starlette.types import Send

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


async def send_sign_in(send: Send, page: bytes) -> None:
    """Answers 401 with the form."""
    headers = [*PAGE_HEADERS, (b"www-authenticate", b"Bearer"), (b"content-length", b"%d" % len(page))]
    await send({"type": "http.response.start", "status": 401, "headers": headers})
    await send({"type": "http.response.body", "body": page})
