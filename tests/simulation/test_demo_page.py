"""The demo of the status page: a simulated world for the browser."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest

from provisioner.cli import main
from provisioner.slices.view.types import State
from tests.simulation import demo_page
from tests.simulation.demo_page import Demo
from tests.simulation.run import told_to

#: The tests simulate several minutes, which takes several seconds.
pytestmark = pytest.mark.timeout(120)


def test_demo_shows_running_slices_and_failed_pools_and_survives_its_faults() -> None:
    demo = Demo(slices=24)
    board = demo.begin()
    with told_to(demo.stage):
        demo.stage.agenda.wait(330.0)
        view = board.document().view
        for act in (demo._preempt, demo._run_out, demo._change_minds, demo._change_minds):
            act()
        demo.stage.agenda.wait(30.0)
    assert view is not None
    # The age follows the simulated clock, not the clock of the machine.
    age = demo.metrics.registry.get_sample_value("tpu_provisioner_watch_last_contact_age_seconds", {"resource": "pods"})
    assert age is not None
    assert 0 <= age < 150
    assert len(view.slices) >= 24
    assert {workload.kind for workload in view.workloads} >= {"JobSet", "LeaderWorkerSet"}
    assert len({workload.namespace for workload in view.workloads}) >= 3
    assert sum(slice_.state is State.RUNNING for slice_ in view.slices) >= 5
    assert any("topology 3x4 is not valid" in slice_.reason for slice_ in view.slices if "oops" in slice_.workload)
    assert any(slice_.cause == "stockout" for slice_ in view.slices)
    assert any(pool.state is State.FAILED for pool in view.pools)
    assert any(pool.cost_per_hour for pool in view.pools)
    assert view.capacity.currency
    assert len({entry.kind for entry in board.journal.entries()}) >= 3


def test_api_and_status_command_show_the_demo(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    demo, seen = Demo(slices=3), []
    monkeypatch.setattr(demo_page, "Demo", lambda **_given: demo)

    def look() -> None:
        found = re.search(r"Status page: (http://127\.0\.0\.1:\d+)", capsys.readouterr().out)
        assert found is not None
        with urllib.request.urlopen(f"{found[1]}/api/v1/about") as answer:
            seen.append(json.load(answer)["about"]["cluster"])
        seen.append(main(["status", "--server", found[1]]))

    demo.stage.agenda.after(1.0, look)
    assert demo_page.main(["--address", "127.0.0.1:0", "--seconds", "2"]) == 0
    assert seen == ["demo", 0]
