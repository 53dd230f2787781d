"""The interactive page: one answer that holds everything, and cannot be broken by what it shows."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from cmdlog.api.routes.swagger_page import FILES, START, swagger_folder, swagger_page

HOSTILE = "</script><script>alert(1)</script><!--"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files as the package has them, with the texts that could end an element early."""
    for name, text in zip(FILES, ("const a = '</script>'; b", "i::after { content: '</style>' }"), strict=True):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_description_and_files_are_in_the_page_and_end_nothing_early(folder: Path) -> None:
    """The page has its own elements alone, and the description comes out of it as it was."""
    described = {"info": {"title": "a<b", "version": "1"}, "paths": {}, "summary": HOSTILE}
    page = swagger_page(described, folder)
    assert page.count("</script>") == page.count("<script") == 3
    assert page.count("</style>") == 1
    held = re.search(r"id=described>(.*?)</script>", page)
    assert held is not None
    assert json.loads(held[1]) == described
    assert "<title>a&lt;b 1</title>" in page


def test_every_call_gets_a_key_and_the_token_of_the_tab() -> None:
    """The page adds the header Idempotency-Key to calls that have none, and the token that the sign-in kept."""
    assert 'headers["Idempotency-Key"] = newKey()' in START
    assert 'sessionStorage.getItem("cmdlog-token")' in START


def test_files_are_found_without_importing_their_package() -> None:
    """The folder has the files, or there is none."""
    found = swagger_folder()
    assert found is None or all((found / name).is_file() for name in FILES)
