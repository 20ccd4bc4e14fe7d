"""The demo of the status page: a world that people can look at."""

from __future__ import annotations

import json
import threading
import urllib.request
from typing import Any

import pytest

from provisioner.cli import main
from provisioner.slices.view.types import State
from tests.simulation import demo_page, logs
from tests.simulation.demo_page import Demo
from tests.support.waiting import wait_for

#: Minutes of a simulated cluster.
pytestmark = pytest.mark.timeout(120)


def test_the_teams_come_are_served_and_have_every_day_s_trouble() -> None:
    """Of each team something runs after a while, a mistake is told, and nothing of what happens stops the rest."""
    demo = Demo(slices=16)
    board = demo.begin()
    demo._mistake()
    with logs.told_to(demo.stage):
        demo.stage.agenda.wait(330.0)
        view = board.document().view
        for act in (demo._preempt, demo._run_out, demo._change_minds, demo._change_minds):
            act()
        demo.stage.agenda.wait(30.0)
    assert view is not None
    assert len(view.slices) >= 16
    assert {each.kind for each in view.workloads} >= {"JobSet", "LeaderWorkerSet"}
    assert len({each.namespace for each in view.workloads}) >= 3
    assert sum(each.state is State.RUNNING for each in view.slices) >= 5
    assert any("topology 3x4 is not valid" in each.reason for each in view.slices if "oops" in each.workload)
    assert any(each.cost_per_hour for each in view.pools)
    assert len({each.kind for each in board.journal.entries()}) >= 3


def test_page_and_commands_find_it(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is served while it runs, and ends in good order."""
    address: list[str] = []
    serving = demo_page.make_status_server

    def make(*served: Any, **options: Any) -> Any:
        server = serving(*served, **options)
        start = server.start

        def started() -> None:
            start()
            address.append(f"http://127.0.0.1:{server.ports[0]}")

        server.start = started  # type: ignore[method-assign]
        return server

    monkeypatch.setattr(demo_page, "make_status_server", make)
    seen: list[int] = []

    def look() -> None:
        wait_for(lambda: address, what="the page is served")
        with urllib.request.urlopen(f"{address[0]}/api/v1/about") as answer:
            seen.append(json.load(answer)["about"]["cluster"] == "demo")
        seen.append(main(["status", "--server", address[0]]))

    looker = threading.Thread(target=look)
    looker.start()
    assert demo_page.main(["--address", "127.0.0.1:0", "--slices", "3", "--seconds", "2"]) == 0
    looker.join()
    assert seen == [True, 0]
    assert "Status page: http://127.0.0.1:" in capsys.readouterr().out
