"""The real Kueue on a real control plane: capacity is asked for first, and a JobSet starts when all of it is there.

These tests run where Kueue is built (`tpu-rehearsal build --kueue`), or with TPU_PROVISIONER_KUEUE=1, which builds it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import Conflict, NotFound
from provisioner.kube.protocol import collection_path, object_path
from rehearsal.demos import wait_for
from rehearsal.simulators.gke.capacity import Capacity
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.e2e.kit import EAGER, EXCLUSIVE, PATIENCE_SECONDS, Ground, jobset

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("kueue")]

_KUEUE = "/apis/kueue.x-k8s.io/v1beta2"
_REQUESTS = "/apis/autoscaling.x-k8s.io/v1"
_QUEUE_NAME = "kueue.x-k8s.io/queue-name"
_KINDS = {
    "ResourceFlavor": "resourceflavors",
    "ProvisioningRequestConfig": "provisioningrequestconfigs",
    "AdmissionCheck": "admissionchecks",
    "ClusterQueue": "clusterqueues",
    "LocalQueue": "localqueues",
    "Topology": "topologies",
    "WorkloadPriorityClass": "workloadpriorityclasses",
}
_PRIORITY = "kueue.x-k8s.io/priority-class"
_PRIORITIES = {"low": 1, "high": 2}
#: As the flavors of docs/kueue.md have.
_TOLERATIONS = [
    {"key": constants.TPU_RESOURCE, "operator": "Exists"},
    {"key": "cloud.google.com/gke-spot", "operator": "Exists"},
]
_V4 = {"v4": {"tolerations": _TOLERATIONS}}


class Queue:
    """A ClusterQueue of its own for a test, with what it needs."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.name = ground.namespace
        self._made: list[str] = []

    def make(self, kind: str, name: str, spec: Mapping[str, Any], **fields: Any) -> str:
        """Create an object of Kueue's; return its name, which no other test has."""
        namespace = self.ground.namespace if kind == "LocalQueue" else None
        full = name if namespace else f"{self.name}-{name}"
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": full}, **fields}
        body |= {"spec": dict(spec)} if spec else {}
        self.ground.api.post(collection_path(_KINDS[kind], namespace=namespace, root=_KUEUE), body)
        self._made.append(object_path(_KINDS[kind], full, namespace=namespace, root=_KUEUE))
        return full

    def set_up(
        self, flavors: Mapping[str, Mapping[str, Any]], *, chips: int = 64, check: bool = True, **spec: Any
    ) -> None:
        """Create a queue `tpu` with flavors that have a quota of so many chips each."""
        quota = [{"name": constants.TPU_RESOURCE, "nominalQuota": chips}]
        names = [self.make("ResourceFlavor", name, flavor) for name, flavor in flavors.items()]
        entries = [{"name": name, "resources": quota} for name in names]
        spec |= {"namespaceSelector": {}}
        spec |= {"resourceGroups": [{"coveredResources": [constants.TPU_RESOURCE], "flavors": entries}]}
        if check:
            config = {
                "provisioningClassName": constants.PROVISIONING_CLASS,
                "managedResources": [constants.TPU_RESOURCE],
                "retryStrategy": {"backoffLimitCount": 5, "backoffBaseSeconds": 1, "backoffMaxSeconds": 5},
            }
            parameters = {"apiGroup": "kueue.x-k8s.io", "kind": "ProvisioningRequestConfig"}
            parameters |= {"name": self.make("ProvisioningRequestConfig", "config", config)}
            controller = "kueue.x-k8s.io/provisioning-request"
            asked = self.make("AdmissionCheck", "check", {"controllerName": controller, "parameters": parameters})
            spec |= {"admissionChecksStrategy": {"admissionChecks": [{"name": asked}]}}
        queue = self.make("ClusterQueue", "queue", spec)
        self.make("LocalQueue", "tpu", {"clusterQueue": queue})

    def submit(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        pod_annotations: Mapping[str, str] | None = None,
        exclusive: bool = True,
        **options: Any,
    ) -> None:
        """Create a JobSet in the queue."""
        body = jobset(name, self.ground.namespace, **options)
        body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["annotations"] |= (
            pod_annotations or {}
        )
        if not exclusive:
            del body["metadata"]["annotations"][EXCLUSIVE]
        body["metadata"]["labels"] = {_QUEUE_NAME: "tpu", **(labels or {})}
        self.ground.post(body)

    def workload(self, name: str) -> dict[str, Any]:
        """Return the Workload of a JobSet; nothing while there is none."""
        path = collection_path("workloads", namespace=self.ground.namespace, root=_KUEUE)
        for raw in self.ground.rehearsal.objects(path):
            if raw["metadata"]["ownerReferences"][0]["name"] == name:
                return raw
        return {}

    def check(self, name: str) -> dict[str, Any]:
        """Return the state of the admission check of a JobSet."""
        checks = self.workload(name).get("status", {}).get("admissionChecks", [])
        return dict(checks[0]) if checks else {}

    def suspended(self, name: str) -> bool:
        """Whether a JobSet is suspended."""
        return bool(self.ground.jobset(name)["spec"].get("suspend"))

    def requests(self) -> list[dict[str, Any]]:
        """Return the ProvisioningRequests."""
        path = collection_path("provisioningrequests", namespace=self.ground.namespace, root=_REQUESTS)
        return self.ground.rehearsal.objects(path)

    @property
    def attempts(self) -> list[str]:
        """The names of the ProvisioningRequests that there are."""
        return [raw["metadata"]["name"] for raw in self.requests()]

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait; the picture of a failure has what Kueue and the provisioner say."""
        wait_for(condition, what, seconds, self._picture)

    def await_completed(self, *names: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Wait until JobSets are completed."""
        self.wait(lambda: all(self.ground.state(name) == "Completed" for name in names), f"{names} complete", seconds)

    def _picture(self) -> str:
        path = collection_path("workloads", namespace=self.ground.namespace, root=_KUEUE)
        found = [*self.ground.rehearsal.objects(path), *self.requests()]
        statuses = [f"{raw['metadata']['name']}: {json.dumps(raw.get('status', {}))}" for raw in found]
        return "\n".join([*statuses, self.ground.picture()])

    def remove(self) -> None:
        """Delete everything; Kueue lets go of it once nothing uses it any more."""
        for path in reversed(self._made):
            try:
                self.ground.api.delete(path)
            except (NotFound, Conflict):
                continue


@pytest.fixture
def queue(ground: Ground) -> Iterator[Queue]:
    """Give a queue, not set up yet."""
    queue = Queue(ground)
    yield queue
    queue.remove()


@pytest.mark.usefixtures("provisioner")
def test_without_a_check_a_jobset_is_resumed_by_quota(queue: Queue) -> None:
    """It waits for those before it; its pods are demand like any other's."""
    queue.set_up(_V4, chips=4, check=False)
    queue.submit("first", run_for="2s")
    queue.submit("second", run_for="1s")
    assert queue.suspended("second")
    queue.await_completed("first", "second")
    assert queue.requests() == []


def test_a_jobset_starts_when_all_its_slices_are_ready_and_on_them(queue: Queue, alone: Ground) -> None:
    """Its Workload says when that is expected; nothing is created twice."""
    # What is expected goes by the creates before; words are written every 15 s.
    alone.provisioner(environment=EAGER)
    alone.gke.set(create_seconds=17.0)
    queue.set_up(_V4)
    queue.submit("train", topology="2x2x2", replicas=2, parallelism=2)
    queue.wait(lambda: "0 of 2 slices are ready; expected at" in queue.check("train").get("message", ""), "a forecast")
    assert (queue.suspended("train"), alone.pods()) == (True, [])
    queue.wait(lambda: not queue.suspended("train"), "the JobSet is resumed")
    assert [pool.status.value for pool in alone.pools()] == ["RUNNING"] * 2
    queue.await_completed("train")
    assert alone.accepted("nodePools.create") == 2
    alone.await_gone()


@pytest.mark.usefixtures("provisioner")
def test_a_stockout_moves_a_jobset_to_the_next_choice_of_capacity(queue: Queue) -> None:
    """Within one retry; Kueue itself goes to another flavor only for its quota."""
    queue.set_up(_V4)
    queue.ground.gke.inject(Fault(kind=FaultKind.STOCKOUT, capacity=Capacity.ON_DEMAND))
    queue.submit("train", replicas=2, pod_annotations={constants.CAPACITY: "on-demand, spot"})
    queue.wait(lambda: queue.ground.runs("train", pods=2), "the JobSet runs")
    assert len(queue.attempts) <= 2
    spot = [pool for pool in queue.ground.sent().values() if pool["config"].get("spot")]
    assert len(spot) == 2


@pytest.mark.usefixtures("provisioner")
def test_a_flavor_with_a_topology_is_admitted_onto_fresh_pools(queue: Queue) -> None:
    """Kueue computes the topology after the check, on the new nodes, and binds each slice to a node pool."""
    levels = [{"nodeLabel": constants.NODE_POOL}, {"nodeLabel": "kubernetes.io/hostname"}]
    topology = queue.make("Topology", "tpu", {"levels": levels})
    labels = {"nodeLabels": {constants.TPU_ACCELERATOR: "tpu-v4-podslice"}}
    queue.set_up({"v4": {**_V4["v4"], **labels, "topologyName": topology}})
    annotations = {
        "kueue.x-k8s.io/podset-slice-required-topology": constants.NODE_POOL,
        "kueue.x-k8s.io/podset-slice-size": "2",
    }
    queue.submit("train", topology="2x2x2", replicas=2, parallelism=2, exclusive=False, pod_annotations=annotations)
    queue.await_completed("train")
    assert queue.ground.accepted("nodePools.create") == 2


@pytest.mark.usefixtures("provisioner")
def test_a_jobset_that_preempts_another_gets_its_pools(queue: Queue) -> None:
    """Nothing is created for it."""
    ground = queue.ground
    queue.set_up(_V4, chips=8, preemption={"withinClusterQueue": "LowerPriority"})
    classes = {name: queue.make("WorkloadPriorityClass", name, {}, value=value) for name, value in _PRIORITIES.items()}
    queue.submit("low", replicas=2, run_for="600s", labels={_PRIORITY: classes["low"]})
    queue.wait(lambda: ground.runs("low", pods=2), "the first JobSet runs")
    queue.submit("high", replicas=2, run_for="600s", labels={_PRIORITY: classes["high"]})
    queue.wait(lambda: ground.runs("high", pods=2), "the second JobSet runs")
    assert queue.suspended("low")
    assert ground.accepted("nodePools.create") == 2
