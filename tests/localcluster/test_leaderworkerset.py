"""What the real LeaderWorkerSet controller makes of a LeaderWorkerSet: the contract that serving it relies on.

tests/data/leaderworkerset has the objects and stories that were recorded; unit tests may use them. To record them anew,
for another release of the controller: RECORD_LEADERWORKERSETS=1 pytest tests/localcluster/test_leaderworkerset.py
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rehearsal import localcluster
from tests.localcluster.recording import KINDS, POOL, Recorder, histories, literal, path_of
from tests.support.localcluster import Kube
from tests.support.objects import pod_spec, raw_lws
from tests.support.waiting import wait_for

# The first run on a machine builds the programs.
pytestmark = [pytest.mark.e2e, pytest.mark.timeout(1800)]

DATA = Path(__file__).parents[1] / "data" / "leaderworkerset"
RECORD = bool(os.environ.get("RECORD_LEADERWORKERSETS"))
NAMESPACE = "serving"
LWS = f"{path_of('LeaderWorkerSet', NAMESPACE)}/serve"
PODS = path_of("Pod", NAMESPACE)
TPU = {
    "cloud.google.com/gke-tpu-accelerator": "tpu-v5-lite-podslice",
    "cloud.google.com/gke-tpu-topology": "2x4",
}
CAPACITY = {"cpu": "208", "memory": "448Gi", "google.com/tpu": "4", "pods": "110"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[localcluster.LocalCluster]:
    """Give a running cluster with the LeaderWorkerSet controller, and without JobSet's."""
    with localcluster.start(tmp_path_factory.mktemp("lws") / "cluster", jobset=False, lws=True) as cluster:
        yield cluster


def create_pool(kube: Kube, name: str) -> None:
    """Register the two hosts of a 2x4 slice."""
    for index in range(2):
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {
                "name": f"{name}-{index}",
                "labels": {POOL: name, "kubernetes.io/hostname": f"{name}-{index}", **TPU},
            },
            "spec": {"taints": [{"key": "google.com/tpu", "value": "present", "effect": "NoSchedule"}]},
            "status": {"capacity": CAPACITY, "allocatable": CAPACITY},
        }
        kube.create("/api/v1/nodes", node)


def leaderworkerset() -> dict[str, Any]:
    """Return two groups of two hosts each, each group on a pool of its own."""
    # As recorded: the chips are limits alone.
    container = {"name": "main", "image": "none", "resources": {"limits": {"google.com/tpu": "4"}}}
    pod = pod_spec(nodeSelector=TPU, containers=[container], terminationGracePeriodSeconds=5)
    return raw_lws("serve", namespace="", uid="", pod=pod)


def start(kube: Kube) -> None:
    """Create the LeaderWorkerSet, and its pools when its leaders wait for them."""
    kube.create(path_of("LeaderWorkerSet", NAMESPACE), leaderworkerset())

    def leaders_wait() -> bool:
        pods = kube.get(PODS)["items"]
        reasons = [one.get("reason") for pod in pods for one in pod["status"].get("conditions", [])]
        return reasons == ["Unschedulable", "Unschedulable"]

    wait_for(leaders_wait, what="two leaders to be unschedulable")
    create_pool(kube, "pool-a")
    create_pool(kube, "pool-b")


def restart_container(kube: Kube) -> None:
    """Say what a kubelet says after it has restarted a container."""
    statuses = kube.get(f"{PODS}/serve-1-1")["status"]["containerStatuses"]
    statuses[0]["restartCount"] = 1
    kube.merge(f"{PODS}/serve-1-1/status", {"status": {"containerStatuses": statuses}})


def delete_leader(kube: Kube) -> None:
    """Delete a leader pod as an eviction would."""
    assert kube.call("DELETE", f"{PODS}/serve-0").status_code == 200


def scale_to(replicas: int) -> Callable[[Kube], None]:
    """Return what scales the LeaderWorkerSet."""
    return lambda kube: kube.merge(LWS, {"spec": {"replicas": replicas}})


def _template_with(version: str) -> dict[str, Any]:
    return {"leaderWorkerTemplate": {"workerTemplate": {"metadata": {"labels": {"version": version}}}}}


def update(kube: Kube) -> None:
    """Change the template of the pods."""
    kube.merge(LWS, {"spec": _template_with("2")})


def update_with_surge(kube: Kube) -> None:
    """Change it with one group more in the meantime, which has a pool."""
    create_pool(kube, "pool-c")
    strategy = {"type": "RollingUpdate", "rollingUpdateConfiguration": {"maxSurge": 1, "maxUnavailable": 0}}
    kube.merge(LWS, {"spec": {"rolloutStrategy": strategy, **_template_with("3")}})


def delete(kube: Kube) -> None:
    """Delete the LeaderWorkerSet as kubectl does."""
    assert kube.call("DELETE", f"{LWS}?propagationPolicy=Background").status_code == 200


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is done, and by which steps it is over."""

    name: str
    act: Callable[[Kube], None]
    until: Sequence[str]


def _restarted(group: int, *, to: int = 2) -> list[str]:
    return [f"pod serve-{group}#{to} running", f"pod serve-{group}-1#{to} running"]


#: Each begins where the one before it ended.
SCENARIOS = (
    Scenario(name="start", act=start, until=[*_restarted(0, to=1), *_restarted(1, to=1)]),
    Scenario(
        name="restart of group 1, because a container of its worker restarted",
        act=restart_container,
        until=_restarted(1),
    ),
    Scenario(
        name="restart of group 0, because its leader was deleted",
        act=delete_leader,
        until=_restarted(0),
    ),
    Scenario(name="scale from 2 to 1", act=scale_to(1), until=["pod serve-1-1#1 gone"]),
    Scenario(name="scale from 1 to 2", act=scale_to(2), until=_restarted(1, to=1)),
    Scenario(name="rolling update", act=update, until=[*_restarted(0), *_restarted(1)]),
    Scenario(
        name="rolling update with maxSurge 1 and maxUnavailable 0",
        act=update_with_surge,
        until=[*_restarted(0), *_restarted(1), "pod serve-2-1#1 gone"],
    ),
    Scenario(name="deletion", act=delete, until=["pod serve-0-1#1 gone", "pod serve-1-1#1 gone"]),
)


def recorded(name: str) -> Any:
    """Return what a file has."""
    return json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))


def write(name: str, content: Any) -> None:
    """Write a recording."""
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def _available(kube: Kube) -> bool:
    answer = kube.call("GET", LWS)
    if answer.status_code == 404:
        return not kube.get(PODS)["items"]
    lws = answer.json()
    conditions = {one["type"]: one["status"] for one in lws["status"].get("conditions", [])}
    return (
        conditions.get("Available") == "True"
        and conditions.get("UpdateInProgress", "False") == "False"
        and lws["status"]["observedGeneration"] == lws["metadata"]["generation"]
        and lws["status"]["replicas"] == lws["spec"]["replicas"]
    )


def _objects(kube: Kube, pools: dict[str, str]) -> list[dict[str, Any]]:
    found = [item | {"kind": kind} for kind in KINDS for item in kube.get(path_of(kind, NAMESPACE))["items"]]
    return literal(found, pools=pools)


def _told(story: Iterable[str]) -> dict[str, list[str]]:
    # A pod may be unschedulable in passing, until the scheduler knows that its predecessor has left the node.
    return histories(step for step in story if not step.endswith(" unschedulable"))


def test_a_leaderworkerset_from_creation_to_nothing_left(kube: Kube) -> None:
    """Each scenario gives every object the recorded history, and the literal objects are those that were recorded."""
    kube.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    stories: dict[str, list[str]] = {} if RECORD else recorded("stories")
    pools: dict[str, str] = {}
    for scenario in SCENARIOS:
        recorder = Recorder(kube, NAMESPACE)
        recorder.pools = pools
        try:
            scenario.act(kube)
            wait_for(
                lambda: set(scenario.until) <= set(recorder.story()) and _available(kube),  # noqa: B023
                what=f"{scenario.name}: {recorder.story()}",
                seconds=90,
            )
            if RECORD:
                stories[scenario.name] = recorder.story()
            expected = _told(stories[scenario.name])
            # The watches of all kinds are not equally fast.
            wait_for(
                lambda: _told(recorder.story()) == expected,  # noqa: B023
                what=f"{scenario.name} as recorded: {recorder.story()}",
                seconds=20,
            )
        finally:
            recorder.close()
        if scenario is SCENARIOS[0]:
            if RECORD:
                write("objects", _objects(kube, pools))
            # The status of a StatefulSet comes a little later than its pods.
            wait_for(
                lambda: _objects(kube, pools) == recorded("objects"),
                what="the objects that were recorded; record them again to see what differs",
            )
    if RECORD:
        write("stories", stories)
