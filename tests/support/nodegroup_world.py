"""Builders for tests of node groups: objects of a cluster, and arguments of calls."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from provisioner import constants
from provisioner.kube.protocol import object_path
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.documents import parse
from provisioner.nodegroups.api.types import RECORDS, Child, Kind, ObjectMeta
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.compute.records import ManagedInstance, Scope
from provisioner.nodegroups.planning.actions import Proof, Target
from provisioner.nodegroups.reading import API_ROOT
from provisioner.runtime.authority import Authority
from rehearsal.simulators.compute.guests import joining
from tests.support.clock import NOW
from tests.support.kube import FakeKube
from tests.support.nodegroups import SPECS, raw_object

Json = dict[str, Any]

NAMESPACE = "research"
GROUP = "slice"
PROJECT = "research-project"
ZONE = Scope(project=PROJECT, zone="us-central1-c")
REGION = Scope(project=PROJECT, region="us-central1")
EVERYWHERE = Scope(project=PROJECT)
LABELS = {names.GROUP_NAMESPACE: NAMESPACE, names.GROUP_NAME: GROUP}
MANAGER = "slice-mig-4d7d1bc1"
MANAGER_UID = "uid-of-manager"
TAINT = {"key": constants.TPU_RESOURCE, "value": "present", "effect": "NoSchedule"}
DELETED = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
STARTED = {"startTime": "2026-01-01T00:00:00Z"}


def raw_kind(kind: Kind, name: str = GROUP, **metadata: Any) -> Json:
    return raw_object(
        kind, dict(SPECS[kind]), name=name, metadata={"resourceVersion": "7", "generation": 1, **metadata}
    )


def a_child(kind: Kind, name: str = GROUP) -> Child:
    child: Any = parse(RECORDS[kind], raw_kind(kind, name))
    return child


def raw_request(node: str, name: str = "csr-1", **parts: Any) -> Json:
    """Return a certificate request of a kubelet as the API server returns it; `spec` adds fields."""
    body = joining.request_body(joining.new_key(node).request_pem)
    who = {"username": "system:bootstrap:abcdef", "groups": ["system:bootstrappers", tokens.GROUP]}
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "7", **parts.pop("metadata", {})}
    return {**body, "metadata": metadata, "spec": {**body["spec"], **who, **parts.pop("spec", {})}, **parts}


def kind_path(kind: Kind, name: str = GROUP) -> str:
    return object_path(kind.plural, name, namespace=NAMESPACE, root=API_ROOT)


def meta(name: str = GROUP, **changes: Any) -> ObjectMeta:
    return ObjectMeta(**{"namespace": NAMESPACE, "name": name, "uid": "u1", "resource_version": "7", **changes})


def provider_id(machine: str) -> str:
    return f"gce://{PROJECT}/{ZONE.zone}/{machine}"


def raw_machine_node(name: str, *, labels: Mapping[str, str] | None = None, **parts: Any) -> Json:
    """Return the node of a machine with 4 chips, by default ready, cordoned and with the group's labels."""
    marks = {names.ACCELERATOR: "tpu7x", **LABELS} if labels is None else dict(labels)
    spec = {
        "providerID": provider_id(name),
        "taints": [TAINT],
        "unschedulable": parts.pop("unschedulable", True),
        **parts.pop("spec", {}),
    }
    ready = "True" if parts.pop("ready", True) else "False"
    chips = {constants.TPU_RESOURCE: "4"}
    status = {"capacity": chips, "allocatable": chips, "conditions": [{"type": "Ready", "status": ready}]}
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "7", "labels": marks}
    return {"metadata": {**metadata, **parts.pop("metadata", {})}, "spec": spec, "status": status, **parts}


def raw_pod_on(node: str, name: str = "train-0", *, chips: int = 4, **parts: Any) -> Json:
    requests = {constants.TPU_RESOURCE: str(chips)} if chips else {"cpu": "1"}
    spec = {
        "nodeName": node,
        "containers": [{"name": "main", "resources": {"requests": requests}}],
        **parts.pop("spec", {}),
    }
    metadata = {"namespace": NAMESPACE, "name": name, "uid": f"uid-of-{name}", **parts.pop("metadata", {})}
    return {"metadata": metadata, "spec": spec, "status": {"phase": "Running", **STARTED}, **parts}


def encoded(secret: Json) -> Json:
    """Return a Secret as the API server stores it, with the texts of `stringData` encoded in `data`."""
    data = {key: base64.b64encode(value.encode()).decode() for key, value in secret["stringData"].items()}
    return {**{key: value for key, value in secret.items() if key != "stringData"}, "data": data}


def certificate() -> str:
    """Return the certificate of a new CA in PEM."""
    return Authority("kubernetes", now=NOW, valid=timedelta(days=1)).certificate_pem.decode()


class GroupKube(FakeKube):
    """API server in memory, with methods that store the cluster's facts and objects of one group."""

    def put_cluster(self, ca: str = "") -> None:
        """Store UID and version of the cluster, and with `ca` also the CA's certificate and the server's address."""
        self.put_object("/api/v1/namespaces/kube-system", {"metadata": {"name": "kube-system", "uid": "cluster-uid"}})
        self.put_object("/version", {"major": "1", "minor": "31", "gitVersion": "v1.31.4"})
        if ca:
            root = object_path("configmaps", "kube-root-ca.crt", namespace="kube-system")
            self.put_object(root, {"metadata": {"name": "kube-root-ca.crt"}, "data": {"ca.crt": ca}})
            kubeconfig = "clusters: [{cluster: {server: 'https://10.0.0.2:6443'}}]"
            info = object_path("configmaps", "cluster-info", namespace="kube-public")
            self.put_object(info, {"metadata": {"name": "cluster-info"}, "data": {"kubeconfig": kubeconfig}})

    def put_manager(self, **metadata: Any) -> None:
        """Store the managed instance group, by default one that is being deleted."""
        raw = raw_kind(Kind.MANAGED_INSTANCE_GROUP, MANAGER, uid=MANAGER_UID, **(metadata or DELETED))
        self.put_object(kind_path(Kind.MANAGED_INSTANCE_GROUP, MANAGER), raw)

    def put_node(self, name: str = "m-0", **parts: Any) -> Json:
        return self.put_object(object_path("nodes", name), raw_machine_node(name, **parts))

    def put_pod(self, node: str = "m-0", name: str = "train-0", **parts: Any) -> None:
        self.put_object(object_path("pods", name, namespace=NAMESPACE), raw_pod_on(node, name, **parts))


def target(kind: Kind, name: str = GROUP, uid: str = "u1") -> Target:
    scopes = {Kind.WORKLOAD_POLICY: REGION, Kind.MANAGED_INSTANCE_GROUP: ZONE}
    return Target(uid=uid, namespace=NAMESPACE, kind=kind, scope=scopes.get(kind, EVERYWHERE), name=name)


def a_proof(machines: Iterable[str] = ("m-0", "m-1"), **changes: Any) -> Proof:
    """Return the proof that is required before a managed instance group is deleted with `machines`."""
    values: Json = {
        "namespace": NAMESPACE,
        "name": MANAGER,
        "uid": MANAGER_UID,
        "group_labels": LABELS,
        "place": provider_id("m"),
        "provider_ids": frozenset(map(provider_id, machines)),
    }
    return Proof(**(values | changes))


def a_machine(name: str = "m-0", **changes: Any) -> ManagedInstance:
    return ManagedInstance(**{"name": name, "scope": ZONE, "status": "RUNNING", "id": f"id-of-{name}", **changes})
