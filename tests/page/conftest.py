"""Fixtures for tests of the page: a browser that all tests share, and a server for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.page import HandMadeBoard, a_browser, prefer, resize, served


@pytest.fixture(scope="session")
def chrome() -> Iterator[webdriver.Chrome]:
    with a_browser() as browser:
        yield browser


@pytest.fixture
def browser(chrome: webdriver.Chrome) -> Iterator[webdriver.Chrome]:
    """Yield the browser with a window of usual size; fail if the page logged an error."""
    resize(chrome, 1280)
    prefer(chrome, "light")
    chrome.get_log("browser")
    yield chrome
    logged = [entry["message"] for entry in chrome.get_log("browser") if entry["level"] == "SEVERE"]
    # Broken connections are allowed: some tests cause them, and each server stops at the end of its test.
    assert [message for message in logged if " net::ERR_" not in message and "status of 503" not in message] == []


@pytest.fixture
def board() -> HandMadeBoard:
    return HandMadeBoard()


@pytest.fixture
def url(browser: webdriver.Chrome, board: HandMadeBoard) -> Iterator[str]:
    with served(board) as address:
        yield address
        # Otherwise the page would poll a server that has stopped.
        browser.get("about:blank")
