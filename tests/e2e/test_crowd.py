"""Many JobSets at once, strange neighbours, and who is served."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from provisioner import constants, kube
from provisioner.kube.protocol import collection_path
from provisioner.workloads import JOBSET
from rehearsal.demos import ProvisionerProcess
from tests.e2e.kit import Ground, foreign_pod, jobset, logged, told

pytestmark = pytest.mark.e2e


def test_twelve_of_one_shape(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Twelve JobSets of one shape end at different times, on whichever pools: none is ever disturbed, none leaks."""
    names = [f"twin-{index}" for index in range(12)]
    seconds = [5, 21, 7, 17, 9, 13, 11, 15, 6, 19, 8, 23]
    ended = threading.Event()
    lost: set[str] = set()

    def look() -> None:
        running: dict[str, str] = {}
        while not ended.wait(0.2):
            now = {pod["metadata"]["uid"]: pod for pod in ground.pods()}
            lost.update(f"{name} is gone" for uid, name in running.items() if uid not in now)
            for uid, pod in now.items():
                name = pod["metadata"]["name"]
                if pod["metadata"].get("deletionTimestamp") or pod["status"].get("phase") == "Failed":
                    lost.add(f"{name} is killed")
                if pod["status"].get("phase") == "Running":
                    running[uid] = name
                else:
                    running.pop(uid, None)

    with ThreadPoolExecutor(1) as watcher:
        looking = watcher.submit(look)
        try:
            for name, lasting in zip(names, seconds, strict=True):
                ground.apply(name, run_for=f"{lasting}s", topology="2x2x2", parallelism=2)
            ground.await_completed(*names, seconds=150)
        finally:
            ended.set()
        looking.result()
    assert lost == set()
    assert [ground.restarts(name) for name in names] == [0] * 12
    assert [ground.phases(name) for name in names] == [{"Succeeded": 2}] * 12
    ground.await_gone("twin-")
    ground.wait(lambda: not ground.nodes(), "all nodes are gone")
    # A job that ends early may leave its pool to one that has none yet.
    assert ground.accepted("nodePools.create") <= 12


def test_strange_neighbours(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """Foreign pools, thousands of foreign pods and broken JobSets are left alone; a good JobSet is served at once."""
    ground.make_pool({"name": "web", "initialNodeCount": 1, "config": {"machineType": "e2-standard-4"}})
    ground.make_pool(
        {
            "name": "by-hand",
            "initialNodeCount": 1,
            "config": {"machineType": "ct4p-hightpu-4t", "labels": {constants.NODEPOOL_MANAGER: "somebody"}},
        }
    )
    strange = ground.new_namespace()
    path = collection_path("pods", namespace=strange)
    bodies = [foreign_pod(f"stray-{index}", strange, schedulerName="nobody") for index in range(2000)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda body: ground.api.post(path, body), bodies))
    nowhere = {constants.TPU_ACCELERATOR: "", constants.TPU_TOPOLOGY: "", "no": "node"}
    ground.apply("no-chips", chips=0, selector=nowhere)
    ground.apply("no-topology", selector={constants.TPU_TOPOLOGY: ""})
    ground.apply("no-accelerator", selector={constants.TPU_ACCELERATOR: ""})
    ground.apply("nonsense", topology="2x2x3")
    ground.apply("unknown", accelerator="tpu-v99-slice")
    ground.apply("queueing", selector={constants.QUEUED: "true"})
    broken = ("no-chips", "no-topology", "no-accelerator", "nonsense", "unknown", "queueing")
    ground.wait(lambda: all(ground.leader(name) for name in broken), "all have pods")
    ground.apply("good", run_for="2s")
    # Its turn with the scheduler may take a while.
    ground.wait(lambda: ground.unschedulable("good"), "the scheduler finds no node for it")
    ground.wait(lambda: ground.pools("good-"), "the good JobSet gets its pool")
    ground.await_completed("good")
    ground.wait(
        lambda: constants.INVALID_REQUEST in ground.reasons("Pod", "nonsense"), "the nonsense is told on the pod"
    )
    (event, *_) = ground.events("Pod", "nonsense")
    assert "2x2x3" in event["message"]
    assert "2x2x2" in event["message"] or "2x2x4" in event["message"]
    (event, *_) = ground.events("Pod", "unknown")
    assert "tpu-v99-slice" in event["message"]
    ground.wait(
        lambda: constants.INVALID_REQUEST in ground.reasons("Pod", "no-accelerator"), "so is the missing selector"
    )
    ground.wait(lambda: told(ground, constants.INVALID_REQUEST, "queueing"), "so is capacity that is not served")
    assert "queued capacity is not supported" in told(ground, constants.INVALID_REQUEST, "queueing")[0]
    assert not ground.reasons("Pod", "no-chips")
    assert not ground.reasons("Pod", namespace=strange)
    ground.await_gone("good-")
    assert {pool.name for pool in ground.pools()} == {"web", "by-hand"}
    assert ground.accepted("nodePools.create") == 3


def test_names(ground: Ground, provisioner: ProvisionerProcess) -> None:
    """JobSets of all names that JobSet allows, alike for as long as can be, get pools of valid names of their own."""
    longest = next(length for length in range(63, 20, -1) if _allowed(ground, "x" * length))
    names = ["a", "b-9", "x" * (longest - 2) + "-1", "x" * (longest - 2) + "-2", "x" * longest]
    for index, name in enumerate(names):
        # A selector of its own keeps each on its own pool.
        ground.apply(name, run_for="1s", selector={"example.com/index": str(index)})
    ground.await_completed(*names)
    assert ground.accepted("nodePools.create") == len(names)


def _allowed(ground: Ground, name: str) -> bool:
    try:
        ground.api.post(
            f"{collection_path('jobsets', namespace=ground.namespace, root=JOBSET.root)}?dryRun=All",
            jobset(name, ground.namespace),
        )
    except kube.ClusterError:
        return False
    return True


def test_opt_in_by_label(alone: Ground) -> None:
    """With OPT_IN_LABEL only pods that carry it, or whose namespace does, are served."""
    willing = alone.new_namespace(tpu="please")
    process = alone.provisioner(environment={"OPT_IN_LABEL": "tpu=please"})
    alone.apply("by-namespace", namespace=willing, run_for="1s")
    alone.apply("by-pod", run_for="1s", pod_labels={"tpu": "please"})
    # Of other shapes, or the scheduler would put them on what was bought for the others.
    alone.apply("neither", run_for="1s", topology="2x2x2", parallelism=2)
    alone.apply("otherwise", run_for="1s", topology="2x2x4", parallelism=4, pod_labels={"tpu": "no"})
    alone.await_completed("by-pod")
    alone.wait(lambda: alone.state("by-namespace", namespace=willing) == "Completed", "the other is completed, too")
    assert alone.accepted("nodePools.create") == 2
    assert not alone.reasons("Pod", "neither")
    assert {record["jobset"] for record in logged(process, "node_pool.phase_changed")} == {"by-namespace", "by-pod"}
    # The namespace may be opened later.
    alone.api.patch(f"/api/v1/namespaces/{alone.namespace}", {"metadata": {"labels": {"tpu": "please"}}})
    alone.await_completed("neither", "otherwise")
    alone.await_gone()


def test_served_namespaces(alone: Ground) -> None:
    """With SERVED_NAMESPACES all others are not even seen."""
    other = alone.new_namespace()
    third = alone.new_namespace()
    alone.provisioner(environment={"SERVED_NAMESPACES": f"{alone.namespace},{third}"})
    alone.apply("elsewhere", namespace=other, run_for="1s", topology="2x2x2", parallelism=2)
    alone.apply("here", run_for="1s")
    alone.apply("there", namespace=third, run_for="1s")
    alone.await_completed("here")
    alone.wait(lambda: alone.state("there", namespace=third) == "Completed", "the second namespace is served")
    alone.await_gone()
    assert alone.accepted("nodePools.create") == 2
    assert not alone.reasons("Pod", namespace=other)
