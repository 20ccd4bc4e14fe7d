"""The snapshot of a decision has only the needed objects and fields, and is not used while it is incomplete."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from provisioner.kube.errors import Forbidden, Unavailable
from provisioner.kube.protocol import collection_path
from provisioner.kube.reflector import WatchOptions
from provisioner.nodegroups.api import names
from provisioner.nodegroups.api.types import Kind
from provisioner.nodegroups.bootstrap import tokens
from provisioner.nodegroups.device_plugin import manifest
from provisioner.nodegroups.observe import ClusterReader, Watches, ca_hash_of, make_watches, not_synced, take_snapshot
from provisioner.nodegroups.planning.round import Cluster, Snapshot
from provisioner.nodegroups.reading import API_ROOT
from tests.support.clock import FakeClock
from tests.support.nodegroup_world import (
    GROUP,
    LABELS,
    GroupKube,
    certificate,
    encoded,
    kind_path,
    raw_kind,
    raw_pod_on,
    raw_request,
)

TOLERATION = {"key": "google.com/tpu", "operator": "Exists"}
SECRETS, PODS = "/api/v1/namespaces/kube-system/secrets", "/api/v1/pods"
REQUESTS = collection_path("certificatesigningrequests", root=tokens.CERTIFICATES_ROOT)


class World:
    """Watches that are stepped by the test, and a reader of the cluster."""

    def __init__(self) -> None:
        self.kube, self.clock = GroupKube(), FakeClock()
        self.changes = 0
        options = WatchOptions(clock=self.clock)
        self.watches: Watches = make_watches(self.kube, self._changed, options=options)
        self.reader = ClusterReader(api=self.kube, clock=self.clock.now)
        self.kube.put_cluster()

    def _changed(self) -> None:
        self.changes += 1

    def step(self, *only: str) -> None:
        for name, watch in self.watches.named().items():
            if not only or name in only:
                watch.step()  # type: ignore[attr-defined]

    def play(self, name: str, *lines: dict[str, Any]) -> None:
        watch = self.watches.named()[name]
        self.kube.script(watch.path, *lines)  # type: ignore[attr-defined]
        watch.step()  # type: ignore[attr-defined]

    def snapshot(self) -> Snapshot:
        return take_snapshot(self.watches, self.reader, frozenset({"a call"}))

    def list_queries(self, collection: str) -> list[dict[str, str]]:
        """Return the queries of all lists of a collection."""
        return [call.query for call in self.kube.calls if (call.method, call.path) == ("GET", collection)]

    def put_secret(self, name: str = "bootstrap-token-abcdef", **changes: Any) -> None:
        raw = tokens.secret_of(
            "abcdef.0123456789abcdef", group=LABELS, machine="m-0", machine_id="17", expires_at=self.clock.now()
        )
        metadata = {**raw["metadata"], "name": name, **changes.pop("metadata", {})}
        self.kube.put_object(f"{SECRETS}/{name}", {**encoded(raw), **changes, "metadata": metadata})


@pytest.fixture
def world() -> World:
    return World()


def event(kind: str, raw: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": raw}


def test_snapshot_has_all_objects_of_a_group_and_no_other_node(world: World) -> None:
    for kind in Kind:
        world.kube.put_object(kind_path(kind), raw_kind(kind))
    world.kube.put_node()
    world.kube.put_node("other", labels={}, spec={"providerID": "kind://x"})
    world.kube.put_pod()
    world.put_secret()
    made = manifest("p")
    world.kube.put_object("/apis/apps/v1/namespaces/kube-system/daemonsets/tpu-device-plugin", made)
    world.step()
    world.reader.read()
    seen = world.snapshot()
    assert seen.not_synced == ()
    found = [*seen.groups, *seen.policies, *seen.templates, *seen.managers]
    assert [record.meta.name for record in found] == [GROUP] * 4
    assert [node.name for node in seen.nodes] == ["m-0"]
    assert [pod.name for pod in seen.pods] == ["train-0"]
    assert [token.value for token in seen.tokens] == ["abcdef.0123456789abcdef"]
    assert seen.device_plugin is not None
    assert (seen.cluster.uid, seen.live) == ("cluster-uid", {"a call"})


def test_snapshot_has_open_requests_of_kubelets_with_own_tokens(world: World) -> None:
    """Other requests are filtered out, because each rotation of a node's certificate creates one."""
    world.kube.put_object(f"{REQUESTS}/mine", raw_request("m-0", name="mine"))
    world.kube.put_object(f"{REQUESTS}/approved", raw_request("m-0", name="approved", status={"conditions": [{}]}))
    world.step()
    world.reader.read()
    assert [(request.name, request.token, request.node) for request in world.snapshot().requests] == [
        ("mine", "bootstrap-token-abcdef", "m-0")
    ]


def test_requests_of_one_token_are_limited_and_leave_room_for_other_tokens(world: World) -> None:
    """Otherwise a machine could fill the memory with 200,000 requests, which Kubernetes keeps for a day."""
    most = 16
    for number in range(2 * most):
        world.kube.put_object(f"{REQUESTS}/a-{number:02}", raw_request("m-0", name=f"a-{number:02}"))
    world.step()
    sent = [raw_request("m-0", f"b-{number:02}") for number in range(most)]
    sent.append(raw_request("m-1", "other", spec={"username": "system:bootstrap:ghijkl"}))
    world.play("certificatesigningrequests", *(event("ADDED", raw) for raw in sent))
    found = [request.name for request in world.snapshot().requests]
    assert found == [*(f"a-{number:02}" for number in range(most)), "other"]


def test_only_secrets_with_tokens_of_groups_are_listed(world: World) -> None:
    """Otherwise the memory of this process would contain other Secrets."""
    world.put_secret()
    world.put_secret("unlabelled", metadata={"labels": {}})
    world.put_secret("half-labelled", metadata={"labels": {names.GROUP_NAME: GROUP}})
    world.put_secret("bootstrap-token-ghijkl", type="Opaque")
    world.step()
    assert [key for _, key in world.watches.tokens.records()] == ["bootstrap-token-abcdef"]


@pytest.mark.parametrize(
    ("parts", "kept"),
    [
        pytest.param({}, True, id="one with chips"),
        pytest.param(
            {"chips": 0, "spec": {"tolerations": [TOLERATION]}}, True, id="one that is let on nodes with TPUs"
        ),
        pytest.param({"chips": 0}, True, id="one that is on a node of a group all the same"),
        pytest.param({"chips": 0, "node": "elsewhere"}, False, id="one on another node"),
        pytest.param({"chips": 0, "node": "unlabelled"}, False, id="one on a machine of no group"),
        pytest.param({"node": ""}, False, id="one that is not bound"),
        pytest.param({"status": {"phase": "Succeeded"}}, False, id="one that has ended"),
        pytest.param({"metadata": {"labels": {"pod-template-generation": "1"}}}, False, id="one of a DaemonSet"),
        pytest.param(
            {"metadata": {"ownerReferences": [{"kind": "DaemonSet", "controller": True}]}},
            False,
            id="one of a DaemonSet without the label",
        ),
    ],
)
def test_pod_is_kept_only_if_it_may_keep_a_tpu_node(world: World, parts: dict[str, Any], kept: bool) -> None:
    """A pod of a DaemonSet ends with its node, so it keeps no node."""
    world.kube.put_node()
    world.kube.put_node("unlabelled", labels={})
    world.kube.put_pod(**{"node": "m-0", **parts})
    world.step()
    assert bool(world.watches.pods.records()) is kept


def test_pod_that_is_seen_before_its_node_is_kept(world: World) -> None:
    """Otherwise the pod would be missing in snapshots until it changes."""
    world.kube.put_node()
    world.kube.put_pod(chips=0)
    world.kube.put_pod("elsewhere", "other", chips=0)
    world.step("pods")
    assert {pod.name for pod in world.snapshot().pods} == {"train-0", "other"}
    world.step("nodes")
    world.play("pods", event("MODIFIED", raw_pod_on("elsewhere", "other", chips=0)))
    assert {pod.name for pod in world.snapshot().pods} == {"train-0"}


@pytest.mark.parametrize(
    ("before", "after", "relisted"),
    [
        pytest.param({"labels": {}}, {}, True, id="a node that gets the labels after pods"),
        pytest.param(
            None, {"spec": {"taints": []}}, True, id="a node that is new, with the labels and without the taint"
        ),
        pytest.param(None, {}, False, id="a node that is new, with labels and taint"),
        pytest.param({}, {"unschedulable": True}, False, id="a node that had the labels"),
        pytest.param({"labels": {}}, {"labels": {}}, False, id="a node of no group"),
    ],
)
def test_pods_are_listed_again_when_their_node_gets_labels(
    world: World, before: dict[str, Any] | None, after: dict[str, Any], relisted: bool
) -> None:
    """The pods do not change, so the watch does not send them again."""
    if before is not None:
        world.kube.put_node(**before)
    world.step("nodes")
    world.kube.put_pod(chips=0)
    world.step("pods")
    world.play("nodes", event("MODIFIED", world.kube.put_node(**after)))
    world.kube.script(world.watches.pods.path)  # type: ignore[attr-defined]
    listed = len(world.list_queries(PODS))
    world.step("pods")
    assert len(world.list_queries(PODS)) - listed == relisted
    labelled = "labels" not in (before if before is not None else {"labels": {}}) or relisted
    assert bool(world.watches.pods.records()) is labelled


@pytest.mark.parametrize(
    ("collection", "labels", "fields"),
    [
        # In a large cluster, most pods belong to DaemonSets.
        (PODS, "!pod-template-generation", "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"),
        (SECRETS, f"{names.GROUP_NAMESPACE},{names.GROUP_NAME}", "type=bootstrap.kubernetes.io/token"),
        (REQUESTS, None, "spec.signerName=kubernetes.io/kube-apiserver-client-kubelet"),
    ],
)
def test_list_selects_only_needed_objects(world: World, collection: str, labels: str | None, fields: str) -> None:
    world.step()
    (query,) = world.list_queries(collection)
    assert (query.get("labelSelector"), query["fieldSelector"]) == (labels, fields)


def test_report_of_a_kubelet_updates_the_version_without_waking_the_loop(world: World) -> None:
    """Thousands of nodes report every few minutes, and the API server rejects a patch with an outdated version."""
    raw = world.kube.put_node()
    world.step()
    world.changes = 0
    later = {**raw, "metadata": {**raw["metadata"], "resourceVersion": "999"}}
    world.play("nodes", event("MODIFIED", later))
    (node,) = world.snapshot().nodes
    assert (world.changes, node.resource_version) == (0, "999")
    world.play("nodes", event("MODIFIED", {**later, "spec": {**later["spec"], "unschedulable": False}}))
    (node,) = world.snapshot().nodes
    assert (world.changes, node.unschedulable) == (1, False)


def test_snapshot_is_not_synced_before_all_kinds_are_listed(world: World) -> None:
    assert len(not_synced(world.watches)) == 9
    world.step("nodes", "pods", "secrets", "certificatesigningrequests", "daemonsets")
    assert not_synced(world.watches) == tuple(f"the {kind.plural} are not listed yet" for kind in Kind)


def test_crds_that_are_installed_later_are_found(world: World) -> None:
    world.kube.uninstall(API_ROOT)
    world.step()
    world.reader.read()
    reasons = world.snapshot().not_synced
    assert len(reasons) == 4
    assert all("404" in reason and "install the definitions of node groups" in reason for reason in reasons)
    world.kube.install(API_ROOT)
    world.step(*(kind.plural for kind in Kind))
    assert world.snapshot().not_synced == ()


def test_facts_for_machines_are_read_from_the_cluster(world: World) -> None:
    pem = certificate()
    world.kube.put_cluster(pem)
    world.reader.read()
    assert world.reader.cluster == Cluster(
        uid="cluster-uid",
        ca_hash=ca_hash_of({"data": {"ca.crt": pem}}),
        api_server="10.0.0.2:6443",
        kubernetes_version="1.31",
    )


def test_version_in_the_settings_overrides_that_of_the_cluster(world: World) -> None:
    world.reader.kubernetes_version = "1.30"
    world.reader.read()
    assert world.reader.cluster is not None
    assert world.reader.cluster.kubernetes_version == "1.30"
    assert not any(call.path == "/version" for call in world.kube.calls)


@pytest.mark.parametrize("path", ["/namespaces/kube-system$", "/kube-root-ca.crt", "/cluster-info", "/version"])
def test_cluster_that_cannot_be_read_is_read_again_after_growing_pauses(world: World, path: str) -> None:
    world.step()
    world.kube.fail("GET", path, Unavailable("no answer"), times=8)
    pauses = []
    for _ in range(8):
        world.reader.read()
        pauses.append(world.reader.due_in_seconds(world.clock.now()))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60]
    assert world.snapshot().not_synced == ("what machines have to know of the cluster cannot be read: no answer",)
    world.reader.read()
    assert (world.snapshot().not_synced, world.reader.due_in_seconds(world.clock.now())) == ((), 600)


def test_facts_of_the_cluster_are_kept_while_it_cannot_be_read(world: World) -> None:
    """An upgrade of the cluster is noticed with the next read, within 10 minutes."""
    world.reader.read()
    before = world.reader.cluster
    world.clock.advance(600)
    assert world.reader.due_in_seconds(world.clock.now()) <= 0
    world.kube.fail("GET", "/version", Forbidden("no"))
    world.reader.read()
    assert (world.reader.cluster, world.reader.doubt()) == (before, "")
    world.reader.read()
    assert world.reader.cluster is before
    world.kube.put_object("/version", {"gitVersion": "v1.32.0"})
    world.reader.read()
    assert world.reader.cluster is not None
    assert world.reader.cluster.kubernetes_version == "1.32"


def test_clock_that_is_set_back_does_not_delay_the_next_read(world: World) -> None:
    world.reader.read()
    assert world.reader.due_in_seconds(world.clock.now() - timedelta(hours=2)) <= 0
