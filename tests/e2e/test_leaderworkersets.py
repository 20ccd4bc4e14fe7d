"""Tests of LeaderWorkerSets with their real controller on a real control plane: each group is a slice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.protocol import collection_path, object_path
from provisioner.model.workloads import group_key
from provisioner.slices.messages.notices import EventReason
from provisioner.workloads import LEADER_WORKER_SET
from provisioner.workloads.parse_pod import parse_pod
from rehearsal.demos import ProvisionerProcess
from tests.e2e.kit import Ground
from tests.support.objects import pod_spec, raw_lws

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("leaderworkersets")]

EXAMPLE = Path(__file__).parents[2] / "examples" / "leaderworkerset" / "leaderworkerset.yaml"
SUBGROUPS = Path(__file__).parents[1] / "data" / "leaderworkerset" / "subgroups.yaml"
_POD = pod_spec(terminationGracePeriodSeconds=1)


def apply(ground: Ground, name: str, **options: Any) -> str:
    path = collection_path("leaderworkersets", namespace=ground.namespace, root=LEADER_WORKER_SET.root)
    ground.api.post(path, raw_lws(name, namespace=ground.namespace, uid="", pod=_POD, **options))
    return object_path("leaderworkersets", name, namespace=ground.namespace, root=LEADER_WORKER_SET.root)


def running(ground: Ground) -> dict[str, str]:
    return {
        pod["metadata"]["name"]: pod["metadata"]["uid"]
        for pod in ground.pods()
        if pod["status"].get("phase") == "Running" and "deletionTimestamp" not in pod["metadata"]
    }


def test_leaderworkerset_is_served_through_restarts_and_scaling_to_its_delete(
    ground: Ground, provisioner: ProvisionerProcess
) -> None:
    # tests/docs/test_examples.py shows the pools of the example.
    ground.rehearsal.kubectl("apply", "--server-side", "--dry-run=server", "-n", ground.namespace, "-f", str(EXAMPLE))
    path = apply(ground, "serve")
    ground.wait(lambda: len(running(ground)) == 4, "all pods of both groups run")
    pools = {pool.name for pool in ground.living("serve-")}
    assert len(pools) == 2
    for body in ground.sent().values():
        labels = body["config"]["labels"]
        assert (labels[constants.POOL_WORKLOAD_KIND], labels[constants.POOL_WORKLOAD_NAME]) == (
            "LeaderWorkerSet",
            "serve",
        )
    assert EventReason.CREATION_STARTED in ground.reasons("Pod", "serve-0")

    before = running(ground)["serve-1"]
    ground.api.delete(object_path("pods", "serve-1", namespace=ground.namespace))
    ground.wait(
        lambda: len(running(ground)) == 4 and running(ground).get("serve-1", before) != before, "the group runs again"
    )
    assert {pool.name for pool in ground.living("serve-")} == pools

    ground.api.patch(path, {"spec": {"replicas": 3}})
    ground.wait(lambda: len(running(ground)) == 6, "the third group runs")
    ground.api.patch(path, {"spec": {"replicas": 1}})
    ground.wait(lambda: len(ground.living("serve-")) == 1, "the pools of two groups go")
    assert set(running(ground)) == {"serve-0", "serve-0-1"}

    ground.api.delete(path)
    ground.await_gone("serve-")
    ground.wait(lambda: not ground.nodes(), "all nodes are gone")


def places(ground: Ground) -> dict[tuple[str, str], set[str]]:
    """Return the node pools of the running pods by group and subgroup; check the names of the parsed groups."""
    pool_of = {node["metadata"]["name"]: node["metadata"]["labels"][constants.NODE_POOL] for node in ground.nodes()}
    found: dict[tuple[str, str], set[str]] = {}
    for raw in ground.pods():
        if raw["metadata"]["name"] not in running(ground):
            continue
        labels, pod = raw["metadata"]["labels"], parse_pod(raw)
        key = labels[constants.LWS_GROUP_INDEX], labels[constants.LWS_SUBGROUP_INDEX]
        assert pod is not None
        assert pod.group_name == f"disaggregated-subgroup-{key[1]}-{key[0]}"
        found.setdefault(key, set()).add(pool_of[raw["spec"]["nodeName"]])
    return found


def test_each_subgroup_has_a_pool_of_its_own_through_a_restart_of_its_group(assigned: Ground) -> None:
    """The leaders, which request no chips, run on hosts of subgroup 0."""
    assigned.provisioner()
    assigned.rehearsal.kubectl("apply", "--server-side", "-n", assigned.namespace, "-f", str(SUBGROUPS))
    assigned.wait(lambda: len(running(assigned)) == 10, "all pods of both groups run")
    before = places(assigned)
    assert sorted(before) == [("0", "0"), ("0", "1"), ("1", "0"), ("1", "1")]
    assert all(len(pools) == 1 for pools in before.values())
    assert [(pool.machine_type, len(pool.nodes)) for pool in assigned.living()] == [("ct6e-standard-4t", 2)] * 4
    # Each node has the key of its subgroup, so that only pods of this subgroup can be bound to the node.
    keys = {node["metadata"]["labels"][constants.SLICE] for node in assigned.nodes()}
    assert keys == {f"l-{group_key(f'disaggregated-{group}', subgroup)}" for group, subgroup in before}

    old = running(assigned)
    # The controller would miss the deletion of a worker that ends before the controller reads it.
    assigned.api.delete(object_path("pods", "disaggregated-0", namespace=assigned.namespace))

    def recreated() -> bool:
        new = running(assigned)
        return len(new) == 10 and all((new[name] == old[name]) is name.startswith("disaggregated-1") for name in old)

    assigned.wait(recreated, "group 0 runs again")
    assert places(assigned) == before
    assert assigned.accepted("nodePools.create") == 4
    path = object_path("leaderworkersets", "disaggregated", namespace=assigned.namespace, root=LEADER_WORKER_SET.root)
    assigned.api.delete(path)
    assigned.await_gone()
