"""The interactive page: one answer that holds everything, and cannot be broken by what it shows."""

from __future__ import annotations

import json
import re

from cmdlog.api.routes.page import START, swagger_page

HOSTILE = "</script><script>alert(1)</script><!--"


def test_description_and_files_are_in_the_page_and_end_nothing_early() -> None:
    """The page has its own elements alone, and the description comes out of it as it was."""
    described = {"info": {"title": "a<b", "version": "1"}, "paths": {}, "summary": HOSTILE}
    page = swagger_page(described)
    assert page.count("</script>") == 3
    assert page.count("</style>") == 1
    held = re.search(r"id=described>(.*?)</script>", page)
    assert held is not None
    assert json.loads(held[1]) == described
    assert "<title>a&lt;b 1</title>" in page


def test_every_call_gets_a_key_and_the_token_of_the_tab() -> None:
    """The page adds the header Idempotency-Key to calls that have none, and the token that the sign-in kept."""
    assert 'headers["Idempotency-Key"] = newKey()' in START
    assert 'sessionStorage.getItem("cmdlog-token")' in START
