"""The status page in a real browser over a real server; skipped where chromium and chromium-driver are not installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from cmdlog.api.gate.route_table import ADMIN
from tests.api.running import TOKENS, Running
from tests.waiting import PATIENCE_S

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
CALLER = TOKENS[ADMIN]
WAIT_S = PATIENCE_S

NO_BROWSER = "needs a browser: Debian's chromium and chromium-driver"

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not (CHROMIUM and DRIVER), reason=NO_BROWSER)]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """`cmdlog serve` of the bank."""
    server = Running(tmp_path_factory.mktemp("dashboard"), app="procedures.samples.bank:db")
    try:
        yield server.url
    finally:
        server.stop()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Headless, with one empty tab; one that cannot start is none: a container may forbid what its sandbox or memory needs."""
    from selenium import webdriver
    from selenium.common.exceptions import WebDriverException

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    try:
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    except WebDriverException:
        pytest.skip(NO_BROWSER)
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture
def browser(chromium: Any) -> Iterator[Any]:
    """A tab, which keeps credentials and the window's size to itself; an error on its console fails the test."""
    yield chromium
    told = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    used = chromium.window_handles
    chromium.switch_to.new_window("tab")
    fresh = chromium.current_window_handle
    for tab in used:
        chromium.switch_to.window(tab)
        chromium.close()
    chromium.switch_to.window(fresh)
    assert [line for line in told if "Failed to load resource" not in line] == []  # 4xx answers are part of these tests


def until(browser: Any, holds: Callable[[Any], object]) -> None:
    """Waits for something to show."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(browser, WAIT_S, poll_frequency=0.1).until(holds)


def text_of(browser: Any, place: str) -> str:
    """What stands at this place of the page."""
    return str(browser.find_element("css selector", place).text)


def open_page(browser: Any, url: str, token: str) -> None:
    """Signs in and waits for the first event."""
    browser.get(url)
    until(browser, lambda page: page.find_elements("id", "token"))
    browser.find_element("id", "token").send_keys(token)
    browser.find_element("css selector", "button").click()
    until(browser, lambda page: page.find_elements("id", "state") and text_of(page, "#state") == "serving")
    until(browser, lambda page: "transfer" in text_of(page, "#procedure"))


def choose(browser: Any, procedure: str, **params: object) -> None:
    """Fills the form and sends it."""
    from selenium.webdriver.support.ui import Select

    Select(browser.find_element("id", "procedure")).select_by_value(procedure)
    for name, value in params.items():
        field = browser.find_element("css selector", f"#fields input[name={name}]")
        field.clear()
        field.send_keys(str(value))
    browser.find_element("id", "send").click()


def test_call_from_the_form_moves_the_watermarks(url: str, browser: Any) -> None:
    """Who signs in calls a procedure from its form, sees the result, and then its partition's watermarks and rate move."""
    open_page(browser, url, CALLER)
    before = text_of(browser, "#partitions")
    choose(browser, "open_account", branch=7, customer=2**63 - 1, savings=5, checking=6)
    until(browser, lambda page: text_of(page, "#timing").startswith("200"))
    assert json.loads(text_of(browser, "#result"))["txn_id"]
    until(browser, lambda page: text_of(page, "#partitions") != before)
    held = httpx.post(
        f"{url}/v1/query",
        json={"sql": "SELECT customer FROM accounts WHERE branch = 7"},
        headers={"Authorization": f"Bearer {CALLER}"},
    )
    assert held.json()["rows"] == [[2**63 - 1]]  # a number that JavaScript cannot hold went through untouched
    choose(browser, "open_account", branch=7, customer=2**63 - 1, savings=5, checking=6)
    until(browser, lambda page: text_of(page, "#timing").startswith("500"))
    assert json.loads(text_of(browser, "#result"))["code"] == "procedure_failed"


def test_newest_error_is_shown_with_text_and_place(url: str, browser: Any) -> None:
    """A procedure that raises is the first row, with what it said and the line; an abort is none."""
    open_page(browser, url, CALLER)
    for _ in range(2):
        choose(browser, "open_account", branch=9, customer=4, savings=5, checking=6)
        until(browser, lambda page: text_of(page, "#timing").startswith(("200", "500")))
    rows = "return [...document.querySelectorAll('#errors tr')].map(row => row.innerText.replace(/\\s+/g, ' '))"
    until(browser, lambda page: "procedure_failed open_account" in page.execute_script(rows)[1])
    newest = browser.execute_script(rows)[1]
    assert "procedures/samples/bank.py:" in newest
    assert "UNIQUE constraint failed" in newest
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", newest)
    choose(browser, "deposit_checking", branch=9, customer=5, amount=1)
    until(browser, lambda page: "409" in text_of(page, "#timing"))
    assert "aborted" not in text_of(browser, "#errors")


def test_badges_turn_when_a_site_stops(url: str, browser: Any) -> None:
    """A stopped site turns the page's badge and those of its partitions, which come first; going on, it turns them back."""
    open_page(browser, url, CALLER)
    status = httpx.get(f"{url}/v1/status", headers={"Authorization": f"Bearer {CALLER}"}).json()
    pid = status["sites"][-1]
    os.kill(pid, signal.SIGSTOP)
    try:
        until(browser, lambda page: "without progress" in text_of(page, "#state"))
        assert "the site's process is stopped" in text_of(browser, "#why")
        first = browser.find_element("css selector", "#partitions tr:nth-child(2)")
        assert "stopped" in first.text
    finally:
        os.kill(pid, signal.SIGCONT)
    until(browser, lambda page: text_of(page, "#state") == "serving")
    assert text_of(browser, "#why") == ""


def test_snapshot_taken_from_the_page_is_listed(url: str, browser: Any) -> None:
    """The button takes a snapshot of every partition, and the list shows them."""
    open_page(browser, url, CALLER)
    browser.find_element("id", "take").click()
    until(browser, lambda page: text_of(page, "#takeTold") == "taken and verified")
    assert len(browser.find_elements("css selector", "#snapshots tr")) >= 3


@pytest.mark.parametrize(("width", "height"), [(1280, 800), (390, 844)], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_fits_its_window(url: str, browser: Any, width: int, height: int, scheme: str) -> None:
    """Nothing is cut off sideways on a desktop or a phone, and text stands out from its background in both schemes."""
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})
    open_page(browser, url, CALLER)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    colours = browser.execute_script(
        "return ['color', 'backgroundColor'].map(name => getComputedStyle(document.body)[name].match(/[0-9.]+/g).slice(0, 3))"
    )
    lightness = [sum(map(float, colour)) / 3 for colour in colours]
    assert abs(lightness[0] - lightness[1]) > 150
    assert (lightness[0] > lightness[1]) is (scheme == "dark")
    assert browser.get_screenshot_as_png().startswith(b"\x89PNG")


def test_page_asks_nobody_else(url: str, browser: Any) -> None:
    """Everything that the page loads comes from its own server."""
    open_page(browser, url, CALLER)
    loaded = browser.execute_script("return performance.getEntriesByType('resource').map(entry => entry.name)")
    assert loaded
    assert {name for name in loaded if not name.startswith((url, "data:"))} == set()


def has(selector: str) -> Callable[[Any], Any]:
    """Whether a page has an element of this kind by now."""
    return lambda page: page.find_elements("css selector", selector)


def test_docs_make_a_call_under_a_key_of_its_own(url: str, browser: Any) -> None:
    """Who signs in at /docs makes a call there: with the token of the tab, and with a key that the server knows afterwards."""
    browser.get(f"{url}/docs")
    until(browser, lambda page: page.find_elements("id", "token"))
    browser.find_element("id", "token").send_keys(CALLER)
    browser.find_element("css selector", "button").click()
    operation = "#operations-procedures-call_open_account"
    for place in (".opblock-summary-control", ".try-out__btn", ".execute"):
        until(browser, has(f"{operation} {place}"))
        browser.execute_script("document.querySelector(arguments[0]).click()", f"{operation} {place}")
    until(browser, lambda page: page.find_elements("css selector", f"{operation} .live-responses-table .response"))
    assert text_of(browser, f"{operation} .live-responses-table .response .response-col_status").startswith("200")
    sent = re.search(r"Idempotency-Key: ([0-9a-f-]{36})", text_of(browser, f"{operation} .curl-command"))
    assert sent is not None
    body = json.loads(browser.execute_script("return JSON.stringify(window.ui.specSelectors.specJson().toJS())"))
    assert "OpenAccountParameters" in body["components"]["schemas"]
    again = httpx.post(
        f"{url}/v1/procedures/open_account",
        json={"branch": 1, "customer": 99},
        headers={"Authorization": f"Bearer {CALLER}", "Idempotency-Key": sent[1]},
    )
    assert again.json()["code"] == "key_reused"
