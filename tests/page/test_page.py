"""The status page in a real browser, against a real server: what it shows, without a reload."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By

from provisioner.slices.view import State
from tests.support.page import (
    HandMadeBoard,
    a_browser,
    a_pool,
    a_slice,
    a_view,
    a_workload,
    served,
    until,
)

# Chromium takes a second or two to start, and more where other tests use the cores.
pytestmark = pytest.mark.timeout(60)


@pytest.fixture(scope="module")
def browser() -> Iterator[webdriver.Chrome]:
    """Return the browser of all tests here."""
    with a_browser() as chrome:
        yield chrome


@pytest.fixture
def board() -> HandMadeBoard:
    """Return a board that shows what the test says."""
    return HandMadeBoard()


@pytest.fixture
def url(board: HandMadeBoard) -> Iterator[str]:
    """Return the address of the page."""
    with served(board) as address:
        yield address


_LOADED = "return document.getElementById('loading').hidden"


def open_page(browser: webdriver.Chrome, address: str) -> None:
    """Open a page and wait until it shows the document."""
    browser.get(address)
    until(browser, _LOADED)


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    """Return what is to be read in an element."""
    return browser.find_element(By.CSS_SELECTOR, selector).text


def test_a_change_arrives_without_a_reload(browser: webdriver.Chrome, board: HandMadeBoard, url: str) -> None:
    """A slice gets its pool, and runs."""
    workload = a_workload()
    waits = a_slice(workload, state=State.WAITING, reason="GKE has no capacity.")
    board.show(view=a_view([workload], [waits]))
    open_page(browser, url)
    assert "Waiting" in text_of(browser, "#board .row:not(.columns)")
    assert "GKE has no capacity." in text_of(browser, "#board .row:not(.columns)")
    browser.execute_script("window.isSame = true")

    runs = a_slice(workload)
    board.show(view=a_view([workload], [runs], [replace(a_pool(runs), zone="us-east5-b")]))

    until(browser, "return document.querySelector('#board').innerText.includes('us-east5-b')")
    assert "Running" in text_of(browser, "#board .row:not(.columns)")
    assert browser.execute_script("return window.isSame") is True
