"""Tests of pods with IPUs on a real API server: their reviews by the webhook, its patches, and tokens of pods."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from provisioner.kube.errors import ClusterError, Forbidden, Invalid
from provisioner.kube.protocol import collection_path, object_path
from provisioner.partitions import names
from provisioner.partitions.demand import parse_pod
from provisioner.partitions.planning.ledger import Entry, Ledger
from provisioner.partitions.rest.api import Sources, make_rest_server
from provisioner.partitions.vipu.records import PartitionState
from provisioner.runtime.http import Address
from provisioner.settings.webhook import WebhookSettings
from provisioner.webhook.app import WebhookServer
from rehearsal.demos import Rehearsal, RehearsalError
from tests.e2e.kit import PATIENCE_SECONDS, registered_webhook, serving_webhook
from tests.support.clock import NOW
from tests.support.partitions import CONFIGURATION, FakeVipu
from tests.support.partitions_api import SERVER, Ground
from tests.support.waiting import wait_for

pytestmark = pytest.mark.e2e

Json = dict[str, Any]

_SYSTEM = "tpu-provisioner-system"
_CONTROLLER = f"system:serviceaccount:{_SYSTEM}:tpu-provisioner-partitions"
_IMAGE = "registry.example/tpu-provisioner:1"
_NAMESPACE = "ipus"
_PODS = collection_path("pods", namespace=_NAMESPACE)

COMPATIBLE = WebhookSettings(ipu_injection="compatible", ipu_init_image=_IMAGE)
LEAST = WebhookSettings(ipu_injection="least-privilege", ipu_init_image=_IMAGE)
WITH_PLUGIN = WebhookSettings(ipu_injection="least-privilege", ipu_init_image=_IMAGE, ipu_rdma_resource="rdma/hca")


@pytest.fixture
def port(rehearsal: Rehearsal) -> Iterator[int]:
    rehearsal.create_namespace(_NAMESPACE)
    with registered_webhook(rehearsal, "webhook-partitions") as port:
        yield port
    rehearsal.kubectl("delete", "namespace", _NAMESPACE, "--wait")


def serving(
    rehearsal: Rehearsal, port: int, settings: WebhookSettings
) -> contextlib.AbstractContextManager[WebhookServer]:
    return serving_webhook(
        rehearsal, port, settings, lambda: bool(tried(rehearsal, pod())["spec"].get("schedulingGates"))
    )


def pod(annotations: Json | None = None, *, container: Json | None = None, **spec: Any) -> Json:
    given = {names.IPUS: "4"} if annotations is None else annotations
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "train-", "annotations": given},
        "spec": {"containers": [{"name": "main", "image": "poplar", **(container or {})}], **spec},
    }


def tried(rehearsal: Rehearsal, raw: Json) -> Json:
    """Return a pod as a dry run admits and validates it."""
    return rehearsal.api.post(f"{_PODS}?dryRun=All", raw)


def reviews(webhook: WebhookServer) -> float:
    lines = webhook.metrics.registry.exposition().decode().splitlines()
    mine = [line for line in lines if line.startswith('tpu_provisioner_webhook_reviews_total{hook="partitions"')]
    return sum(float(line.rpartition(" ")[2]) for line in mine)


_GUARANTEED = {"limits": {"cpu": "8", "memory": "8Gi"}, "requests": {"cpu": "8", "memory": "8Gi"}}
PODS = {
    "the least that a pod is": pod(),
    "ports": pod(container={"ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 81}]}),
    "a security context": pod(
        container={"securityContext": {"runAsUser": 7, "capabilities": {"drop": ["ALL"]}}},
        securityContext={"runAsNonRoot": True, "fsGroup": 7},
    ),
    "volumes, variables and init containers": pod(
        container={"volumeMounts": [{"name": "data", "mountPath": "/data"}], "env": [{"name": "A", "value": "$(B)"}]},
        volumes=[{"name": "data", "emptyDir": {}}],
        initContainers=[
            {"name": "warm", "image": "i"},
            {"name": "side", "image": "i", "restartPolicy": "Always", "ports": [{"containerPort": 99}]},
        ],
    ),
    "resources": pod(container={"resources": _GUARANTEED}),
    "the node's network": pod(hostNetwork=True, container={"ports": [{"containerPort": 80}]}),
    "another gate": pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
    "no token of its own": pod(automountServiceAccountToken=False),
    "what somebody wrote by hand": pod(
        {names.IPU: "8", names.STATUS: names.INJECTED, names.PARTITION_ID: "x"},
        schedulingGates=[{"name": names.SCHEDULING_GATE}],
        initContainers=[{"name": names.INIT_CONTAINER, "image": "mine"}],
    ),
}


def test_injected_pod_is_valid_in_every_mode(rehearsal: Rehearsal, port: int) -> None:
    """A second review of the pod, which then has the API server's defaults, changes nothing."""
    for settings in (COMPATIBLE, LEAST, WITH_PLUGIN):
        with serving(rehearsal, port, settings):
            for name, raw in PODS.items():
                made = tried(rehearsal, raw)
                assert {"name": names.SCHEDULING_GATE} in made["spec"]["schedulingGates"], name
                images = {container["name"]: container["image"] for container in made["spec"]["initContainers"]}
                assert images[names.INIT_CONTAINER] == _IMAGE, name
                assert made["metadata"]["annotations"][names.STATUS] == names.INJECTED, name
                assert names.PARTITION_ID not in made["metadata"]["annotations"], name
                assert bool(made["spec"].get("hostNetwork")) == (settings is COMPATIBLE or name == "the node's network")
                if name == "resources":
                    assert made["status"]["qosClass"] == "Guaranteed"
                again = tried(rehearsal, {**made, "metadata": {**raw["metadata"], **_kept(made)}})
                assert again["spec"] == made["spec"], name


_UNPRIVILEGED = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def test_each_mode_is_admitted_by_its_documented_levels_of_pod_security(rehearsal: Rehearsal, port: int) -> None:
    """Pod Security checks pods after the webhook, and the tested pods need no privileges without the injection."""
    levels = ("privileged", "baseline", "restricted")
    for level in levels:
        labels = {"pod-security.kubernetes.io/enforce": level}
        rehearsal.create_namespace(f"{_NAMESPACE}-{level}", labels=labels)
    found = {}
    for mode, settings in {"compatible": COMPATIBLE, "with a plugin": WITH_PLUGIN, "least privilege": LEAST}.items():
        with serving(rehearsal, port, settings):
            found[mode] = [level for level in levels if _is_admitted(rehearsal, f"{_NAMESPACE}-{level}")]
    for level in levels:
        rehearsal.kubectl("delete", "namespace", f"{_NAMESPACE}-{level}", "--wait=false")
    assert found == {"compatible": ["privileged"], "with a plugin": ["privileged"], "least privilege": [*levels]}


def _is_admitted(rehearsal: Rehearsal, namespace: str) -> bool:
    # `restricted` needs a security context of the container: without it, the injection makes the container privileged.
    container = {"securityContext": _UNPRIVILEGED} if namespace.endswith("restricted") else None
    try:
        rehearsal.api.post(f"{collection_path('pods', namespace=namespace)}?dryRun=All", pod(container=container))
    except Forbidden as error:
        return "violates PodSecurity" not in str(error)
    return True


def _kept(made: Json) -> Json:
    return {key: made["metadata"][key] for key in ("annotations", "labels")}


def test_only_pods_with_ipus_are_sent_and_their_annotations_are_protected(rehearsal: Rehearsal, port: int) -> None:
    """Without the webhook server, pods with IPUs are rejected, and other pods are admitted without delay."""
    path = object_path("pods", "train", namespace=_NAMESPACE)

    def changed(annotations: Json, labels: Json | None = None) -> None:
        rehearsal.api.patch(path, {"metadata": {"annotations": annotations, "labels": labels or {}}})

    with serving(rehearsal, port, COMPATIBLE) as webhook:
        before = reviews(webhook)
        tried(rehearsal, pod({}))
        tried(rehearsal, pod({"graphcore.ai/other": "4"}))
        assert reviews(webhook) == before
        for annotations, want in (
            ({names.IPUS: "3"}, "a partition has a power of two"),
            ({names.STATUS: "injected"}, "asks for no IPUs"),
        ):
            with pytest.raises(Forbidden, match=want):
                tried(rehearsal, pod(annotations))

        rehearsal.api.post(_PODS, {**pod(), "metadata": {"name": "train", "annotations": {names.IPUS: "4"}}})
        before = reviews(webhook)
        changed({"note": "x"}, {"team": "a"})
        assert reviews(webhook) == before
        for annotations, labels in (
            ({names.IPUS: "8"}, {}),
            ({names.IPU: "4"}, {}),
            ({names.IPUS: None}, {}),
            ({names.STATUS: None}, {}),
            ({}, {names.POD_LABEL: None}),
        ):
            with pytest.raises(Forbidden, match="cannot be changed"):
                changed(annotations, labels)
        with pytest.raises(Forbidden, match="only by the controller"):
            changed({names.PARTITION_ID: "tpup-1"})

        with pytest.raises(Forbidden, match="removed by the controller"):
            rehearsal.api.patch(path, {"spec": {"schedulingGates": []}})

        # An update of the status can also change annotations and labels; updates of other subresources cannot.
        ours = {"annotations": {names.IPUS: "8", names.RELEASE: "true"}, "labels": {names.POD_LABEL: None}}
        for key, changes in ours.items():
            for name, value in changes.items():
                with pytest.raises(Forbidden, match=name):
                    rehearsal.api.patch(f"{path}/status", {"metadata": {key: {name: value}}})
        told = rehearsal.api.patch(f"{path}/status", {"metadata": {"annotations": {"note": "y"}}})
        assert told["metadata"]["annotations"]["note"] == "y"
        before_parts = rehearsal.api.get(path)["metadata"]
        resources = {"name": "main", "resources": {"requests": {"cpu": "1m"}}}
        for part, spec in (
            ("ephemeralcontainers", {"ephemeralContainers": [{"name": "look", "image": "i"}]}),
            ("resize", {"containers": [resources]}),
        ):
            with contextlib.suppress(Invalid):
                rehearsal.api.patch(f"{path}/{part}", {"metadata": ours, "spec": spec}, strategic=True)
            found = rehearsal.api.get(path)["metadata"]
            assert {key: found[key] for key in ours} == {key: before_parts[key] for key in ours}, part

        # The controller's own changes of a pod are not sent to the webhook server.
        before = reviews(webhook)
        told = {"annotations": {names.PARTITION_ID: "tpup-1"}}
        body = json.dumps({"metadata": told, "spec": {"schedulingGates": [], "nodeSelector": {"no": "such"}}})
        rehearsal.kubectl(
            *("patch", "pod", "train", f"--namespace={_NAMESPACE}", "--type=merge", f"--patch={body}"),
            *(f"--as={_CONTROLLER}", "--as-group=system:masters"),
        )
        assert reviews(webhook) == before

        # A binding must not set protected annotations or labels, because the API server copies them to the pod.
        target = {"apiVersion": "v1", "kind": "Node", "name": "nowhere"}
        for metadata in ({"annotations": {names.RELEASE: "true"}}, {"labels": {names.POD_LABEL: "x"}}):
            binding = {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "train", **metadata},
                "target": target,
            }
            for where in (f"{path}/binding", collection_path("bindings", namespace=_NAMESPACE)):
                with pytest.raises(Forbidden, match="cannot be set by a Binding"):
                    rehearsal.api.post(where, binding)
        before = reviews(webhook)
        binding = {**binding, "metadata": {"name": "train", "annotations": {"note": "z"}}}
        rehearsal.api.post(f"{path}/binding", binding)
        assert rehearsal.api.get(path)["metadata"]["annotations"]["note"] == "z"
        assert reviews(webhook) == before
        # The node has no kubelet that ends the pod, so the delete of the namespace would wait for the pod for a minute.
        rehearsal.api.delete(f"{path}?gracePeriodSeconds=0")

    tried(rehearsal, pod({}))
    with pytest.raises((ClusterError, RehearsalError), match=r"partitions\.tpu-provisioner"):
        tried(rehearsal, pod())


def test_token_bound_to_a_pod_authenticates_it_to_the_rest_api(rehearsal: Rehearsal) -> None:
    """The API server issues and reviews tokens for an audience, bound to a pod, and valid while the pod exists."""
    api, namespace = rehearsal.api, "ipu-tokens"
    rehearsal.create_namespace(namespace)
    pods = collection_path("pods", namespace=namespace)
    wait_for(
        lambda: rehearsal.objects(collection_path("serviceaccounts", namespace=namespace)),
        what="the ServiceAccount is there",
        seconds=PATIENCE_SECONDS,
    )

    def create(name: str) -> Json:
        raw = pod(schedulingGates=[{"name": names.SCHEDULING_GATE}])
        metadata = {"name": name, "annotations": {names.IPUS: "4", names.STATUS: names.INJECTED}}
        return api.post(pods, {**raw, "metadata": metadata})

    def token(of: Json | None, audience: str = names.AUDIENCE) -> str:
        path = object_path("serviceaccounts", "default", namespace=namespace)
        reference = None
        if of is not None:
            metadata = of["metadata"]
            reference = {"kind": "Pod", "apiVersion": "v1", "name": metadata["name"], "uid": metadata["uid"]}
        found: str = api.post(f"{path}/token", {"spec": {"audiences": [audience], "boundObjectRef": reference}})[
            "status"
        ]["token"]
        return found

    mine, other = create("mine"), create("other")
    record = parse_pod(mine)
    vipu = FakeVipu()
    partition = names.partition_id("cluster", record.uid, SERVER)
    vipu.put(partition, PartitionState.ACTIVE)
    entry = Entry(
        id=partition, namespace=namespace, pod="mine", pod_uid=record.uid, size=4, server=SERVER, recorded_at=NOW
    )
    sources = Sources(
        cluster_uid=lambda: "cluster",
        # The real pods keep their scheduling gate, because no controller runs that would remove it.
        pod=lambda _namespace, name: replace(parse_pod(mine if name == "mine" else other), gated=False, node="host-1"),
        ledger=lambda: Ledger(entries=(entry,)),
        vipu=lambda _address: vipu,
        problems=tuple,
    )
    server = make_rest_server(Address("127.0.0.1", 0), api, sources)
    server.start()
    try:
        ground = Ground()
        [ground.port] = server.ports
        good = token(mine)
        answer = ground.ask(record, good)
        assert (answer.status, answer.json["config"]) == (200, json.loads(CONFIGURATION))
        assert ground.ask(record, token(other)).status == 403
        assert ground.ask(record, token(None)).status == 403
        assert ground.ask(record, token(mine, "https://kubernetes.default.svc")).status == 401
        path = f"{names.ROOT}/{partition}"
        for stranger in (token(other), token(None)):
            assert ground.send("GET", path, stranger).status == 404
        header, _, signature = good.split(".")
        claims = token(other).split(".")[1]
        assert ground.ask(record, f"{header}.{claims}.{signature}").status == 401

        rehearsal.kubectl(
            *("create", "rolebinding", "looks", f"--namespace={namespace}", "--clusterrole=view"),
            f"--serviceaccount={namespace}:default",
        )
        # The API server applies new rights after a delay, and the REST API keeps the results of reviews for 10 s.
        wait_for(
            lambda: ground.send("GET", path, token(None)).status == 200, what="it may look", seconds=PATIENCE_SECONDS
        )
        assert ground.send("DELETE", path, token(None)).status == 404

        assert ground.send("DELETE", path, good).status == 202
        written = api.get(object_path("pods", "mine", namespace=namespace))
        assert parse_pod(written).released
        rehearsal.kubectl("delete", "pod", "mine", f"--namespace={namespace}", "--force", "--grace-period=0")
        wait_for(lambda: ground.ask(record, good).status == 401, what="the token ends", seconds=PATIENCE_SECONDS)
    finally:
        server.stop()
        rehearsal.kubectl("delete", "namespace", namespace, "--wait")
