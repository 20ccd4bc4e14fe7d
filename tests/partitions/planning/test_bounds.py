"""Thousands of pods, or a pod whose evaluation raises an exception, do not affect other pods."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner.kube.kept import size_of
from provisioner.partitions.planning import making, queue
from provisioner.partitions.planning.actions import SaveLedger
from provisioner.partitions.planning.events import MAX_PER_ROUND
from provisioner.settings.partitions import PartitionSettings
from tests.partitions.planning.stories import Story, events_of, make_entry, make_pod


@pytest.mark.timeout(60)
def test_decision_on_20000_pods_serves_the_oldest_and_limits_events() -> None:
    """If the time grew with the square of the number of pods, the test would exceed its time-out."""
    pods = [make_pod(f"p{number}", size=1 << number % 4, age_seconds=number) for number in range(20_000)]
    story = Story(pods=pods)
    story.read()
    plan = story.decide()
    (save,) = story.calls(SaveLedger)
    assert {entry.pod for entry in save.entries} <= {f"p{number}" for number in range(19_900, 20_000)}
    assert sum(entry.size for entry in save.entries) == 60  # The next pod requests 8 IPUs.
    assert len(plan.events) == MAX_PER_ROUND
    assert plan.wake_at == story.now + timedelta(seconds=1)


@pytest.mark.parametrize(
    ("file", "path"),
    [
        ("partitions/deployment.yaml", ("spec", "template", "spec", "containers", 0)),
        ("charts/ipu-partitions/values.yaml", ()),
    ],
    ids=["manifest", "chart"],
)
def test_memory_limit_covers_all_pods_of_the_largest_cluster(file: str, path: tuple[str | int, ...]) -> None:
    """Pods with a scheduling gate cost nothing, so a tenant without a quota can fill the cluster with them."""
    found: Any = yaml.safe_load((Path("deploy") / file).read_text(encoding="utf-8"))
    for step in path:
        found = found[step]
    limit = found["resources"]["limits"]["memory"]
    assert limit.endswith("Mi")
    max_pods = 150_000  # Kubernetes' limit for a cluster.
    pod = make_pod("p" * 253, namespace="n" * 63, uid="u" * 36, resource_version="1" * 20)
    # A process without pods takes 71 MiB; pages of lists, calls and files of the vipu command take at most another
    # 71 MiB. A round takes half as much memory as the pods.
    assert 2 * 71 + 1.5 * max_pods * size_of(pod) / 2**20 < int(limit.removesuffix("Mi"))


def test_pod_whose_evaluation_raises_does_not_affect_other_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((queue, "_candidate"), (making, "_create")):
        original = getattr(module, name)

        def raising(*arguments: Any, original: Any = original) -> Any:
            if "bad" in repr(arguments[0]):
                raise ZeroDivisionError
            return original(*arguments)

        monkeypatch.setattr(module, name, raising)
    recorded = make_pod("bad-1")
    story = Story(pods=[recorded, make_pod("bad-2"), make_pod("good")])
    story.record(make_entry(recorded))
    plans = story.settle()
    assert {pod.name: pod.gated for pod in story.pods} == {"bad-1": True, "bad-2": True, "good": False}
    assert "bad-1" in story.entries()
    assert any("ZeroDivisionError" in fault.error for plan in plans for fault in plan.faults)


def test_pod_that_the_controller_does_not_serve_gets_an_event() -> None:
    """Webhook and controller may have different settings; without an Event the pod would wait for an unknown reason."""
    pods = {
        make_pod("elsewhere", namespace="other"): "SERVED_NAMESPACES",
        make_pod("odd", problem="It is odd."): "It is odd.",
        make_pod("large", size=129): "at most 128 are served",
        make_pod("foreign", injected=False): "webhook",
        # During a migration from Graphcore's plugin, running pods have the plugin's label and annotation.
        make_pod("plugin", injected=False, gated=False, node="host-1"): "webhook",
    }
    served, runs = make_pod("served"), make_pod("runs", namespace="other", gated=False)
    waiting = [make_pod("a", size=128), make_pod("b", held_by_others=True)]
    settings = PartitionSettings(servers=(), namespaces=("team",), largest_size=128)
    story = Story(pods=[*pods, served, runs, *waiting], settings=settings)
    told = {event.pod.name: event.message for event in events_of(story.settle(5)) if "Rejected" in event.reason}
    assert told.keys() == {pod.name for pod in pods}
    assert [pod.name for pod, words in pods.items() if words not in told[pod.name]] == []
    assert story.entries().keys() == {served.name}
    no_allocation, held = [line.why for line in story.decide().view.waiting]
    assert no_allocation == "No allocation of the V-IPU servers that it may use has 128 IPUs."
    assert held == "Other scheduling gates hold it."
