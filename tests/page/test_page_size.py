"""The status page with 500 slices of 64 hosts: how many elements, and how long a change takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from selenium import webdriver

from provisioner.slices.view import State
from tests.support.page import (
    HandMadeBoard,
    a_large_view,
    a_track,
    an_entry,
    open_page,
    shows,
    until,
)

# Chromium takes a second or two to start, and more where other tests use the cores.
pytestmark = pytest.mark.timeout(60)

Chrome = webdriver.Chrome
VIEWS = ("board", "timeline", "capacity", "activity")


_MEASURES = """
    const paint = performance.getEntriesByName('first-contentful-paint')[0]?.startTime;
    return {paint, nodes: document.getElementsByTagName('*').length};
"""


@pytest.mark.parametrize("view", VIEWS)
def test_500_slices_of_64_hosts(browser: Chrome, board: HandMadeBoard, url: str, view: str) -> None:
    """Hosts are no elements of their own, and a change costs what it changes; docs/performance.md has the times.

    The bounds on time are ten times the goals: this machine may be busy.
    """
    large = a_large_view()
    tracks = [
        a_track(each, (State.WAITING, 50, 40), (State.JOINING, 40, 30), (each.state, 30, None), pool=each.group)
        for each in large.slices
    ]
    entries = [an_entry(number, f"Entry {number}.") for number in range(500)]
    board.show(view=large, tracks=tuple(tracks), activity=tuple(entries))
    browser.execute_cdp_cmd(
        "Page.addScriptToEvaluateOnNewDocument",
        {
            "source": "window.measures = []; new PerformanceObserver(l => measures.push(...l.getEntries().map(e => "
            "[e.name, e.duration]))).observe({type: 'measure'})"
        },
    )
    open_page(browser, f"{url}?view={view}")
    until(
        browser,
        "return document.querySelectorAll('#board .row:not(.columns)').length === 500 || arguments[0]",
        view != "board",
    )
    found = browser.execute_script(_MEASURES)
    assert found["nodes"] < 20_000
    assert found["paint"] < 10_000
    browser.execute_script("measures.length = 0")

    pools = [replace(each, hosts="r" + each.hosts[1:]) for each in large.pools[:50]]
    board.show(
        view=replace(large, pools=(*pools, *large.pools[50:])), activity=(*entries, an_entry(501, "Last."))[-500:]
    )

    until(browser, "return measures.some(([name]) => name === 'data') && measures.some(([name]) => name === 'render')")
    spent = browser.execute_script("return measures.reduce((all, [, each]) => all + each, 0)")
    assert spent < 1000
    if view == "board":
        shows(browser, "64/64 ready", "#board")
