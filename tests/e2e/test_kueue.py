"""Tests of the real Kueue (run by `make test-operators`): it resumes a JobSet when all its slices have ready pools."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from provisioner import constants
from provisioner.kube.errors import Conflict, NotFound
from provisioner.kube.protocol import collection_path, object_path
from provisioner.settings.webhook import WebhookSettings
from provisioner.workloads import JOBSET
from rehearsal.demos import wait_for
from rehearsal.demos.story import is_ready
from rehearsal.simulators.gke.capacity import Capacity
from rehearsal.simulators.gke.faults import Fault, FaultKind
from tests.e2e.assigning import (
    RESTARTS,
    assert_each_on_a_pool_of_its_own,
    await_rival,
    bound,
    nodes_of,
    restart,
    running,
    train,
)
from tests.e2e.kit import (
    EAGER,
    EXCLUSIVE,
    PATIENCE_SECONDS,
    Ground,
    jobset,
    registered_webhook,
    serving_webhook,
)
from tests.support.objects import pod_spec, raw_buffer

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
#: Tolerations of the flavors in docs/kueue.md.
_TOLERATIONS = [
    {"key": constants.TPU_RESOURCE, "operator": "Exists"},
    {"key": "cloud.google.com/gke-spot", "operator": "Exists"},
]
_V4 = {"v4": {"tolerations": _TOLERATIONS}}
#: Annotations with which Kueue places every two pods, the hosts of a slice, on one node pool.
_ON_ONE_POOL = {
    "kueue.x-k8s.io/podset-slice-required-topology": constants.NODE_POOL,
    "kueue.x-k8s.io/podset-slice-size": "2",
}


class Queue:
    """A ClusterQueue of one test, and all other objects of Kueue that the test creates."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground
        self.name = ground.namespace
        self._made: list[str] = []

    def make(self, kind: str, name: str, spec: Mapping[str, Any], **fields: Any) -> str:
        """Create an object of Kueue; return its name. Names of cluster-wide objects are unique to the test."""
        own = kind == "LocalQueue"
        full = name if own else f"{self.name}-{name}"
        body = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": kind, "metadata": {"name": full}, **fields}
        self.post(_KINDS[kind], body | ({"spec": dict(spec)} if spec else {}), root=_KUEUE, namespaced=own)
        return full

    def post(self, resource: str, body: Mapping[str, Any], *, root: str, namespaced: bool = True) -> None:
        namespace = self.ground.namespace if namespaced else None
        self.ground.api.post(collection_path(resource, namespace=namespace, root=root), dict(body))
        self._made.append(object_path(resource, body["metadata"]["name"], namespace=namespace, root=root))

    def set_up(
        self, flavors: Mapping[str, Mapping[str, Any]], *, chips: int = 64, check: bool = True, **spec: Any
    ) -> None:
        """Create a queue `tpu`, by default with an admission check; each flavor has a quota of `chips`."""
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

    def set_up_topology(self) -> None:
        levels = [{"nodeLabel": constants.NODE_POOL}, {"nodeLabel": constants.HOSTNAME}]
        topology = self.make("Topology", "tpu", {"levels": levels})
        labels = {"nodeLabels": {constants.TPU_ACCELERATOR: "tpu-v4-podslice"}}
        self.set_up({"v4": {**_V4["v4"], **labels, "topologyName": topology}})

    def submit(
        self,
        name: str,
        *,
        labels: Mapping[str, str] | None = None,
        pod_annotations: Mapping[str, str] | None = None,
        exclusive: bool = True,
        **options: Any,
    ) -> None:
        body = jobset(name, self.ground.namespace, **options)
        body["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["metadata"]["annotations"] |= (
            pod_annotations or {}
        )
        if not exclusive:
            del body["metadata"]["annotations"][EXCLUSIVE]
        body["metadata"]["labels"] = {_QUEUE_NAME: "tpu", **(labels or {})}
        self.ground.post(body)

    def workload(self, name: str) -> dict[str, Any]:
        """Return the Workload of a JobSet; empty if it does not exist."""
        path = collection_path("workloads", namespace=self.ground.namespace, root=_KUEUE)
        for raw in self.ground.rehearsal.objects(path):
            if raw["metadata"]["ownerReferences"][0]["name"] == name:
                return raw
        return {}

    def check(self, name: str) -> dict[str, Any]:
        """Return the state of the admission check of a JobSet; empty if it does not exist."""
        checks = self.workload(name).get("status", {}).get("admissionChecks", [])
        return dict(checks[0]) if checks else {}

    def suspended(self, name: str) -> bool:
        return bool(self.ground.jobset(name)["spec"].get("suspend"))

    def requests(self) -> list[dict[str, Any]]:
        path = collection_path("provisioningrequests", namespace=self.ground.namespace, root=_REQUESTS)
        return self.ground.rehearsal.objects(path)

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        wait_for(condition, what, seconds, self.picture)

    def await_completed(self, *names: str, seconds: float = PATIENCE_SECONDS) -> None:
        self.wait(lambda: all(self.ground.state(name) == "Completed" for name in names), f"{names} complete", seconds)

    def picture(self) -> str:
        path = collection_path("workloads", namespace=self.ground.namespace, root=_KUEUE)
        found = [*self.ground.rehearsal.objects(path), *self.requests()]
        statuses = [f"{raw['metadata']['name']}: {json.dumps(raw.get('status', {}))}" for raw in found]
        return "\n".join([*statuses, self.ground.picture()])

    def remove(self) -> None:
        """Delete all created objects. Kueue removes the finalizer of an object when the object is no longer used."""
        for path in reversed(self._made):
            try:
                self.ground.api.delete(path)
            except (NotFound, Conflict):
                continue


@pytest.fixture
def queue(ground: Ground) -> Iterator[Queue]:
    queue = Queue(ground)
    yield queue
    queue.remove()


@pytest.mark.usefixtures("provisioner")
def test_jobset_without_an_admission_check_is_resumed_by_quota(queue: Queue) -> None:
    """The second JobSet waits for quota. The provisioner serves the pods of both without ProvisioningRequests."""
    queue.set_up(_V4, chips=4, check=False)
    queue.submit("first", run_for="2s")
    queue.submit("second", run_for="1s")
    assert queue.suspended("second")
    queue.await_completed("first", "second")
    assert queue.requests() == []


def test_jobset_is_resumed_when_all_its_slices_are_ready_and_runs_on_them(queue: Queue, alone: Ground) -> None:
    # A new provisioner forecasts independently of other tests. The creates take long enough to see the forecast.
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


def test_stockout_moves_a_jobset_to_its_next_choice_of_capacity(queue: Queue, alone: Ground) -> None:
    """Kueue retries the request once for the next choice. Kueue changes a flavor only because of quota."""
    # The test needs its own provisioner, because a provisioner remembers stockouts.
    alone.provisioner(environment=EAGER)
    queue.set_up(_V4)
    alone.gke.inject(Fault(kind=FaultKind.STOCKOUT, capacity=Capacity.ON_DEMAND))
    queue.submit("train", replicas=2, pod_annotations={constants.CAPACITY: "on-demand, spot"})
    queue.wait(lambda: alone.runs("train", pods=2), "the JobSet runs")
    assert len(queue.requests()) <= 2
    assert [pool["config"]["spot"] for pool in alone.sent().values() if "spot" in pool["config"]] == [True] * 2


@pytest.mark.usefixtures("provisioner")
def test_jobset_of_a_flavor_with_a_topology_runs_on_its_new_pools(queue: Queue) -> None:
    """Kueue assigns each slice to a node pool after the check has passed, when the nodes exist."""
    queue.set_up_topology()
    queue.submit("train", topology="2x2x2", replicas=2, parallelism=2, exclusive=False, pod_annotations=_ON_ONE_POOL)
    queue.await_completed("train")
    assert queue.ground.accepted("nodePools.create") == 2


@pytest.mark.usefixtures("provisioner")
@pytest.mark.parametrize("check", [True, False], ids=["with an admission check", "by quota"])
def test_jobset_whose_jobs_get_selectors_from_the_webhook_runs(queue: Queue, *, check: bool) -> None:
    """Pods with a ProvisioningRequest get no selector of the job key, because the pools of the request lack it."""
    ground = queue.ground
    pod = {"metadata": {"generateName": "probe-"}, "spec": pod_spec(topology="2x2x1")}
    trial = f"{collection_path('pods', namespace='default')}?dryRun=All"
    settings = WebhookSettings(injection="all", job_key_selector=True, force_on_demand=True)

    def admits() -> bool:
        return "env" in ground.api.post(trial, pod)["spec"]["containers"][0]

    with (
        registered_webhook(ground.rehearsal, "webhook") as port,
        serving_webhook(ground.rehearsal, port, settings, admits),
    ):
        queue.set_up(_V4, check=check)
        queue.submit("train", parallelism=2, topology="2x2x2", selector={} if check else {constants.SPOT: "true"})
        queue.await_completed("train")
    assert ["job-key" in pod["spec"]["nodeSelector"] for pod in ground.pods()] == [not check] * 2
    assert [pool["config"].get("spot") for pool in ground.sent().values()] == [None]


@pytest.mark.usefixtures("provisioner")
def test_jobset_that_preempts_another_gets_its_pools(queue: Queue) -> None:
    ground = queue.ground
    queue.set_up(_V4, chips=8, preemption={"withinClusterQueue": "LowerPriority"})
    classes = {name: queue.make("WorkloadPriorityClass", name, {}, value=value) for name, value in _PRIORITIES.items()}
    queue.submit("low", replicas=2, run_for="600s", labels={_PRIORITY: classes["low"]})
    queue.wait(lambda: ground.runs("low", pods=2), "the first JobSet runs")
    queue.submit("high", replicas=2, run_for="600s", labels={_PRIORITY: classes["high"]})
    queue.wait(lambda: ground.runs("high", pods=2), "the second JobSet runs")
    assert queue.suspended("low")
    assert ground.accepted("nodePools.create") == 2


def test_resumed_jobset_has_a_pool_for_each_of_its_pods(queue: Queue, alone: Ground) -> None:
    """Thirty JobSets compete for two flavors, and creates in one of the flavors fail with stockouts.

    Without the policies of placement, pods may be bound to a pool that another JobSet has left; then the pool of their
    request is deleted.
    """
    alone.provisioner(environment=EAGER)
    spot = {"nodeLabels": {"cloud.google.com/gke-spot": "true"}, **_V4["v4"]}
    queue.set_up({"ondemand": _V4["v4"], "spot": spot}, chips=48)
    alone.gke.inject(Fault(kind=FaultKind.STOCKOUT, capacity=Capacity.ON_DEMAND, count=12))
    sizes = {f"train-{number}": 1 + number % 4 for number in range(30)}
    for name, slices in sizes.items():
        queue.submit(name, replicas=slices)
    failed: set[str] = set()

    def all_complete() -> bool:
        jobsets = {raw["metadata"]["name"]: raw for raw in alone.rehearsal.objects(_jobsets_of(alone))}
        requests = {raw["metadata"]["name"]: raw for raw in queue.requests()}
        ready = {raw["metadata"]["labels"].get(constants.NODE_POOL) for raw in alone.nodes() if is_ready(raw)}
        failed.update(name for name, raw in requests.items() if "Failed" in str(raw.get("status", {})))
        short = [
            name
            for name, raw in jobsets.items()
            if _runs(raw)
            and (found := len(_pools_of(raw, requests) & ready)) < sizes[name]
            and found < sizes[name] - len(bound(alone, name))
            and _runs(alone.jobset(name))
        ]
        assert not short, queue.picture()
        return all(raw.get("status", {}).get("terminalState") == "Completed" for raw in jobsets.values())

    queue.wait(all_complete, "all complete", 240)
    assert failed
    alone.await_gone()


def _jobsets_of(ground: Ground) -> str:
    return collection_path("jobsets", namespace=ground.namespace, root=JOBSET.root)


def _runs(raw: Mapping[str, Any]) -> bool:
    return not raw["spec"].get("suspend") and not raw.get("status", {}).get("terminalState")


def _pools_of(raw: Mapping[str, Any], requests: Mapping[str, Mapping[str, Any]]) -> set[str]:
    template = raw["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
    used = requests.get(template["metadata"]["annotations"].get(constants.CONSUMES_REQUEST, ""), {})
    return set(used.get("status", {}).get("provisioningClassDetails", {}).get("node-pools", "").split(","))


@pytest.mark.usefixtures("provisioner")
def test_job_starts_on_a_warm_slice_and_the_buffer_is_filled_again(queue: Queue) -> None:
    ground = queue.ground
    template = {"metadata": {"name": "template"}, "template": {"spec": pod_spec(topology="2x2x1")}}
    queue.post("podtemplates", template, root="/api/v1")
    queue.post(
        "capacitybuffers",
        {**raw_buffer(replicas=2), "metadata": {"name": "warm"}},
        root="/apis/autoscaling.x-k8s.io/v1beta1",
    )
    queue.wait(lambda: _full(ground), "two slices are warm")
    warm = {pool.name for pool in ground.living()}
    ground.apply("train", run_for="600s")
    queue.wait(lambda: ground.runs("train"), "the JobSet runs")
    assert {pool["spec"]["nodeName"] for pool in ground.pods_of("train")} <= {
        node["metadata"]["name"] for node in ground.nodes() if node["metadata"]["labels"][constants.NODE_POOL] in warm
    }
    queue.wait(lambda: len(ground.living()) == 3 and _full(ground), "the buffer is full again")
    assert ground.accepted("nodePools.create") == 3


def _full(ground: Ground) -> bool:
    path = collection_path("capacitybuffers", namespace=ground.namespace, root="/apis/autoscaling.x-k8s.io/v1beta1")
    conditions = [
        (condition["type"], condition["status"])
        for raw in ground.rehearsal.objects(path)
        for condition in raw.get("status", {}).get("conditions", ())
    ]
    return (constants.PROVISIONING_BUFFER, "True") in conditions


# --- With the policies of placement: the last tests of the file, because the earlier tests have none ---


@pytest.mark.timeout(300)
@pytest.mark.parametrize("has_topology", [False, True], ids=["quota", "topology"])
def test_jobset_of_a_queue_keeps_the_pools_of_its_request_despite_a_rival(
    has_topology: bool, queue: Queue, assigned: Ground
) -> None:
    """The rival is in no queue. With a topology, Kueue chooses the pool of each slice, and the provisioner uses it."""
    assigned.provisioner(environment={"MAX_CHIPS": "16"})
    if has_topology:
        queue.set_up_topology()
    else:
        queue.set_up(_V4)
    queue.submit(
        "train",
        topology="2x2x2",
        replicas=2,
        parallelism=2,
        run_for="3600s",
        max_restarts=RESTARTS,
        exclusive=False,
        pod_annotations=_ON_ONE_POOL if has_topology else {},
    )
    queue.wait(lambda: len(assigned.pools()) == 2, "the pools of the request are created")
    assigned.post(train(assigned, "rival", exclusive=False))
    queue.wait(lambda: len(running(assigned)) == 4, "the JobSet runs")
    await_rival(assigned, "rival")
    assert_each_on_a_pool_of_its_own(assigned, slices=2)
    before = nodes_of(running(assigned))
    for _ in range(RESTARTS):
        restart(assigned, "train")
        assert nodes_of(running(assigned)) == before
    assert assigned.restarts("train") == RESTARTS
    assert bound(assigned, "rival") == []
    assert assigned.accepted("nodePools.create") == 2
    selected = {constants.HOSTNAME in pod["spec"]["nodeSelector"] for pod in running(assigned)}
    assert selected == {has_topology}
