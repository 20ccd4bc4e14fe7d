"""Tests that the first screen of the page shows why a JobSet does not start, and what to do."""

from __future__ import annotations

import pytest
from selenium import webdriver

from provisioner.model.capacity import FailureKind
from tests.support.causes import CAUSES, Cause, beside_a_healthy_one
from tests.support.page import open_page, resize, served

pytestmark = pytest.mark.timeout(60)

#: Script that returns the texts that are completely on the screen: inside the window and not cut by an element.
_SEEN = """
    const inside = (e, box) => {
      if (e === null) return box.top >= 0 && box.left >= 0 && box.bottom <= innerHeight && box.right <= innerWidth;
      const own = e.getBoundingClientRect();
      const cuts = getComputedStyle(e).overflow !== 'visible';
      const fits = box.bottom <= own.bottom + 1 && box.right <= own.right + 1 && box.left >= own.left - 1;
      return (!cuts || fits) && inside(e.parentElement, box);
    };
    const texts = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      if (!node.parentElement.checkVisibility()) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const boxes = [...range.getClientRects()];
      if (boxes.length && boxes.every(box => inside(node.parentElement, box))) texts.push(node.data);
    }
    return texts.join(' ').replace(/\\s+/g, ' ');
"""


def test_first_screen_has_the_time_of_the_last_decision_as_soon_as_decisions_are_paused(
    browser: webdriver.Chrome,
) -> None:
    """In the past, the page showed old states under a green "Live" for a minute."""
    resize(browser, 1280, 800)
    world = beside_a_healthy_one()
    world.gke.fail_always("list_node_pools", FailureKind.UNAVAILABLE, message="503")
    world.rounds(3, every_seconds=30)
    with served(world.board) as url:
        open_page(browser, url)
        seen = browser.execute_script(_SEEN)
        browser.get("about:blank")
    assert "Nothing has been decided since 00:17:16 UTC." in seen


@pytest.mark.parametrize("cause", CAUSES.values(), ids=CAUSES)
def test_first_screen_has_cause_next_step_and_place(browser: webdriver.Chrome, cause: Cause) -> None:
    """The three texts are inside the window, and neither in a tooltip nor cut at the end of a column."""
    resize(browser, 1280, 800)
    with served(cause.play().board) as url:
        open_page(browser, url)
        seen = browser.execute_script(_SEEN).lower()
        browser.get("about:blank")
    said = (*cause.words, cause.step, cause.place_on_page or cause.place)
    assert [words for words in said if words.lower() not in seen] == [], seen
