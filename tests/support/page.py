"""Tools for tests of the status page: constructed documents, a server that shows them, and a real browser."""

from __future__ import annotations

import base64
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

from provisioner.runtime.status import make_status_server
from provisioner.slices import api
from provisioner.slices.board import About, Board, Document
from provisioner.slices.view.timeline import Segment, Track
from provisioner.slices.view.types import CapacityView, Entry, PoolView, SliceView, State, View, WorkloadView
from tests.support.clock import NOW

#: Names of the program of Chromium or Chrome, tried in this order.
_CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)

ABOUT = About(
    release="1.2.3",
    project="my-project",
    location="us-east5",
    cluster="my-cluster",
    identity="tpu-provisioner-0",
    started_at=NOW - timedelta(hours=20),
)
NO_CAPACITY = CapacityView(
    chips={state.value: 0 for state in State if state is not State.NONE},
    limits=(),
    backoffs=(),
    operations=0,
    operations_limit=None,
    creation_paused=False,
)


def a_workload(name: str = "train", namespace: str = "team-a", **changes: Any) -> WorkloadView:
    fields: dict[str, Any] = {
        "id": f"JobSet/{namespace}/{name}",
        "kind": "JobSet",
        "namespace": namespace,
        "name": name,
        "uid": f"uid-of-{namespace}-{name}",
        "created_at": NOW - timedelta(hours=3),
        "state": "lives",
        "chips": 16,
        "reason": "",
    }
    return WorkloadView(**fields | changes)


def a_slice(workload: WorkloadView, number: int = 0, state: State = State.RUNNING, **changes: Any) -> SliceView:
    """Return a slice of four hosts, with a pool unless its state is REJECTED, WAITING or NONE."""
    group = f"{workload.name}-slice-{number}"
    has_pool = state not in (State.REJECTED, State.WAITING, State.NONE)
    fields: dict[str, Any] = {
        "id": f"{workload.id}/{group}",
        "workload": workload.id,
        "group": group,
        "state": state,
        "since": NOW - timedelta(minutes=3, seconds=20),
        "since_start": False,
        "reason": "Pods run on it." if state is State.RUNNING else f"The reason for {state.value}.",
        "cause": "stockout" if state is State.WAITING else "",
        "brief": "",
        "next_step": "",
        "next_try_at": None,
        "leader": f"{group}-0-abcde",
        "unschedulable_since": None,
        "pool": f"{workload.name}-{number:04d}-pool" if has_pool else "",
        "accelerator": "tpu-v5p-slice",
        "machine_type": "ct5p-hightpu-4t",
        "topology": "2x2x4",
        "chips": 16,
        "hosts": 4,
        "pods": 4,
        "bound_pods": 4 if state is State.RUNNING else 0,
    }
    return SliceView(**fields | changes)


def a_pool(slice_: SliceView, hosts: str = "RRRR", **changes: Any) -> PoolView:
    fields: dict[str, Any] = {
        "name": slice_.pool,
        "state": slice_.state,
        "since": slice_.since,
        "since_start": slice_.since_start,
        "reason": slice_.reason,
        "slice": slice_.id,
        "other_slices": (),
        "workload": slice_.workload,
        "namespace": slice_.workload.split("/")[1],
        "zone": "us-east5-a",
        "capacity": "on-demand",
        "reservation": "",
        "accelerator": slice_.accelerator,
        "machine_type": slice_.machine_type,
        "topology": slice_.topology,
        "chips": slice_.chips,
        "hosts": hosts,
        "unready_nodes": (),
        "delete_at": None,
        "delete_reason": "",
        "cost_per_hour": None,
    }
    return PoolView(**fields | changes)


def a_track(slice_: SliceView, *states: tuple[State, float, float | None], pool: str = "") -> Track:
    """Return the history of a pool. Each state has its begin and its end, None if it lasts, in minutes before NOW."""
    segments = (
        Segment(
            state=state,
            slice=slice_.id,
            workload=slice_.workload,
            since=NOW - timedelta(minutes=since),
            until=NOW - timedelta(minutes=until) if until is not None else None,
        )
        for state, since, until in states
    )
    return Track(pool=pool or slice_.pool, segments=tuple(segments))


def an_entry(number: int, message: str, kind: str = "create", **changes: Any) -> Entry:
    fields: dict[str, Any] = {
        "number": number,
        "at": NOW - timedelta(minutes=30) + timedelta(seconds=number),
        "kind": kind,
        "message": message,
        "warning": False,
        "pool": "",
        "workload": "",
    }
    return Entry(**fields | changes)


def a_view(
    workloads: Sequence[WorkloadView] = (),
    slices: Sequence[SliceView] = (),
    pools: Sequence[PoolView] = (),
    **changes: Any,
) -> View:
    fields: dict[str, Any] = {
        "at": NOW,
        "alerts": (),
        "capacity": NO_CAPACITY,
        "workloads": tuple(workloads),
        "slices": tuple(slices),
        "pools": tuple(pools),
    }
    return View(**fields | changes)


@dataclass(slots=True, kw_only=True)
class HandMadeBoard(Board):
    """A board whose document a test sets. It is served like a real board."""

    about: About = ABOUT
    shown: Document = field(
        default_factory=lambda: Document(
            version=0,
            served_at=NOW,
            about=ABOUT,
            leading=True,
            leader=ABOUT.identity,
            problems=(),
            stalled=False,
            view=a_view(),
            tracks=(),
            activity=(),
        )
    )

    def show(self, **changes: Any) -> None:
        self.shown = replace(self.shown, **changes)

    def _build(self, version: int) -> Document:
        return replace(self.shown, version=version)


@contextmanager
def served(board: Board, port: int = 0, *, prefix: str = "") -> Iterator[str]:
    """Serve a board like the provisioner; yield its address. `prefix` precedes all paths, as behind a proxy."""
    server = make_status_server(
        "a-controller",
        metrics="0",
        exposition=bytes,
        probes=f"127.0.0.1:{port}",
        failures=tuple,
        problems=tuple,
        pages=[replace(page, path=prefix + page.path) for page in api.pages(board)],
    )
    server.start()
    try:
        yield f"http://127.0.0.1:{server.ports[0]}{prefix}/"
    finally:
        server.stop()


def why_no_browser() -> str:
    """Return which programs are missing, and how to install them; empty if none is missing."""
    missing = [name for name in ("chromium", "chromedriver") if _program(name) is None]
    return f"{' and '.join(missing)} not found: apt-get install chromium chromium-driver" if missing else ""


def _program(name: str) -> str | None:
    names = _CHROMIUM if name == "chromium" else (name,)
    return next(filter(None, map(shutil.which, names)), None)


@contextmanager
def a_browser() -> Iterator[webdriver.Chrome]:
    """Start a browser without a window. If no browser is installed, skip the test, or fail it in CI."""
    missing = why_no_browser()
    if missing:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(missing)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        options = Options()
        options.binary_location = _program("chromium") or ""
        for flag in (*_FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        browser = webdriver.Chrome(options, Service(_program("chromedriver")))
        try:
            yield browser
        finally:
            browser.quit()


def resize(browser: webdriver.Chrome, width: int, height: int = 900, scale: float = 1) -> None:
    size = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)


def prefer(browser: webdriver.Chrome, theme: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": theme}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def until(browser: webdriver.Chrome, script: str, *arguments: Any, seconds: float = 10) -> Any:
    """Wait until a script in the browser returns a true value, and return the value."""
    browser.set_script_timeout(seconds)
    wait = """
        const [script, args, done] = [arguments[0], arguments[1], arguments[arguments.length - 1]];
        const look = new Function(script);
        const ask = () => { const found = look(...args); if (found) done(found); else setTimeout(ask, 20); };
        ask();
    """
    return browser.execute_async_script(wait, script, arguments)


def picture(browser: webdriver.Chrome, path: Path) -> None:
    parameters = {"format": "webp", "quality": 80}
    path.write_bytes(base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", parameters)["data"]))


def open_page(browser: webdriver.Chrome, address: str) -> None:
    browser.get(address)
    until(browser, "return document.getElementById('loading').hidden")


def rows_of(browser: webdriver.Chrome, selector: str = "#board .row:not(.workload)") -> dict[str, str]:
    """Return the text of all visible rows that `selector` selects, by the name in the row."""
    script = """
        const rows = [...document.querySelectorAll(arguments[0])].filter(e => e.checkVisibility());
        return rows.map(e => [e.querySelector('.row-name, .track-name').textContent, e.innerText]);
    """
    return dict(browser.execute_script(script, selector))


def a_large_view(slices: int = 500, hosts: int = 64) -> View:
    """Return a view with many slices: three fifths are running, a fifth are joining, and a fifth wait."""
    workloads, views, pools = [], [], []
    for number in range(slices):
        if number % 10 == 0:
            workloads.append(a_workload(f"train-{number:04d}", f"team-{number % 70}"))
        place = (number + number // 10) % 5
        state = (State.RUNNING, State.RUNNING, State.RUNNING, State.JOINING, State.WAITING)[place]
        slice_ = a_slice(
            workloads[-1],
            number,
            state,
            hosts=hosts,
            chips=4 * hosts,
            pods=hosts,
            bound_pods=hosts * (state is State.RUNNING),
        )
        views.append(slice_)
        if state is State.RUNNING:
            pools.append(a_pool(slice_, "R" * hosts))
        elif state is State.JOINING:
            pools.append(a_pool(slice_, ("r" * (hosts // 2) + "j" * (hosts // 4)).ljust(hosts, ".")))
    return a_view(workloads, views, pools)


def text_of(browser: webdriver.Chrome, selector: str) -> str:
    return browser.find_element(By.CSS_SELECTOR, selector).text


def search_of(browser: webdriver.Chrome) -> str:
    return str(browser.execute_script("return location.search"))


def shows(browser: webdriver.Chrome, text: str, selector: str = "body") -> None:
    until(browser, "return document.querySelector(arguments[0]).innerText.includes(arguments[1])", selector, text)
