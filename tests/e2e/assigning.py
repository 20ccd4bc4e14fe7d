"""Workloads of the tests of assignment, and checks of which pods run on the nodes of each pool."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from provisioner import constants
from provisioner.kube.protocol import object_path
from provisioner.model.placement import MARKS, labels_of, slice_key
from provisioner.slices.messages.notices import EventReason
from tests.e2e.kit import EXCLUSIVE, Ground, jobset
from tests.support.objects import Json

#: Number of restarts after which a workload must still have its nodes.
RESTARTS = 10
#: Duration of pods that run until the end of their test.
_LONG = "3600s"


def train(
    ground: Ground,
    name: str,
    *,
    slices: int = 1,
    exclusive: bool = True,
    accelerator: str = "tpu-v4-podslice",
    topology: str = "2x2x2",
    hosts: int = 2,
    run_for: str = _LONG,
    annotations: Mapping[str, str] | None = None,
    **pod: Any,
) -> Json:
    """Return a JobSet whose pods run longer than the test by default; `pod` has fields of the pod specification."""
    body = jobset(
        name,
        ground.namespace,
        accelerator=accelerator,
        topology=topology,
        replicas=slices,
        parallelism=hosts,
        run_for=run_for,
        max_restarts=2 * RESTARTS,
        annotations=annotations,
    )
    if not exclusive:
        del body["metadata"]["annotations"][EXCLUSIVE]
    template_of(body)["spec"] |= {"terminationGracePeriodSeconds": 1, **pod}
    return body


def template_of(body: Json) -> Json:
    template: Json = body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    return template


def of(name: str) -> dict[str, str]:
    return {constants.JOBSET_NAME: name}


def running(ground: Ground, **labels: str) -> list[Json]:
    return [
        pod
        for pod in ground.pods()
        if pod["status"].get("phase") == "Running"
        and "deletionTimestamp" not in pod["metadata"]
        and labels.items() <= pod["metadata"].get("labels", {}).items()
    ]


def bound(ground: Ground, name: str) -> list[Json]:
    return [pod for pod in ground.pods_of(name) if pod["spec"].get("nodeName")]


def nodes_of(pods: list[Json]) -> dict[str, frozenset[str]]:
    """Return the names of the nodes of pods, by the slice key of the pods."""
    found: dict[str, set[str]] = defaultdict(set)
    for pod in pods:
        found[slice_key(pod["metadata"]["labels"])].add(pod["spec"]["nodeName"])
    return {key: frozenset(names) for key, names in found.items()}


def tpu_nodes(ground: Ground) -> dict[str, dict[str, str]]:
    labels = {node["metadata"]["name"]: node["metadata"].get("labels", {}) for node in ground.nodes()}
    return {name: of_node for name, of_node in labels.items() if constants.NODE_POOL in of_node}


def marks_of_nodes(ground: Ground) -> dict[str, dict[str, str]]:
    """Return the labels of each node with chips that assign it to a slice."""
    return {
        name: {key: value for key, value in labels.items() if key in MARKS}
        for name, labels in tpu_nodes(ground).items()
    }


def assert_each_on_a_pool_of_its_own(ground: Ground, *, slices: int, **labels_of_pods: str) -> None:
    """Check that the pods of each group run on all nodes of one pool, which is assigned to the group."""
    pool_of = {name: labels[constants.NODE_POOL] for name, labels in tpu_nodes(ground).items()}
    nodes_of_pool: dict[str, set[str]] = defaultdict(set)
    for name, pool in pool_of.items():
        nodes_of_pool[pool].add(name)
    groups, labels = nodes_of(running(ground, **labels_of_pods)), marks_of_nodes(ground)
    pools = {key: {pool_of[name] for name in names} for key, names in groups.items()}
    assert len(groups) == slices, pools
    assert all(len(names) == 1 for names in pools.values()), pools
    assert len(set().union(*pools.values())) == slices, pools
    for key, names in groups.items():
        (pool,) = pools[key]
        assert names == nodes_of_pool[pool]
        assert [labels[name] for name in names] == [labels_of(key, ground.namespace)] * len(names)


def remove(ground: Ground, pod: Json, *, at_once: bool = False) -> None:
    """Delete a pod; with `at_once`, without a grace period, as the controller manager does after the loss of a node."""
    path = object_path("pods", pod["metadata"]["name"], namespace=ground.namespace)
    ground.api.delete(path + ("?gracePeriodSeconds=0" if at_once else ""))


def await_rival(ground: Ground, name: str) -> None:
    ground.wait(lambda: EventReason.LIMIT_REACHED in ground.reasons("Pod", f"{name}-"), f"{name} waits for a limit")


def restart(ground: Ground, *names: str) -> None:
    """Delete one pod of each JobSet, another one in each restart, and wait until all pods are replaced and run."""
    before = {name: running(ground, **of(name)) for name in names}
    old = {pod["metadata"]["uid"] for pods in before.values() for pod in pods}
    for name, pods in before.items():
        remove(ground, pods[ground.restarts(name) % len(pods)])

    def again() -> bool:
        new = {pod["metadata"]["uid"] for name in names for pod in running(ground, **of(name))}
        return len(new) == len(old) and not new & old

    ground.wait(again, f"JobSets {', '.join(names)} run again")
