"""Helpers of the end-to-end tests for JobSets, pods, pools and provisioners."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml
from prometheus_client.parser import text_string_to_metric_families

from provisioner import constants
from provisioner.kube.api import KubeApi, connect
from provisioner.kube.errors import ClusterError, Conflict
from provisioner.kube.protocol import Request, collection_path, object_path
from provisioner.nodegroups import app
from provisioner.nodegroups.api.types import GROUP, Kind
from provisioner.nodegroups.compute.client import ComputeClient
from provisioner.nodegroups.planning import child
from provisioner.settings.nodegroups import NodeGroupSettings
from provisioner.settings.webhook import WebhookSettings
from provisioner.webhook.app import Addresses, WebhookServer, build
from provisioner.workloads import JOBSET
from rehearsal.demos import ProvisionerProcess, Rehearsal
from rehearsal.demos.world import CLUSTER, LOCATION, PROJECT, wait_for
from rehearsal.localcluster import RUN_FOR
from rehearsal.localcluster.ports import HOST, free_ports
from rehearsal.localcluster.recipes import VERSION_VARIABLES
from rehearsal.simulators.gke.records import PoolStatus, PoolView
from rehearsal.simulators.gke.settings import SimulatorSettings
from tests.support.objects import pod_spec, raw_jobset

#: Durations in seconds of the simulated GKE: short for fast tests, but long enough to act before a create ends.
QUICK: dict[str, float | None] = {
    "create_seconds": 2.0,
    "delete_seconds": 1.0,
    "node_stagger_seconds": 0.3,
    "request_seconds": 0.0,
    "repair_seconds": None,
}
#: Environment of provisioners, unless a test sets these variables.
EAGER = {"NODEPOOL_DELETION_DELAY": "2s", "NODE_MIN_LIFESPAN": "0s"}
#: Time-out of waits in seconds, many times the duration of any step on an idle machine, so only a hung step exceeds it.
PATIENCE_SECONDS = 80.0
EXCLUSIVE = "alpha.jobset.sigs.k8s.io/exclusive-topology"
#: Arguments of kubectl for the admission policies of placement.
PLACEMENT_MANIFESTS = (("-f", "deploy/base/placement-guard.yaml"), ("-k", "deploy/components/placement"))
#: Labels of a namespace whose pods get marks.
ASSIGNED = {constants.PLACEMENT: constants.PLACEMENT_ASSIGN}
_TRIALS = "placement-trials"
_numbers = itertools.count(1)


def has_mutating_policies() -> bool:
    """Return whether Kubernetes has MutatingAdmissionPolicy v1; the oldest version in the tests, 1.35, lacks it."""
    return os.environ.get(VERSION_VARIABLES["kubernetes"]) != "1.35"


def simulator_settings(**changes: Any) -> SimulatorSettings:
    return SimulatorSettings(project=PROJECT, location=LOCATION, cluster=CLUSTER, **{**QUICK, **changes})


def jobset(
    name: str,
    namespace: str,
    *,
    topology: str = "2x2x1",
    accelerator: str = "tpu-v4-podslice",
    chips: int = 4,
    replicas: int = 1,
    parallelism: int = 1,
    run_for: str = "2s",
    max_restarts: int = 0,
    selector: Mapping[str, str] | None = None,
    tolerations: Iterable[Mapping[str, str]] = (),
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    selectors = {constants.TPU_ACCELERATOR: accelerator, constants.TPU_TOPOLOGY: topology, **(selector or {})}
    return raw_jobset(
        name,
        namespace=namespace,
        uid="",
        job="w",
        replicas=replicas,
        parallelism=parallelism,
        pod=pod_spec(
            chips=chips,
            nodeSelector={key: value for key, value in selectors.items() if value},
            tolerations=list(tolerations),
        ),
        pod_metadata={"annotations": {RUN_FOR: run_for}},
        metadata={"annotations": {EXCLUSIVE: constants.NODE_POOL, **(annotations or {})}},
        spec={"failurePolicy": {"maxRestarts": max_restarts}},
    )


class Ground:
    """A namespace of the shared rehearsal, with access to its objects and to the simulated GKE."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self.rehearsal = rehearsal
        self.gke = rehearsal.gke
        self.api = rehearsal.api
        self.provisioners: list[ProvisionerProcess] = []
        self.namespace = f"e2e-{next(_numbers)}"
        rehearsal.create_namespace(self.namespace)
        # The API server admits pods only when the namespace has its service account.
        wait_for(
            lambda: rehearsal.objects(collection_path("serviceaccounts", namespace=self.namespace)),
            f"namespace {self.namespace} has a service account",
            PATIENCE_SECONDS,
        )

    def assign(self) -> None:
        """Make admission mark the pods of the namespace."""
        self.api.patch(object_path("namespaces", self.namespace), {"metadata": {"labels": ASSIGNED}})

    # --- JobSets

    def apply(self, name: str, **options: Any) -> None:
        self.post(jobset(name, self.namespace, **options))

    def post(self, body: dict[str, Any]) -> None:
        """Create a JobSet from its manifest; retry while a JobSet with its name exists."""
        name = body["metadata"]["name"]

        def posted() -> bool:
            try:
                self.api.post(collection_path("jobsets", namespace=self.namespace, root=JOBSET.root), body)
            except Conflict:
                return False
            return True

        wait_for(posted, f"JobSet {name} can be created", PATIENCE_SECONDS)

    def delete(self, name: str) -> None:
        self.api.delete(self._path(name))

    def jobset(self, name: str) -> dict[str, Any]:
        return self.api.get(self._path(name))

    def state(self, name: str) -> str:
        """Return "Completed" or "Failed", or "" if the JobSet has not ended."""
        return str(self.jobset(name).get("status", {}).get("terminalState", ""))

    def restarts(self, name: str) -> int:
        return int(self.jobset(name).get("status", {}).get("restarts", 0))

    def _path(self, name: str) -> str:
        return object_path("jobsets", name, namespace=self.namespace, root=JOBSET.root)

    def await_completed(self, *names: str, seconds: float = PATIENCE_SECONDS) -> None:

        def completed() -> bool:
            states = {name: self.state(name) for name in names}
            assert "Failed" not in states.values(), states
            return set(states.values()) == {"Completed"}

        self.wait(completed, f"JobSets {', '.join(names)} are completed", seconds)

    # --- pods and nodes

    def pods(self) -> list[dict[str, Any]]:
        return self.rehearsal.objects(collection_path("pods", namespace=self.namespace))

    def pods_of(self, name: str) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if pod["metadata"].get("labels", {}).get(constants.JOBSET_NAME) == name]

    def runs(self, name: str, *, pods: int = 1) -> bool:
        return [pod["status"].get("phase") for pod in self.pods_of(name)].count("Running") == pods

    def leader(self, name: str) -> dict[str, Any] | None:
        for pod in self.pods():
            labels = pod["metadata"].get("labels", {})
            if labels.get(constants.JOBSET_NAME) == name and labels.get(constants.COMPLETION_INDEX) == "0":
                return pod
        return None

    def unschedulable(self, name: str) -> bool:
        leader = self.leader(name) or {}
        conditions = leader.get("status", {}).get("conditions", ())
        return any(condition.get("reason") == "Unschedulable" for condition in conditions)

    def nodes(self) -> list[dict[str, Any]]:
        return self.rehearsal.objects(collection_path("nodes"))

    def events(self, kind: str, name: str = "") -> list[dict[str, Any]]:
        """Return the provisioner's Events on objects of a kind whose names begin with `name`, oldest first."""
        where = "default" if kind == "Node" else self.namespace
        found = [
            event
            for event in self.rehearsal.objects(collection_path("events", namespace=where))
            if event["involvedObject"]["kind"] == kind
            and event["involvedObject"]["name"].startswith(name)
            and event.get("source", {}).get("component") == constants.MANAGER
        ]
        return sorted(found, key=lambda event: str(event["firstTimestamp"]))

    def reasons(self, kind: str, name: str = "") -> set[str]:
        return {str(event["reason"]) for event in self.events(kind, name)}

    # --- GKE

    def pools(self, prefix: str = "") -> tuple[PoolView, ...]:
        return tuple(pool for pool in self.gke.pools if pool.name.startswith(prefix))

    def living(self, prefix: str = "") -> tuple[PoolView, ...]:
        """Return the pools whose names have the prefix, and which are neither being deleted nor in ERROR."""
        gone = (PoolStatus.STOPPING, PoolStatus.ERROR)
        return tuple(pool for pool in self.pools(prefix) if pool.status not in gone)

    def sent(self) -> dict[str, dict[str, Any]]:
        """Return the body of the create of each pool."""
        world = self.gke.world
        with world.moment():
            return {name: pool.body for cluster in world._clusters.values() for name, pool in cluster.pools.items()}

    def make_pool(self, body: dict[str, Any]) -> None:
        requests.post(f"{self.gke.url}{self._pools_path}", json={"nodePool": body}, timeout=10).raise_for_status()

    def drop_pool(self, name: str) -> None:
        """Delete a pool as another client would; ignore errors of GKE."""
        requests.delete(f"{self.gke.url}{self._pools_path}/{name}", timeout=10)

    @property
    def _pools_path(self) -> str:
        return f"/v1/projects/{PROJECT}/locations/{LOCATION}/clusters/{CLUSTER}/nodePools"

    def accepted(self, method: str) -> int:
        return self.gke.call_counts().get(method, {}).get("200", 0)

    def await_gone(self, prefix: str = "", *, seconds: float = PATIENCE_SECONDS) -> None:
        self.wait(lambda: not self.pools(prefix), f"no pool {prefix!r} is left", seconds)

    # --- provisioners

    def provisioner(
        self,
        *,
        environment: Mapping[str, str] | None = None,
        arguments: Iterable[str] = (),
        wait: bool = True,
        kubeconfig: Path | None = None,
    ) -> ProvisionerProcess:
        made = self.rehearsal.provisioner(
            environment={**EAGER, **(environment or {})}, arguments=arguments, kubeconfig=kubeconfig
        )
        self.provisioners.append(made)
        if wait:
            made.start()
        else:
            made.launch()
        return made

    # --- waiting

    def wait(self, condition: Callable[[], object], what: str, seconds: float = PATIENCE_SECONDS) -> None:
        wait_for(condition, what, seconds, self.picture)

    def picture(self) -> str:
        pods = [
            f"{pod['metadata']['name']} {pod['status'].get('phase')} on {pod['spec'].get('nodeName')}"
            for pod in self.pods()[:20]
        ]
        pools = [f"{pool.name} {pool.status.value} {pool.status_message}" for pool in self.gke.pools[:20]]
        logs = [one.tail(lines=25) for one in self.provisioners]
        return "\n".join(["pods:", *pods, "pools:", *pools, "calls:", str(self.gke.call_counts()), *logs])


@contextlib.contextmanager
def placement_policies(rehearsal: Rehearsal) -> Iterator[None]:
    """Install the admission policies of placement, and wait until they are in force."""
    rehearsal.create_namespace(_TRIALS, labels=ASSIGNED)
    for manifest in PLACEMENT_MANIFESTS:
        rehearsal.kubectl("apply", "--server-side", "--validate=strict", *manifest)

    def admits(labels: Mapping[str, str], **selector: str) -> dict[str, str]:
        """Return the nodeSelector of a pod as admitted, empty if the pod is rejected."""
        spec = pod_spec()
        spec["nodeSelector"] |= selector
        body = {"metadata": {"name": "trial", "labels": dict(labels)}, "spec": spec}
        try:
            path = f"{collection_path('pods', namespace=_TRIALS)}?dryRun=All"
            admitted: dict[str, str] = rehearsal.api.post(path, body)["spec"]["nodeSelector"]
        except ClusterError:
            return {}
        return admitted

    def marks() -> bool:
        return constants.SLICE in admits({constants.JOB_KEY: "a" * 40})

    def rejects() -> bool:
        unserved = {constants.DISABLE: "true"}
        return bool(admits(unserved)) and not admits(unserved, **{constants.SLICE: "j-a"})

    wait_for(lambda: marks() and rejects(), "the policies of placement are in force", PATIENCE_SECONDS)
    try:
        yield
    finally:
        for manifest in PLACEMENT_MANIFESTS:
            rehearsal.kubectl("delete", *manifest)
        wait_for(
            lambda: not marks() and not rejects(), "the policies of placement are no longer in force", PATIENCE_SECONDS
        )


@contextlib.contextmanager
def registered_webhook(rehearsal: Rehearsal, component: str) -> Iterator[int]:
    """Register the webhooks of a component with its manifest; yield the port at which they are called.

    No kube-proxy runs, so a Service of type ExternalName leads to this machine. The API server verifies the certificate
    by the name of the Service.
    """
    name, namespace = "tpu-provisioner-webhook", constants.DEFAULT_NAMESPACE
    (port,) = free_ports(1)
    file = Path("deploy/components") / component / "mutating-webhook-configuration.yaml"
    configuration = yaml.safe_load(file.read_text(encoding="utf-8"))
    for hook in configuration["webhooks"]:
        hook["clientConfig"]["service"]["port"] = port
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port}]},
    }
    certificates = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": f"{name}-certificates"}}
    wanted = (
        ("services", {"namespace": namespace}, service),
        ("secrets", {"namespace": namespace}, certificates),
        ("mutatingwebhookconfigurations", {"root": "/apis/admissionregistration.k8s.io/v1"}, configuration),
    )
    for resource, place, body in wanted:
        rehearsal.api.post(collection_path(resource, **place), body)
    try:
        yield port
    finally:
        for resource, place, body in reversed(wanted):
            rehearsal.api.delete(object_path(resource, body["metadata"]["name"], **place))


@contextlib.contextmanager
def serving_webhook(
    rehearsal: Rehearsal, port: int, settings: WebhookSettings, admits: Callable[[], bool]
) -> Iterator[WebhookServer]:
    """Run the webhook server. Yield it once `admits` returns true: the API server then reaches and trusts it."""

    def asked() -> bool:
        try:
            return admits()
        except ClusterError:
            return False

    webhook = build(settings, Addresses(webhooks=f"{HOST}:{port}", metrics="0", probes="0"), rehearsal.api, None)
    webhook.start()
    try:
        wait_for(asked, "the API server asks the webhook", PATIENCE_SECONDS)
        yield webhook
    finally:
        webhook.stop(drain=lambda _seconds: None)


class NodeGroups:
    """The controller of node groups, in a thread."""

    def __init__(self, kubeconfig: Path, settings: NodeGroupSettings, *, leader_elect: bool) -> None:
        client = ComputeClient(endpoint=settings.gce_endpoint)
        addresses = app.Addresses(metrics="0", probes="0", leader_elect=leader_elect)
        api = connect(str(kubeconfig))
        # The wait for calls of an earlier process that may still arrive is shortened: no test here has such calls.
        self._patches = pytest.MonkeyPatch()
        self._patches.setattr(child, "_ARRIVED_SECONDS", 2.0)
        self.controller = app.build(settings, addresses, api, client, exit_process=lambda code: None)
        self.loop = self.controller.loop
        self.controller.start()
        self._thread = threading.Thread(target=self.loop.run)
        self._thread.start()

    def stop(self) -> None:
        self.controller.stop()
        self._thread.join(30)
        self.controller.shut_down()
        self._patches.undo()


def ready(provisioner: ProvisionerProcess) -> tuple[int, str]:
    """Return status and text of a provisioner's readiness; 0 if it cannot be reached."""
    try:
        answer = requests.get(provisioner.ready_url, timeout=5)
    except requests.ConnectionError:
        return 0, ""
    return answer.status_code, answer.text


def metrics(provisioner: ProvisionerProcess) -> str:
    answer = requests.get(provisioner.metrics_url, timeout=5)
    answer.raise_for_status()
    return answer.text


def metric(provisioner: ProvisionerProcess, name: str, **labels: str) -> float:
    """Return the value of a metric, named without its prefix `tpu_provisioner_`; 0 if it has no value yet."""
    wanted = (f"tpu_provisioner_{name}", labels)
    for family in text_string_to_metric_families(metrics(provisioner)):
        for sample in family.samples:
            if (sample.name, sample.labels) == wanted:
                return float(sample.value)
    return 0.0


def await_round(provisioner: ProvisionerProcess, api: KubeApi, *, after: datetime) -> None:
    """Wait until the provisioner has made a whole round that began after the given time.

    A node of one of the provisioner's pools must exist, because a change of its labels triggers the round.
    """
    wait_for(lambda: datetime.now(UTC) > after, f"it is {after:%H:%M:%S}", PATIENCE_SECONDS)
    node = next(
        item["metadata"]["name"]
        for item in api.list_page(Request("GET", collection_path("nodes"))).items
        if item["metadata"]["labels"].get(constants.NODEPOOL_MANAGER) == constants.MANAGER
    )
    # The first of two rounds may have begun before the change.
    for _ in range(2):
        poked = datetime.now(UTC).timestamp()
        label = {"example.com/poked": f"{poked:.6f}"}
        api.patch(object_path("nodes", node), {"metadata": {"labels": label}})
        wait_for(
            lambda poked=poked: metric(provisioner, "loop_last_round_timestamp_seconds") > poked,
            "a round is made",
            PATIENCE_SECONDS,
            provisioner.tail,
        )


def moment(record: Mapping[str, Any]) -> datetime:
    return datetime.fromisoformat(record["time"])


def logged(provisioner: ProvisionerProcess, event: str) -> list[dict[str, Any]]:
    return [record for record in provisioner.records() if record.get("event") == event]


def remove_node_group_kinds(rehearsal: Rehearsal) -> None:
    """Delete CRDs and objects of node groups, whose finalizers no controller removes; wait until they are deleted."""
    wanted = {f"{kind.plural}.{GROUP}" for kind in Kind}
    there = {name.rpartition("/")[2] for name in rehearsal.kubectl("get", "crd", "-o", "name").split()} & wanted
    for kind in sorted(there):
        template = "{range .items[*]}{.metadata.namespace} {.metadata.name}{'\\n'}{end}"
        for line in rehearsal.kubectl("get", kind, "--all-namespaces", "-o", f"jsonpath={template}").splitlines():
            namespace, name = line.split()
            free = '{"metadata": {"finalizers": null}}'
            rehearsal.kubectl("patch", kind, name, f"--namespace={namespace}", "--type=merge", f"--patch={free}")
    if there:
        rehearsal.kubectl("delete", "crd", *sorted(there), f"--timeout={PATIENCE_SECONDS:.0f}s")


def told(ground: Ground, reason: str, name: str, *, kind: str = "Pod") -> list[str]:
    """Return the messages of the provisioner's Events with a reason on objects with a name prefix, oldest first."""
    events = [event for event in ground.events(kind, name) if event["reason"] == reason]
    # Events are sorted by version, because their times have a resolution of 1 s.
    events.sort(key=lambda event: int(event["metadata"]["resourceVersion"]))
    return [str(event["message"]) for event in events]
