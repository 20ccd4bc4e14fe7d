"""The status page in use: filters in the address, hostile names, keyboard, small screens, both themes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import axe_core_python
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from provisioner.slices.planning.contention.usage import LimitUse
from provisioner.slices.view.types import AlertView, BackoffView, NoticeView, PoolView, QueueView, State
from tests.support.clock import NOW
from tests.support.page import (
    NO_CAPACITY,
    HandMadeBoard,
    a_pool,
    a_slice,
    a_track,
    a_view,
    a_workload,
    an_entry,
    open_page,
    prefer,
    resize,
    rows_of,
    search_of,
    shows,
    text_of,
    until,
)

pytestmark = pytest.mark.timeout(60)

Chrome = webdriver.Chrome
VIEWS = ("board", "timeline", "capacity", "activity")


@pytest.fixture
def many(board: HandMadeBoard, url: str) -> str:
    """Show slices with different values in all filters; return the address."""
    train, evaluate = a_workload("train", "team-a"), a_workload("eval", "team-b")
    slices = [
        a_slice(train, 0, State.WAITING),
        a_slice(train, 1),
        a_slice(evaluate, 0, State.WAITING, accelerator="tpu-v6e-slice"),
        a_slice(evaluate, 1, accelerator="tpu-v6e-slice"),
    ]
    pools = [a_pool(slice_, zone=f"us-east5-{slice_.group[-1]}") for slice_ in slices if slice_.pool]
    board.show(view=a_view([train, evaluate], slices, pools))
    return url


@pytest.mark.parametrize(
    ("query", "want"),
    [
        pytest.param("", ["train-slice-0", "train-slice-1", "eval-slice-0", "eval-slice-1"], id="all"),
        pytest.param("?q=train", ["train-slice-0", "train-slice-1"], id="text"),
        pytest.param("?q=US-EAST5-1+v6e", ["eval-slice-1"], id="words of the slice and of its pool"),
        pytest.param("?namespace=team-b", ["eval-slice-0", "eval-slice-1"], id="a namespace"),
        pytest.param("?state=waiting", ["train-slice-0", "eval-slice-0"], id="a state"),
        pytest.param("?state=waiting,running&q=slice-1", ["train-slice-1", "eval-slice-1"], id="states and text"),
        pytest.param("?accelerator=tpu-v5p-slice", ["train-slice-0", "train-slice-1"], id="an accelerator"),
        pytest.param("?view=nonsense&zoom=2h&sort=__proto__&q=eval-slice-0", ["eval-slice-0"], id="nonsense"),
        pytest.param("?namespace=nowhere", [], id="a namespace that is not there"),
    ],
)
def test_address_with_filters_opens_the_filtered_view(browser: Chrome, many: str, query: str, want: list[str]) -> None:
    open_page(browser, f"{many}{query}")
    assert list(rows_of(browser)) == want
    assert ("Nothing matches these filters" in text_of(browser, "#board")) is (not want)


def test_filters_are_in_the_address_and_removed_by_the_back_button(browser: Chrome, many: str) -> None:
    open_page(browser, many)
    browser.find_element(By.ID, "search").send_keys("slice-1")
    until(browser, "return document.querySelectorAll('#board .row:not(.workload)').length === 2")
    assert search_of(browser) == "?q=slice-1"
    Select(browser.find_element(By.ID, "namespace")).select_by_value("team-a")
    until(browser, "return document.querySelectorAll('#board .row:not(.workload)').length === 1")
    browser.find_element(By.ID, "tab-timeline").click()
    assert search_of(browser) == "?view=timeline&q=slice-1&namespace=team-a"
    until(browser, "return document.getElementById('board').hidden")

    browser.back()
    until(browser, "return !document.getElementById('board').hidden")
    assert list(rows_of(browser)) == ["train-slice-1"]
    browser.back()
    until(browser, "return document.querySelectorAll('#board .row:not(.workload)').length === 2")
    assert browser.find_element(By.ID, "namespace").get_attribute("value") == ""
    browser.back()
    until(browser, "return document.querySelectorAll('#board .row:not(.workload)').length === 4")
    assert browser.find_element(By.ID, "search").get_attribute("value") == ""

    browser.find_element(By.CSS_SELECTOR, ".filter.s-waiting").click()
    until(browser, "return document.querySelectorAll('#board .row:not(.workload)').length === 2")
    pressed = browser.find_element(By.CSS_SELECTOR, ".filter.s-waiting")
    assert pressed.get_attribute("aria-pressed") == "true"
    assert search_of(browser) == "?state=waiting"
    browser.find_element(By.ID, "clear").click()
    until(browser, "return document.querySelectorAll('#board .row:not(.workload)').length === 4")


def test_board_is_sorted_by_the_chosen_column(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    workloads = [a_workload(name) for name in ("c", "b", "a")]
    waits = [
        a_slice(workload, 0, State.WAITING, chips=chips, since=NOW - timedelta(minutes=minutes))
        for workload, chips, minutes in zip(workloads, (8, 64, 16), (5, 90, 60), strict=True)
    ]
    queue = QueueView(
        resource="the limit of namespace team-a", place=3, length=39, ahead=(waits[0].id,),
        users=("JobSet/team-a/x: 64 chips",),
        other_users=4, idle_chips=16, idle_until=NOW + timedelta(minutes=2),
    )  # fmt: skip
    waits[1] = replace(waits[1], queue=queue)
    board.show(view=a_view(workloads, waits))
    open_page(browser, url)
    assert list(rows_of(browser)) == ["b-slice-0", "a-slice-0", "c-slice-0"]
    assert "place 3 of 39" in rows_of(browser)["b-slice-0"]
    assert "Oldest wait" in text_of(browser, "#board .totals")
    assert "1 h 30 min" in text_of(browser, "#board .totals")
    browser.find_element(By.LINK_TEXT, "Chips").click()
    until(browser, "return document.querySelector('[aria-sort]').textContent === 'Chips'")
    assert list(rows_of(browser)) == ["b-slice-0", "a-slice-0", "c-slice-0"]
    assert search_of(browser) == "?sort=chips"
    browser.find_element(By.PARTIAL_LINK_TEXT, "Workload").click()
    until(browser, "return document.querySelector('[aria-sort]').textContent.startsWith('Workload')")
    assert list(rows_of(browser)) == ["a-slice-0", "b-slice-0", "c-slice-0"]
    browser.find_element(By.LINK_TEXT, "b-slice-0").click()
    shows(browser, "Place 3 of 39 in the queue for the limit of namespace team-a", "#detail")
    for words in ("JobSet/team-a/x: 64 chips", "4 more", waits[0].id, "16 idle chips become free in"):
        assert words in text_of(browser, "#detail")


def test_slices_that_wait_for_one_limit_are_in_the_order_of_their_places(
    browser: Chrome, board: HandMadeBoard, url: str
) -> None:
    """A priority puts a younger slice first; a slice that waits for capacity keeps its position by age."""
    queue = QueueView(
        resource="the limit of all node pools",
        place=1,
        length=4,
        ahead=(),
        users=(),
        other_users=0,
        idle_chips=0,
        idle_until=None,
    )
    queues = [replace(queue, place=place) for place in (1, 2, 3, 4)]
    waits = [
        a_slice(a_workload(name), 0, State.WAITING, queue=queue, since=NOW - timedelta(minutes=minutes))
        for name, queue, minutes in (("last", queues[3], 90), ("stockout", None, 80), ("first", queues[0], 60))
    ]
    two = a_workload("two")
    waits += [a_slice(two, 1, State.WAITING, queue=queues[2], since=NOW - timedelta(minutes=9))]
    waits += [a_slice(two, 2, State.WAITING, queue=queues[1], since=NOW - timedelta(minutes=5))]
    board.show(view=a_view([two, *(a_workload(slice_.workload.split("/")[2]) for slice_ in waits[:3])], waits))
    open_page(browser, url)
    assert list(rows_of(browser)) == ["first-slice-0", "stockout-slice-0", "two-slice-2", "two-slice-1", "last-slice-0"]


def test_workload_with_many_slices_is_one_line_until_it_is_opened(
    browser: Chrome, board: HandMadeBoard, url: str
) -> None:
    workload = a_workload()
    slices = [a_slice(workload, number, state) for number, state in enumerate([State.RUNNING] * 44 + [State.WAITING])]
    board.show(view=a_view([workload], slices, [a_pool(slice_) for slice_ in slices[:-1]]))
    open_page(browser, url)
    assert rows_of(browser) == {}
    line = text_of(browser, "#board .workload")
    for words in ("45 slices", "The reason for waiting.", "176/180", "720"):
        assert words in line
    opener = browser.find_element(By.CSS_SELECTOR, "#board .opener")
    assert opener.get_attribute("aria-expanded") == "false"
    opener.click()
    until(browser, "return document.querySelectorAll('#board .row:not(.workload)').length === 45")
    assert next(iter(rows_of(browser))) == "train-slice-44"
    assert opener.get_attribute("aria-expanded") == "true"


@pytest.mark.parametrize("view", VIEWS)
def test_markup_in_names_is_shown_as_text(browser: Chrome, board: HandMadeBoard, url: str, view: str) -> None:
    bad = '"><img src=x onerror="window.isBroken=1"><script>window.isBroken=1</script>'
    workload = a_workload(bad, bad, state=bad)
    notice = NoticeView(reason=bad, message=bad, warning=True)
    waits = a_slice(workload, 0, State.WAITING, group=bad, reason=bad, accelerator=bad, notices=(notice,))
    runs = a_slice(workload, 1, pool=bad, machine_type=bad, topology=bad)
    pool = a_pool(runs, name=bad, zone=bad, reservation=bad, capacity=bad, unready_nodes=(bad,))
    limits = (LimitUse(name=bad, scope=bad, used=1, most=2),)
    shown = a_view(
        [workload],
        [waits, runs],
        [pool, replace(pool, name="other", reason=bad)],
        alerts=(AlertView(kind=bad, message=bad),),
        capacity=replace(NO_CAPACITY, limits=limits),
    )
    entries = (an_entry(1, bad, kind=bad, pool=bad, workload=workload.id),)
    board.show(problems=(bad,), view=shown, tracks=(a_track(runs, (State.RUNNING, 9, None)),), activity=entries)

    open_page(browser, f"{url}?view={view}&q=%3Cimg")

    assert bad in browser.execute_script("return document.getElementById(arguments[0]).textContent", view)
    assert browser.execute_script("return document.querySelectorAll('img, body script').length") == 0
    assert browser.execute_script("return window.isBroken") is None


def test_page_can_be_used_by_keyboard(browser: Chrome, many: str) -> None:
    open_page(browser, many)
    focused = "return document.activeElement.id"
    body = browser.find_element(By.TAG_NAME, "body")
    body.send_keys(Keys.TAB)
    assert browser.execute_script("return document.activeElement.className") == "skip"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.execute_script(focused) == "theme"
    browser.switch_to.active_element.send_keys(Keys.TAB)
    assert browser.execute_script(focused) == "tab-board"
    outline = "return getComputedStyle(document.activeElement).outlineStyle"
    assert browser.execute_script(outline) == "solid"
    for key, want in ((Keys.ARROW_RIGHT, "timeline"), (Keys.END, "activity"), (Keys.ARROW_RIGHT, "board")):
        browser.switch_to.active_element.send_keys(key)
        assert browser.execute_script(focused) == f"tab-{want}"
        until(browser, "return !document.getElementById(arguments[0]).hidden", want)
    browser.switch_to.active_element.send_keys("/")
    assert browser.execute_script(focused) == "search"
    browser.switch_to.active_element.send_keys("eval/", Keys.ESCAPE)
    assert search_of(browser) == ""
    assert browser.execute_script(focused) == ""


def each_view(browser: Chrome, url: str, board: HandMadeBoard) -> Iterator[str]:
    """Show one view after the other, then the details of each object; yield the name of each."""
    for view in VIEWS:
        browser.find_element(By.ID, f"tab-{view}").click()
        until(browser, "return !document.getElementById(arguments[0]).hidden", view)
        yield view
        if view == "timeline":
            browser.find_element(By.LINK_TEXT, "Table").click()
            until(browser, "return document.querySelector('#timeline table').checkVisibility()")
            yield "timeline as a table"
    view_ = board.shown.view
    assert view_ is not None
    for slice_ in (*view_.slices, *view_.workloads, *view_.pools):
        name = slice_.name if isinstance(slice_, PoolView) else slice_.id
        open_page(browser, f"{url}?view=detail&id={name}")
        yield f"details of {name}"


@pytest.mark.parametrize("width", [360, 768, 1440])
def test_nothing_is_wider_than_the_screen(browser: Chrome, board: HandMadeBoard, url: str, width: int) -> None:
    resize(browser, width, 800)
    board.show(**_long())
    open_page(browser, url)
    for view in each_view(browser, url, board):
        assert browser.execute_script("return document.documentElement.scrollWidth") == width, view
        over = browser.execute_script(
            """const inside = e => e.closest('.table-box, .tabs, .hidden, .strip, .sprite, .skip') === null;
            return [...document.querySelectorAll('body *')].filter(e => e.checkVisibility() && inside(e) &&
              e.getBoundingClientRect().right > innerWidth + 1).map(e => e.tagName + '.' + e.className)"""
        )
        assert over == [], view


def _long() -> dict[str, Any]:
    name = "a-name-of-" + "x" * 53
    workload = a_workload(name, "n" * 63)
    runs = a_slice(workload, 0, hosts=2240, group=name, machine_type="m" * 40)
    queue = QueueView(
        resource="the limit of namespace " + "n" * 63, place=3, length=39, ahead=(runs.id,),
        users=(f"JobSet/{'n' * 63}/{name}: 4 chips",), other_users=4, idle_chips=16,
        idle_until=NOW + timedelta(minutes=2),
    )  # fmt: skip
    waits = a_slice(
        workload,
        1,
        State.WAITING,
        reason="why-" + "y" * 1000,
        next_step="next-" + "s" * 200,
        next_try_at=NOW + timedelta(minutes=2),
        queue=queue,
        notices=(NoticeView(reason="R" * 40, message="m" * 1000, warning=True),),
    )
    alone = a_slice(workload, 2, State.IDLE, pool="p" * 40)
    pools = [a_pool(runs, "R" * 2240, reservation="r" * 200), a_pool(alone, "r" * 4, slice="", delete_at=NOW)]
    backoff = BackoffView(
        capacity=waits.id, zone="z" * 30, machine_type="m" * 40, shape="s" * 40, terms="t" * 200, kind="stockout",
        message="m" * 1000, failures=3, since=NOW, until=NOW + timedelta(hours=3),
    )  # fmt: skip
    limit = LimitUse(name="MAX_CHIPS_PER_NAMESPACE", scope="n" * 63, used=123456, most=1234567)
    capacity = replace(
        NO_CAPACITY,
        chips=dict.fromkeys(NO_CAPACITY.chips, 100000),
        limits=(limit,),
        backoffs=(backoff,),
    )
    return {
        "view": a_view([workload], [runs, waits], pools, capacity=capacity),
        "tracks": (a_track(runs, (State.WAITING, 50, 40), (State.RUNNING, 40, None)),),
        "activity": (an_entry(1, "entry-" + "e" * 1000, pool=runs.pool, workload=workload.id),),
    }


_CONTRAST = """
    const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
    const over = (color, below) => {
      canvas.fillStyle = below; canvas.fillRect(0, 0, 1, 1);
      canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
      return `rgb(${[...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3).join(' ')})`;
    };
    const behind = e => e === null ? 'white' : over(getComputedStyle(e).backgroundColor, behind(e.parentElement));
    const light = color => {
      const parts = color.match(/\\d+/g).map(v => v / 255)
        .map(v => v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4);
      return .2126 * parts[0] + .7152 * parts[1] + .0722 * parts[2];
    };
    const found = [];
    for (const e of document.querySelectorAll('body *')) {
      const isText = [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim());
      if (!isText || !e.checkVisibility() || e.closest('.hidden, .label, .sprite, option')) continue;
      const below = behind(e);
      const [a, b] = [light(over(getComputedStyle(e).color, below)), light(below)].sort((x, y) => y - x);
      if ((a + .05) / (b + .05) < 4.5) found.push(`${e.tagName}.${e.className} ${e.textContent}`);
    }
    return [found, behind(document.body)];
"""


_AXE = (Path(axe_core_python.__file__).parent / "axe.min.js").read_text(encoding="utf-8")
_FINDINGS = """
    const done = arguments[arguments.length - 1];
    axe.run().then(found => done(found.violations.map(e => `${e.impact} ${e.id}: ${e.nodes.map(n => n.html)}`)));
"""


@pytest.mark.parametrize(("theme", "width"), [("light", 1280), ("dark", 1280), ("light", 360)])
def test_axe_finds_no_mistake_in_any_view(
    browser: Chrome, board: HandMadeBoard, url: str, theme: str, width: int
) -> None:
    resize(browser, width, 800)
    prefer(browser, theme)
    board.show(problems=("p",), **_long())
    open_page(browser, url)
    for view in each_view(browser, url, board):
        if not browser.execute_script("return 'axe' in window"):
            browser.execute_script(_AXE)
        assert browser.execute_async_script(_FINDINGS) == [], view


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_contrast_is_enough_in_both_themes(browser: Chrome, board: HandMadeBoard, url: str, theme: str) -> None:
    """Text of all views and states has a contrast of at least 4.5 to 1 (WCAG AA)."""
    prefer(browser, theme)
    workload = a_workload(notices=(NoticeView(reason="Reason", message="Words.", warning=True),))
    slices = [a_slice(workload, number, state) for number, state in enumerate(set(State) - {State.IDLE})]
    pools = [a_pool(slice_, "Rrcj") for slice_ in slices if slice_.pool]
    idle = a_pool(a_slice(workload, 99, State.IDLE), slice="")
    long = _long()
    capacity = replace(long["view"].capacity, creation_paused=True)
    tracks = [
        a_track(slice_, (slice_.state, 30, None), pool=slice_.group)
        for slice_ in (*slices, a_slice(workload, 99, State.IDLE))
    ]
    board.show(
        problems=("p",),
        stalled=True,
        view=a_view([workload], slices, [*pools, idle], alerts=(AlertView(kind="k", message="m"),), capacity=capacity),
        tracks=tuple(tracks),
        activity=(an_entry(1, "Words.", warning=True, pool="p", workload=workload.id),),
    )
    open_page(browser, url)
    for view in each_view(browser, url, board):
        faint, behind = browser.execute_script(_CONTRAST)
        assert faint == [], view
        assert (sum(map(int, behind[4:-1].split())) > 384) is (theme == "light")


def test_chosen_theme_is_kept_after_a_reload(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    open_page(browser, url)
    scheme = "return getComputedStyle(document.documentElement).colorScheme"
    button = browser.find_element(By.ID, "theme")
    assert button.text == "System theme"
    button.click()
    assert (button.text, browser.execute_script(scheme)) == ("Light theme", "light")
    button.click()
    assert (button.text, browser.execute_script(scheme)) == ("Dark theme", "dark")
    open_page(browser, url)
    assert browser.execute_script(scheme) == "dark"
    browser.find_element(By.ID, "theme").click()
    assert browser.execute_script(scheme) == "light dark"
