"""The status page in a real browser with a real server: the content of each view, and updates."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import Select

from provisioner.slices.planning.contention.usage import LimitUse
from provisioner.slices.view.timeline import Track
from provisioner.slices.view.types import AlertView, BackoffView, NoticeView, State
from tests.support.causes import CAUSES
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
    rows_of,
    search_of,
    served,
    shows,
    text_of,
    until,
)

# Chromium takes a second or two to start, and longer if other tests use the cores.
pytestmark = pytest.mark.timeout(60)

Chrome = webdriver.Chrome
VIEWS = ("board", "timeline", "capacity", "activity")


_WORDS = {
    State.REJECTED: "Rejected",
    State.WAITING: "Waiting",
    State.CREATING: "Creating",
    State.JOINING: "Joining",
    State.READY: "Ready",
    State.RUNNING: "Running",
    State.DRAINING: "Draining",
    State.DELETING: "Deleting",
    State.FAILED: "Failed",
    State.NONE: "No pool",
}


def test_the_board_and_the_details_show_each_state(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    workload = a_workload()
    slices = [a_slice(workload, number, state) for number, state in enumerate(_WORDS)]
    pools = [
        a_pool(slice_, "Rrcj", capacity="spot", unready_nodes=("gke-node-7",), cost_per_hour=1234.5)
        for slice_ in slices
        if slice_.pool
    ]
    board.show(view=a_view([workload], slices, pools))

    open_page(browser, url)

    rows = rows_of(browser)
    first = [
        State.REJECTED,
        State.FAILED,
        State.WAITING,
        State.CREATING,
        State.JOINING,
        State.READY,
        State.RUNNING,
        State.DRAINING,
    ]
    assert [slice_.state for name in rows for slice_ in slices if slice_.group == name][:8] == first
    for slice_ in slices:
        parts = [_WORDS[slice_.state], slice_.reason, "v5p-slice 2x2x4", "16", "3 min"]
        parts += ["us-east5-a spot", "1,234.50", "2/4"] if slice_.pool else []
        assert [part for part in parts if part not in rows[slice_.group]] == [], rows[slice_.group]
    assert "1 waiting" in browser.execute_script("return document.querySelector('.workload').textContent")

    for slice_ in slices:
        open_page(browser, f"{url}?view=detail&id={slice_.id}")
        parts = [
            slice_.group,
            _WORDS[slice_.state],
            slice_.reason,
            "ct5p-hightpu-4t, tpu-v5p-slice, 2x2x4",
            "JobSet team-a/train",
        ]
        parts += [f"{4 if slice_.state is State.RUNNING else 0} of 4 bound to a node", slice_.leader]
        if slice_.pool:
            parts += [slice_.pool, "gke-node-7", "4 hosts: 1 running, 1 ready, 1 chips missing, 1 joining"]
        else:
            parts += ["4 hosts: 4 absent"]
        shown = text_of(browser, "#detail")
        assert [part for part in parts if part not in shown] == [], shown


def test_waiting_slice_shows_its_reason_and_the_time_of_the_next_try(
    browser: Chrome, board: HandMadeBoard, url: str
) -> None:
    notice = NoticeView(reason="WaitingForCapacity", message="All choices are backed off.", warning=True)
    about_all = NoticeView(reason="InvalidAnnotation", message="Use one of these.", warning=False)
    workload = a_workload(notices=(about_all,))
    reason = 'GKE has no capacity: "ZONE_RESOURCE_POOL_EXHAUSTED".'
    waits = a_slice(
        workload, 0, State.WAITING, reason=reason, next_try_at=NOW + timedelta(seconds=95), notices=(notice,)
    )
    backoff = BackoffView(
        capacity="us-east5-a ct5p-hightpu-4t 2x2x4", zone="us-east5-a", machine_type="ct5p-hightpu-4t",
        shape="2x2x4 on 4", terms="spot", kind="stockout", message="No TPUs left.", failures=3, since=NOW,
        until=NOW + timedelta(minutes=3),
    )  # fmt: skip
    other = replace(backoff, machine_type="ct6e-standard-4t", message="Of another machine type.")
    capacity = replace(NO_CAPACITY, backoffs=(backoff, other))
    board.show(view=a_view([workload], [waits], capacity=capacity))

    open_page(browser, url)

    row = rows_of(browser)[waits.group]
    assert reason in row
    # The server's clock is at `NOW`, so a countdown from the browser's clock would be wrong.
    assert re.search(r"Next try\s+in 1 min 3\d s", row)
    shows(browser, "in 1 min 33 s")
    browser.find_element(By.LINK_TEXT, waits.group).click()
    shows(browser, "WaitingForCapacity All choices are backed off.", "#detail")
    detail = text_of(browser, "#detail")
    assert re.search(r"us-east5-a spot\s+stockout\s+failing for < 10 s\s+in [23] min \d\d s\s+No TPUs left.", detail), (
        detail
    )
    assert "Of another machine type." not in detail
    browser.find_element(By.LINK_TEXT, "JobSet team-a/train").click()
    shows(browser, "InvalidAnnotation Use one of these.", "#detail")
    assert reason in text_of(browser, "#detail")
    browser.back()
    browser.back()
    until(browser, "return !document.getElementById('board').hidden")


def test_pool_without_a_slice_shows_its_reason_and_time_of_deletion(
    browser: Chrome, board: HandMadeBoard, url: str
) -> None:
    workload = a_workload()
    runs = a_slice(workload)
    idle = a_pool(
        a_slice(workload, 1, State.IDLE),
        "rrrr",
        slice="",
        reason="It is not needed: its workload has finished.",
        delete_at=NOW + timedelta(minutes=7),
    )
    old = a_pool(runs, "jj..", name="old-pool", state=State.DELETING, reason="It is being deleted.")
    board.show(view=a_view([workload], [runs], [a_pool(runs), idle, old]))

    open_page(browser, url)

    rows = rows_of(browser)
    assert list(rows) == [runs.group, idle.name, "old-pool"]
    assert "Deleting" in rows["old-pool"]
    assert "It is being deleted." in rows["old-pool"]
    assert "It is not needed: its workload has finished." in rows[idle.name]
    assert re.search(r"To be deleted\s+in (7 min 00|6 min 5\d) s", rows[idle.name])
    assert "of team-a/train" in rows[idle.name]
    # A pool without a slice counts in the totals and in the filters.
    for part in ("#board .totals", "#states"):
        words = text_of(browser, part).replace("\n", " ")
        assert "Idle 1" in words
        assert "Deleting 1" in words


def test_split_slices_are_counted_once(browser: Chrome) -> None:
    with served(CAUSES["split slice"].play().board) as url:
        open_page(browser, url)
        assert "Split\n2 (16 chips)" in text_of(browser, "#board .totals")
        assert "Split\n2" in text_of(browser, "#states")
        assert set(rows_of(browser)) == {"healthy-workers-0", "other-workers-0", "train-workers-0"}
        browser.get("about:blank")


def test_a_change_arrives_without_a_reload(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    workload = a_workload()
    waits, goes = a_slice(workload, 0, State.WAITING, reason="GKE has no capacity."), a_slice(workload, 1)
    board.show(view=a_view([workload], [waits, goes], [a_pool(goes)]))
    open_page(browser, url)
    assert "GKE has no capacity." in rows_of(browser)[waits.group]
    browser.execute_script("window.isSame = true; document.querySelector('#board .row:not(.workload)').isSame = true")

    runs, comes = a_slice(workload), a_slice(workload, 2)
    pools = [replace(a_pool(runs), zone="us-east5-b"), a_pool(comes)]
    board.show(view=a_view([workload], [runs, comes], pools), activity=(an_entry(1, "Something was decided."),))

    shows(browser, "us-east5-b", "#board")
    rows = rows_of(browser)
    assert list(rows) == [runs.group, comes.group]
    assert "Running" in rows[runs.group]
    assert "GKE has no capacity." not in rows[runs.group]
    # Remaining rows are changed in place, so the row is still the same element.
    assert browser.execute_script("return document.querySelector('#board .row:not(.workload)').isSame") is True
    assert browser.execute_script("return window.isSame") is True


def test_lost_connection_is_shown_and_restored(browser: Chrome, board: HandMadeBoard) -> None:
    workload = a_workload()
    board.show(view=a_view([workload], [a_slice(workload)]))
    with served(board) as url:
        open_page(browser, url)
        assert text_of(browser, "#live") == "Live"
        assert text_of(browser, "#banners") == ""

    shows(browser, "Connection lost since", "#banners")
    assert text_of(browser, "#live") == "Not connected"
    assert browser.title.startswith("Not connected: ")
    assert "trying again" in text_of(browser, "#banners")
    assert "train-slice-0" in text_of(browser, "#board")
    assert browser.execute_script("return document.querySelector('#banners').getAttribute('role')") == "status"

    board.show(view=a_view([workload], [a_slice(workload), a_slice(workload, 1)]))
    with served(board, int(url.rsplit(":")[-1].strip("/"))):
        # One script finds and clicks the button, because the banner is redrawn at each second of its countdown.
        browser.execute_script("document.querySelector('#banners button')?.click()")
        shows(browser, "train-slice-1", "#board")
        until(browser, "return document.querySelector('#banners').innerText === ''")
        assert text_of(browser, "#live") == "Live"


def test_the_page_works_behind_a_proxy(browser: Chrome, board: HandMadeBoard) -> None:
    """Addresses are relative, because `kubectl proxy` serves the page under a path."""
    board.show(view=a_view([a_workload()], [a_slice(a_workload())]))
    with served(board, prefix="/api/v1/namespaces/x/services/http:y:8081/proxy") as url:
        open_page(browser, f"{url}?view=board")
        assert list(rows_of(browser)) == ["train-slice-0"]
        browser.find_element(By.ID, "tab-activity").click()
        assert browser.current_url == f"{url}?view=activity"
        browser.find_element(By.ID, "tab-board").click()
        assert browser.current_url == url


def test_times_of_day_are_in_utc_with_the_zone(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    """The browser is in another time zone, but reasons and the log have times in UTC."""
    waits = a_slice(a_workload(), 0, State.WAITING)
    track = a_track(waits, (State.WAITING, 20, None), pool="the-pool")
    board.show(
        view=a_view([a_workload()], [waits]), tracks=(track,), activity=(an_entry(1, "It waits."),), stalled=True
    )
    browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "America/Los_Angeles"})
    try:
        open_page(browser, f"{url}?view=timeline&as=table")
        assert "Nothing has been decided since 12:00:00 UTC." in text_of(browser, "#banners")
        assert "2026-06-01 11:40:00 UTC" in text_of(browser, "#timeline table")
        open_page(browser, f"{url}?view=timeline")
        strip = browser.find_element(By.CSS_SELECTOR, ".strip").get_attribute("aria-label")
        assert strip.startswith("Waiting 11:40:00 UTC to now")
        assert "Times in UTC" in text_of(browser, "#timeline")
        assert "11:40" in text_of(browser, "#timeline .axis")
        open_page(browser, f"{url}?view=activity")
        assert "2026-06-01 11:30:01 UTC" in text_of(browser, "#activity")
    finally:
        browser.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


@pytest.mark.parametrize("view", VIEWS)
def test_problems_and_alerts_are_on_top_of_every_view(
    browser: Chrome, board: HandMadeBoard, url: str, view: str
) -> None:
    alerts = (AlertView(kind="mass_delete_brake", message="Seven JobSets vanished at once."),)
    paused = replace(NO_CAPACITY, creation_paused=True)
    problems = ("pods: not listed yet", "the Lease cannot be read")
    board.show(problems=problems, view=a_view(alerts=alerts, capacity=paused))

    open_page(browser, f"{url}?view={view}")

    banners = text_of(browser, "#banners")
    for words in (
        "pods: not listed yet",
        "the Lease cannot be read",
        "Alert, mass delete brake: Seven JobSets vanished at once.",
        "Creation is paused.",
    ):
        assert words in banners


def test_page_of_a_follower_names_the_leader(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    board.show(leading=False, leader="", view=None)
    open_page(browser, url)
    assert "Another process leads." in text_of(browser, "#banners")
    assert "tpu-provisioner-0" in text_of(browser, "#banners")
    assert "kubectl get lease" in text_of(browser, "#board")
    assert text_of(browser, "#role") == "Standby"

    board.show(leader="tpu-provisioner-1")

    shows(browser, "Pod tpu-provisioner-1 leads.", "#banners")
    shows(browser, "Pod tpu-provisioner-1 leads, and its page shows the slices", "#board")

    board.show(leading=True, leader="tpu-provisioner-0", view=a_view([a_workload()], [a_slice(a_workload())]))

    shows(browser, "train-slice-0", "#board")
    assert text_of(browser, "#role") == "Leader"
    assert text_of(browser, "#banners") == ""


@pytest.mark.parametrize(
    ("shown", "view", "want"),
    [
        pytest.param(a_view(), "board", "No workload requests TPUs", id="no workloads"),
        pytest.param(None, "board", "Nothing has been decided yet", id="before the first decision"),
        pytest.param(None, "capacity", "once it has decided", id="no capacity before the first decision"),
        pytest.param(a_view(), "capacity", "Nothing is backed off", id="nothing is backed off"),
        pytest.param(a_view(), "timeline", "Nothing has happened yet", id="no timeline"),
        pytest.param(a_view(), "activity", "Nothing has been decided since", id="no activity"),
    ],
)
def test_empty_view_shows_the_reason(
    browser: Chrome, board: HandMadeBoard, url: str, shown: Any, view: str, want: str
) -> None:
    """Otherwise, users could take an empty view for a broken one."""
    board.show(view=shown)
    open_page(browser, f"{url}?view={view}")
    assert want in text_of(browser, f"#{view}")


def test_the_timeline_shows_a_reused_pool_as_one_row(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    before, now = a_workload("before"), a_workload("now")
    first = a_track(a_slice(before), (State.WAITING, 50, 40), (State.RUNNING, 40, 20), pool="the-pool")
    second = a_track(a_slice(now), (State.RUNNING, 20, 10), pool="the-pool")
    # A pool without a slice is shown with the workload that the pool was created for.
    idle = a_track(replace(a_slice(before), id=""), (State.IDLE, 10, None), pool="the-pool")
    old = a_track(a_slice(now, 5), (State.RUNNING, 300, 200), pool="old-pool")
    reused = Track(pool="the-pool", segments=(*first.segments, *second.segments, *idle.segments))
    board.show(view=a_view([before, now], [a_slice(now)]), tracks=(reused, old))

    open_page(browser, f"{url}?view=timeline")

    assert list(rows_of(browser, "#timeline .track")) == ["now-slice-0"]
    assert text_of(browser, "#timeline .group h2") == "team-a/now"
    bars = browser.execute_script(
        """const box = document.querySelector('.strip').getBoundingClientRect();
        return [...document.querySelectorAll('.strip .bar')].map(e => {
          const found = e.getBoundingClientRect();
          return [e.textContent, Math.round(60 * (found.left - box.left) / box.width),
                  Math.round(60 * found.width / box.width)];
        })"""
    )
    assert bars == [["team-a/before", 10, 10], ["team-a/before", 20, 20], ["Running", 40, 10], ["Idle", 50, 10]]

    browser.find_element(By.LINK_TEXT, "6 h").click()
    shows(browser, "now-slice-5", "#timeline")
    assert "zoom=6h" in search_of(browser)
    assert list(rows_of(browser, "#timeline .track")) == ["now-slice-0", "now-slice-5"]

    browser.find_element(By.LINK_TEXT, "Table").click()
    shows(browser, "1 h 40 min", "#timeline table")
    cells = [" ".join(row.text.split()) for row in browser.find_elements(By.CSS_SELECTOR, "#timeline tbody tr")]
    assert len(cells) == 5
    assert cells[-1].startswith("team-a/now now-slice-5 old-pool Running")


def test_capacity_shows_chips_limits_operations_and_back_off(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    backoff = BackoffView(
        capacity="us-east5-a/ct5p-hightpu-4t/2x2x4/spot",
        zone="us-east5-a",
        machine_type="ct5p-hightpu-4t",
        shape="2x2x4 on 4",
        terms="spot",
        kind="stockout",
        message="There is nothing left.",
        failures=4,
        since=NOW - timedelta(minutes=22),
        until=NOW + timedelta(seconds=50),
    )
    capacity = replace(
        NO_CAPACITY,
        chips={**NO_CAPACITY.chips, "waiting": 16, "creating": 8, "joining": 8, "running": 64, "idle": 4},
        limits=(
            LimitUse(name="MAX_CHIPS", scope="all", used=84, most=100),
            LimitUse(name="MAX_CHIPS_PER_NAMESPACE", scope="*", used=16, most=16),
        ),
        backoffs=(backoff,),
        operations=7,
        operations_limit=9,
        currency="USD",
    )
    workload = a_workload()
    runs = a_slice(workload)
    slices = [runs, a_slice(workload, 1, State.WAITING)]
    board.show(view=a_view([workload], slices, [a_pool(runs, cost_per_hour=48.0)], capacity=capacity))

    open_page(browser, f"{url}?view=capacity")

    tiles = [element.text.split("\n")[:2] for element in browser.find_elements(By.CSS_SELECTOR, ".tile")]
    want = {"Requested": "16", "Starting": "16", "Running": "64", "Idle": "4", "Being deleted": "0"}
    assert dict(tiles) == {**want, "Cost, USD an hour": "48.00"}
    text = text_of(browser, "#capacity")
    for words in (
        "MAX_CHIPS all node pools 84",
        "7 in progress of 9",
        "us-east5-a · ct5p-hightpu-4t · spot",
        "There is nothing left.",
        "failing for 22 min",
        "No alerts.",
    ):
        assert words in text, text
    assert re.search(r"in (4\d|50) s", text)
    assert browser.execute_script("return [...document.querySelectorAll('.meter.full')].length") == 1
    sums = [element.text for element in browser.find_elements(By.CSS_SELECTOR, "#capacity tbody tr")][-2:]
    assert sums == ["tpu-v5p-slice 0 16 0 16 0 0 0 0 48.00 USD/h", "team-a 0 16 0 16 0 0 0 0 48.00 USD/h"]


def test_activity_is_filtered_by_kind_warnings_and_namespace(browser: Chrome, board: HandMadeBoard, url: str) -> None:
    entries = [
        an_entry(1, "Created pool-1.", pool="pool-1", workload="JobSet/team-a/train"),
        an_entry(2, "pool-2 failed.", kind="pool", warning=True, workload="JobSet/team-b/eval"),
    ]
    board.show(activity=tuple(entries))
    open_page(browser, f"{url}?view=activity")
    texts = "return [...document.querySelectorAll('.entry-text')].map(e => e.textContent)"
    assert browser.execute_script(texts) == ["Warning: pool-2 failed.", "Created pool-1."]

    browser.find_element(By.ID, "warnings").click()
    until(browser, "return location.search.includes('warnings=1')")
    until(browser, "return document.querySelectorAll('.entry').length === 1")
    browser.find_element(By.ID, "warnings").click()
    Select(browser.find_element(By.ID, "kind")).select_by_value("create")
    until(browser, "return location.search === '?view=activity&kind=create'")
    board.show(activity=(*entries, an_entry(3, "Created pool-3.")))
    shows(browser, "Created pool-3.", "#activity")
    assert browser.execute_script(texts) == ["Created pool-3.", "Created pool-1."]
    assert "2 of 3 entries" in text_of(browser, "#activity")
    Select(browser.find_element(By.ID, "namespace")).select_by_value("team-a")
    until(browser, "return document.querySelectorAll('.entry').length === 1")
