"""The status page with 2,000 slices of 64 hosts: its number of elements, and the number that one change touches."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from selenium import webdriver

from provisioner.slices.view.types import State
from tests.support.page import HandMadeBoard, a_large_view, a_track, an_entry, open_page, until

pytestmark = pytest.mark.timeout(60)

VIEWS = ("board", "timeline", "capacity", "activity")
#: Script that collects the names of the page's measures (reading data, drawing) and the changes of its elements.
_COLLECT = """
    window.measures = [];
    new PerformanceObserver(list => measures.push(...list.getEntries().map(e => e.name))).observe({type: 'measure'});
    window.changes = 0;
    const options = {subtree: true, childList: true, attributes: true, characterData: true};
    new MutationObserver(list => { changes += list.length; }).observe(document, options);
"""
_ALL_LINES = "return document.querySelectorAll('#board .row.workload').length === 200"
_LINES = "return [...document.querySelectorAll('#board .row')].map(e => e.getBoundingClientRect().top)"
_BOTH = "return measures.includes('data') && measures.includes('render')"


@contextmanager
def collecting(browser: webdriver.Chrome) -> Iterator[None]:
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _COLLECT})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


@pytest.mark.parametrize("view", VIEWS)
def test_page_with_2000_slices_has_few_elements_and_a_change_touches_few(
    browser: webdriver.Chrome, board: HandMadeBoard, url: str, view: str
) -> None:
    """Each slice has 64 hosts, which must not be separate elements."""
    large = a_large_view(2000)
    tracks = [
        a_track(slice_, (State.WAITING, 50, 40), (State.JOINING, 40, 30), (slice_.state, 30, None), pool=slice_.group)
        for slice_ in large.slices
    ]
    entries = [an_entry(number, f"Entry {number}.") for number in range(500)]
    board.show(view=large, tracks=tuple(tracks), activity=tuple(entries))
    with collecting(browser):
        open_page(browser, f"{url}?view={view}")
        until(browser, _BOTH)
        if view == "board":
            until(browser, _ALL_LINES)
    elements = browser.execute_script(
        "measures.length = 0; changes = 0; return document.getElementsByTagName('*').length"
    )
    pools = [replace(pool, hosts="r" + pool.hosts[1:]) for pool in large.pools[:50]]
    last = [replace(track, segments=track.segments[:-1]) for track in tracks[:50]]
    board.show(
        view=replace(large, pools=(*pools, *large.pools[50:])),
        tracks=(*last, *tracks[50:]),
        activity=(*entries[1:], an_entry(501, "Last.")),
    )
    until(browser, _BOTH)
    changes = browser.execute_script("return changes")
    assert elements < 20_000
    assert 0 < changes < 4 * 50
    if view == "board":
        # Workloads have one line each, and at least 27 lines are on the screen.
        assert len(browser.execute_script(_LINES)) == 200
        assert sum(0 <= top <= 900 - 25 for top in browser.execute_script(_LINES)) >= 27
