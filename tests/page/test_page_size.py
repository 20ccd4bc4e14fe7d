"""The status page with 2,000 slices of 64 hosts: its number of elements, and the duration of a change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from selenium import webdriver

from provisioner.slices.view.types import State
from tests.support.page import HandMadeBoard, a_large_view, a_track, an_entry, open_page, until

# Long time-out, because Chromium takes a second or two to start, and more if other tests use the cores.
pytestmark = pytest.mark.timeout(60)

VIEWS = ("board", "timeline", "capacity", "activity")
#: Script that collects the page's measures of reading data and drawing; the page keeps only the last ones.
_COLLECT = """
    window.measures = [];
    const collect = list => measures.push(...list.getEntries().map(e => [e.name, e.startTime, e.duration]));
    new PerformanceObserver(collect).observe({type: 'measure'});
"""
_ALL_LINES = "return document.querySelectorAll('#board .row.workload').length === 200"
_LINES = "return [...document.querySelectorAll('#board .row')].map(e => e.getBoundingClientRect().top)"
_BOTH = "return measures.some(([name]) => name === 'data') && measures.some(([name]) => name === 'render')"


@contextmanager
def collecting(browser: webdriver.Chrome) -> Iterator[None]:
    """Collect the measures of pages that are opened."""
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _COLLECT})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.mark.parametrize("view", VIEWS)
def test_page_with_2000_slices_has_few_elements_and_changes_fast(
    browser: webdriver.Chrome, board: HandMadeBoard, url: str, view: str
) -> None:
    """Hosts have no separate elements, and the cost of a change depends on its 50 slices.

    The goals are 1 s and 100 ms. The limits here are ten times as high, because other tests may use the cores.
    """
    large = a_large_view(2000)
    tracks = [
        a_track(each, (State.WAITING, 50, 40), (State.JOINING, 40, 30), (each.state, 30, None), pool=each.group)
        for each in large.slices
    ]
    entries = [an_entry(number, f"Entry {number}.") for number in range(500)]
    board.show(view=large, tracks=tuple(tracks), activity=tuple(entries))
    with collecting(browser):
        open_page(browser, f"{url}?view={view}")
        until(browser, _BOTH)
        if view == "board":
            until(browser, _ALL_LINES)
    found: list[Any] = browser.execute_script("return measures")
    read_at = next(start for name, start, _ in found if name == "data")
    first = next(start + duration for name, start, duration in found if name == "render" and start > read_at)
    elements = browser.execute_script("measures.length = 0; return document.getElementsByTagName('*').length")
    pools = [replace(each, hosts="r" + each.hosts[1:]) for each in large.pools[:50]]
    last = [replace(each, segments=each.segments[:-1]) for each in tracks[:50]]
    board.show(
        view=replace(large, pools=(*pools, *large.pools[50:])),
        tracks=(*last, *tracks[50:]),
        activity=(*entries[1:], an_entry(501, "Last.")),
    )
    until(browser, _BOTH)
    spent = browser.execute_script("return measures.reduce((all, [, , duration]) => all + duration, 0)")
    assert elements < 20_000
    assert first < 10_000
    assert spent < 1_000
    if view == "board":
        # Workloads have one line each, and 30 lines fit on a screen.
        assert len(browser.execute_script(_LINES)) == 200
        assert sum(0 <= top <= 900 - 25 for top in browser.execute_script(_LINES)) >= 27
