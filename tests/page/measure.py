"""What the status page costs with 500 slices of 64 hosts: the figures of docs/performance.md.

python -m tests.page.measure --turns 5
"""

from __future__ import annotations

import argparse
import gzip
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from selenium import webdriver

from provisioner.slices.view.types import State
from tests.support.page import (
    HandMadeBoard,
    a_browser,
    a_large_view,
    a_track,
    an_entry,
    open_page,
    resize,
    served,
    until,
    why_no_browser,
)

VIEWS = ("board", "timeline", "capacity", "activity")
#: The page measures how long it takes over data and draws; it keeps the last measures alone, so they are collected.
_COLLECT = """
    window.measures = [];
    const collect = list => measures.push(...list.getEntries().map(e => [e.name, e.startTime, e.duration]));
    new PerformanceObserver(collect).observe({type: 'measure'});
"""
_ALL_ROWS = "return document.querySelectorAll('#board .row:not(.columns)').length === 500"
_BOTH = "return measures.some(([name]) => name === 'data') && measures.some(([name]) => name === 'render')"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The cost of one view."""

    #: From the request of the page until its slices are drawn for the first time.
    first_milliseconds: float
    #: Script for one change of 50 slices: reading it, and drawing it.
    update_milliseconds: float
    #: Elements of the whole page.
    elements: int


@contextmanager
def collecting(browser: webdriver.Chrome) -> Iterator[None]:
    """Collect what pages that are opened measure."""
    added = browser.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": _COLLECT})
    try:
        yield
    finally:
        browser.execute_cdp_cmd("Page.removeScriptToEvaluateOnNewDocument", added)


def measure(browser: webdriver.Chrome, board: HandMadeBoard, url: str, view: str) -> Figures:
    """Open a view of 500 slices of 64 hosts, and let 50 of them change."""
    large = a_large_view()
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
            until(browser, _ALL_ROWS)
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
    return Figures(first_milliseconds=first, update_milliseconds=spent, elements=elements)


def say_sizes() -> None:
    """Print how large everything is that a client is sent."""
    large = a_large_view()
    entries = tuple(an_entry(number, f"Node pool number {number} is in use.") for number in range(500))
    for segments in (3, 40):
        states = [(State.RUNNING, 30.0 * number + 30, 30.0 * number) for number in range(segments, 0, -1)]
        tracks = tuple(a_track(each, *states, pool=each.group) for each in large.slices)
        board = HandMadeBoard()
        board.show(view=large, tracks=tracks, activity=entries)
        text = board.everything()[1]
        started = time.process_time()
        block = gzip.compress(text, 3)
        spent = 1000 * (time.process_time() - started)
        sys.stdout.write(
            f"everything, {segments} states of each node pool: {len(text) / 1e6:.2f} MB, compressed "
            f"{len(block) / 1e3:.0f} kB in {spent:.0f} ms of processor time\n"
        )


def main() -> int:
    """Print the figures; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.page.measure", description="Measure the status page")
    parser.add_argument("--turns", type=int, default=5, help="how often each view is opened (%(default)s)")
    given = parser.parse_args()
    say_sizes()
    if missing := why_no_browser():
        sys.stderr.write(f"measure: {missing}\n")
        return 1
    with a_browser() as browser:
        resize(browser, 1440)
        for view in VIEWS:
            turns = []
            for _ in range(given.turns):
                board = HandMadeBoard()
                with served(board) as url:
                    turns.append(measure(browser, board, url, view))
                    browser.get("about:blank")
            first = [each.first_milliseconds for each in turns]
            update = [each.update_milliseconds for each in turns]
            sys.stdout.write(
                f"{view}: first shown after {statistics.median(first):.0f} ms ({min(first):.0f} to {max(first):.0f}), "
                f"script of a change {statistics.median(update):.0f} ms ({min(update):.0f} to {max(update):.0f}), "
                f"{turns[0].elements} elements\n"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main())
