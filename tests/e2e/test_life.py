"""The life of a JobSet and its pools on a real control plane: the main job, and every other way it can go."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import yaml

import provisioner as package
from provisioner import constants
from rehearsal.demos import ProvisionerProcess, Rehearsal
from rehearsal.localcluster import RUN_FOR
from tests.e2e.conftest import Shared, own_ground
from tests.e2e.kit import Ground, jobset, metrics, ready

pytestmark = pytest.mark.e2e

EXAMPLES = Path(package.__file__).parent.parent / "examples"
#: Each example: node pools, machine type, nodes of one pool.
WANTED = {
    "v3-4x4": (1, "ct3p-hightpu-4t", 4),
    "v4-2x2x4": (2, "ct4p-hightpu-4t", 4),
    "v5e-2x4": (1, "ct5lp-hightpu-8t", 1),
    "v5e-4x4": (2, "ct5lp-hightpu-4t", 4),
    "v5p-2x2x2": (1, "ct5p-hightpu-4t", 2),
    "v6e-4x4-spot": (2, "ct6e-standard-4t", 4),
    "tpu7-2x2x1": (1, "tpu7-standard-4t", 1),
    "tpu7x-2x2x2": (1, "tpu7x-standard-4t", 2),
    "capacity-choices": (1, "ct6e-standard-4t", 2),
    "all-or-nothing": (2, "ct5p-hightpu-4t", 4),
}


def test_the_main_job(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """The example runs from unschedulable pods to nothing left, with the right pools and the Events of a whole life."""
    ground.rehearsal.kubectl("apply", "--server-side", "-n", ground.namespace, "-f", str(EXAMPLES / "jobset.yaml"))
    ground.wait(lambda: len(ground.pools("tpu-demo-")) == 2, "both slices get a pool")
    for body in ground.sent().values():
        assert body["initialNodeCount"] == 2
        assert body["config"]["machineType"] == "ct4p-hightpu-4t"
        # The cluster is on a release channel.
        assert body["management"] == {"autoRepair": True, "autoUpgrade": True}
        assert body["maintenancePolicy"] == {"exclusionUntilEndOfSupport": {"enabled": True}}
        assert body["config"]["oauthScopes"] == ["https://www.googleapis.com/auth/cloud-platform"]
        assert body["placementPolicy"] == {"type": "COMPACT", "tpuTopology": "2x2x2"}
        labels = body["config"]["labels"]
        assert labels[constants.NODEPOOL_MANAGER] == "tpu-provisioner"
        assert labels[constants.POOL_JOBSET_NAME] == "tpu-demo"
        assert labels[constants.POOL_JOBSET_NAMESPACE] == ground.namespace
    assert {"tpu-demo-workers-0", "tpu-demo-workers-1"} == {
        body["config"]["labels"][constants.PARENT_NAME] for body in ground.sent().values()
    }
    ground.wait(lambda: ground.runs("tpu-demo", pods=4), "all four pods run")
    assert ready(provisioner)[0] == 200
    assert 'tpu_provisioner_chips{state="in_use"} 16.0' in metrics(provisioner)
    ground.await_completed("tpu-demo")
    ground.await_gone("tpu-demo-")
    ground.wait(lambda: not ground.nodes(), "all nodes are gone")
    assert ground.restarts("tpu-demo") == 0
    assert (ground.accepted("nodePools.create"), ground.accepted("nodePools.delete")) == (2, 2)
    ground.wait(
        lambda: ground.reasons("Pod") == {"NodePoolCreationStarted", "NodePoolCreationSucceeded"},
        "creation is told on the pods",
    )
    ground.wait(
        lambda: ground.reasons("JobSet", "tpu-demo") == {"NodePoolDeletionStarted", "NodePoolDeletionSucceeded"},
        "deletion is told on the JobSet",
    )


@pytest.fixture(scope="module")
def made(rehearsal: Rehearsal, shared: Shared) -> dict[str, list[tuple[str, int]]]:
    """Apply all examples at once; give what GKE was asked for, by the JobSet's name."""
    shared.running()
    files = list(EXAMPLES.glob("*/jobset.yaml"))
    names = {each.parent.name: _jobset_name(each) for each in files}
    # Cleared before the first test: with several workers, the next test may be one that stops the shared provisioner.
    with own_ground(rehearsal, shared) as ground:
        ground.rehearsal.kubectl(
            "apply", "--server-side", "-n", ground.namespace, *(f"--filename={each}" for each in files)
        )
        pools = sum(WANTED[name][0] for name in names)
        ground.wait(lambda: len(ground.pools()) >= pools, "GKE is asked for all pools")
        pods = sum(WANTED[name][0] * WANTED[name][2] for name in names)
        ground.wait(lambda: len(ground.pods()) >= pods, "all pods are made")
        ground.wait(lambda: all(pod["spec"].get("nodeName") for pod in ground.pods()), "all pods fit their nodes")
        return {
            example: [(pool.machine_type, len(pool.nodes)) for pool in ground.pools(f"{name}-")]
            for example, name in names.items()
        }


@pytest.mark.parametrize("example", sorted(each.parent.name for each in EXAMPLES.glob("*/jobset.yaml")))
def test_every_example_gets_its_pools(made: dict[str, list[tuple[str, int]]], example: str) -> None:
    """Each example applies to a real API server, and gets pools of the right number, machine type and size."""
    count, machine_type, nodes = WANTED[example]
    assert made[example] == [(machine_type, nodes)] * count


def test_suspended_and_resumed(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A suspended JobSet gives its pool back; resumed, it gets a new one and runs."""
    ground.apply("paused", run_for="3s", suspend=True)
    ground.apply("marker", run_for="1s")
    ground.wait(lambda: ground.pools("marker-"), "another JobSet beside it is served")
    assert not ground.pools("paused-")
    ground.patch("paused", {"spec": {"suspend": False}})
    ground.wait(lambda: ground.runs("paused"), "it runs")
    ground.patch("paused", {"spec": {"suspend": True}})
    ground.wait(lambda: not ground.phases("paused"), "its pods are gone")
    ground.await_gone("paused-")
    ground.patch("paused", {"spec": {"suspend": False}})
    ground.await_completed("paused")


def test_a_restart_keeps_the_pool(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """A JobSet that restarts comes back to the same pool, which is never deleted in between."""
    ground.apply("stumbling", fail_after="2s", max_restarts=1, topology="2x2x2", parallelism=2)
    ground.wait(lambda: ground.runs("stumbling", pods=2), "it runs")
    (pool,) = ground.pools("stumbling-")
    ground.wait(lambda: ground.restarts("stumbling") == 1, "it is restarted")
    assert ground.accepted("nodePools.delete") == 0
    assert [each.name for each in ground.pools("stumbling-")] == [pool.name]
    ground.wait(lambda: ground.state("stumbling") == "Failed", "it gives up")
    ground.await_gone("stumbling-")
    assert ground.accepted("nodePools.create") == 1


def _jobset_name(file: Path) -> str:
    (name,) = (document["metadata"]["name"] for document in yaml.safe_load_all(file.read_text(encoding="utf-8")))
    return str(name)


def test_the_pool_of_a_child_job_that_is_complete(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """It goes after the delay, although another child Job of the JobSet still runs."""
    body = jobset("steps", ground.namespace, run_for="1s")
    (first,) = body["spec"]["replicatedJobs"]
    second = copy.deepcopy(first)
    second["name"] = "long"
    template = second["template"]["spec"]["template"]
    template["metadata"]["annotations"][RUN_FOR] = "1h"
    body["spec"]["replicatedJobs"] = [first, second]
    ground.post(body)
    ground.wait(lambda: len(ground.pools("steps-")) == 2, "both have a pool")
    ground.wait(lambda: len(ground.living("steps-")) == 1, "the pool of the first is deleted")
    assert ground.phases("steps")["Running"] == 1
    ground.delete("steps")
    ground.await_gone("steps-")
