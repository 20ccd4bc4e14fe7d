"""One browser for all tests of the page, and a server for each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.page import HandMadeBoard, a_browser, prefer, resize, served


@pytest.fixture(scope="session")
def chrome() -> Iterator[webdriver.Chrome]:
    """Start the browser, which takes a second or two."""
    with a_browser() as browser:
        yield browser


@pytest.fixture
def browser(chrome: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """Return the browser with a window of usual size; afterwards the page must have had no errors."""
    resize(chrome, 1280)
    prefer(chrome, "light")
    chrome.get_log("browser")
    yield chrome
    logged = [each["message"] for each in chrome.get_log("browser") if each["level"] == "SEVERE"]
    # Connections are lost where a test says so, and when its server stops.
    assert [each for each in logged if " net::ERR_" not in each and "status of 503" not in each] == []


@pytest.fixture
def board() -> HandMadeBoard:
    """Return a board that shows what the test says."""
    return HandMadeBoard()


@pytest.fixture
def url(browser: webdriver.Chrome, board: HandMadeBoard) -> Iterator[str]:
    """Return the address of the page."""
    with served(board) as address:
        yield address
        # It would ask a server that is gone.
        browser.get("about:blank")
