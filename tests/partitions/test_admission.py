"""Admission of pods that request IPUs: injection, rejections and later changes."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from provisioner.admission.review import Answer, Request
from provisioner.partitions import names
from provisioner.partitions.admission import CONFIG_VOLUME, TOKEN_VOLUME, review_pod
from provisioner.partitions.demand import parse_pod
from provisioner.settings.webhook import WebhookSettings
from tests.support.any_json import spoilt
from tests.support.patches import apply_patch

Json = dict[str, Any]

CONTROLLER = "system:serviceaccount:tpu-provisioner-system:tpu-provisioner-partitions"
COMPATIBLE = WebhookSettings(
    ipu_injection="compatible", ipu_init_image="registry.example/it:1", ipu_api_url="http://partitions.example"
)
LEAST = replace(COMPATIBLE, ipu_injection="least-privilege")
WITH_PLUGIN = replace(LEAST, ipu_init_image="i", ipu_rdma_resource="rdma/hca")
GATE = {"name": names.SCHEDULING_GATE}
_DATA_MOUNT = {"name": "data", "mountPath": "/data"}


def raw_pod(annotations: Json | None = None, *, labels: Json | None = None, **spec: Any) -> Json:
    metadata = {"name": "train", "annotations": {names.IPUS: "4"} if annotations is None else annotations}
    if labels is not None:
        metadata["labels"] = labels
    return {"metadata": metadata, "spec": {"containers": [{"name": "main", "image": "poplar"}], **spec}}


def review(pod: Json, by: WebhookSettings = COMPATIBLE, **parts: Any) -> Answer:
    request = Request(operation="CREATE", kind="Pod", namespace="ml", name="train", object=pod, **parts)
    return review_pod(request, by)


def update(before: Json, after: Json, user: str = "ada", subresource: str = "") -> Answer:
    request = Request(
        operation="UPDATE", kind="Pod", subresource=subresource, namespace="ml", name="train", object=after,
        old_object=before, user=user,
    )  # fmt: skip
    return review_pod(request, COMPATIBLE)


def injected(pod: Json, by: WebhookSettings = COMPATIBLE) -> Json:
    answer = review(pod, by)
    assert not answer.denied
    after: Json = apply_patch(pod, answer.patch)
    return after


def init_of(pod: Json) -> Json:
    (found,) = (container for container in pod["spec"]["initContainers"] if container["name"] == names.INIT_CONTAINER)
    return dict(found)


def main_of(pod: Json) -> Json:
    found: Json = pod["spec"]["containers"][0]
    return found


@pytest.mark.parametrize("mode", [COMPATIBLE, LEAST], ids=["compatible", "least privilege"])
def test_init_container_gets_the_authority_of_the_api_next_to_its_token(mode: WebhookSettings) -> None:
    """The authority is in a ConfigMap of the pod's namespace, whose file the kubelet updates after a change."""
    by = replace(mode, ipu_api_url="https://partitions.example", ipu_api_ca_config_map="bundle")
    pod = injected(raw_pod(), by)
    (token,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == TOKEN_VOLUME]
    assert token["projected"]["sources"][1:] == [
        {"configMap": {"name": "bundle", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    ]
    assert "--ca-file=/var/run/secrets/tpu-provisioner/ca.crt" in init_of(pod)["command"]
    assert TOKEN_VOLUME not in [mount["name"] for mount in main_of(pod).get("volumeMounts", [])]
    assert review(pod, by).patch == ()


def test_compatible_mode_puts_the_init_container_first_and_injects_all_others() -> None:
    after = injected(raw_pod(initContainers=[{"name": "warm"}, {"name": "side", "restartPolicy": "Always"}]))
    first, *others = after["spec"]["initContainers"]
    assert first["name"] == names.INIT_CONTAINER
    assert [other["name"] for other in others] == ["warm", "side"]
    for other in others:
        assert other["securityContext"] == {"privileged": True}
        assert other["volumeMounts"][0]["name"] == CONFIG_VOLUME


SIDECAR = {"name": "proxy", "restartPolicy": "Always"}


@pytest.mark.parametrize(
    ("others", "want"),
    [
        pytest.param([SIDECAR], ["proxy", names.INIT_CONTAINER], id="a sidecar"),
        pytest.param(
            [{"name": "check"}, SIDECAR, {"name": "warm"}],
            ["check", "proxy", names.INIT_CONTAINER, "warm"],
            id="a sidecar among others",
        ),
        pytest.param([{"name": "mesh-init"}], [names.INIT_CONTAINER, "mesh-init"], id="none"),
    ],
)
def test_init_container_follows_sidecars_with_least_privilege(others: list[Json], want: list[str]) -> None:
    """If a mesh redirects all traffic to its sidecar, the REST API cannot be reached before the sidecar runs."""
    after = injected(raw_pod(initContainers=others), LEAST)
    assert [container["name"] for container in after["spec"]["initContainers"]] == want
    assert review(after, LEAST).patch == ()
    # The order is corrected if a later webhook adds its sidecar at the front or at the end.
    for later in ([SIDECAR, *others], [*others, SIDECAR]):
        changed = injected({**after, "spec": {**after["spec"], "initContainers": [*later, init_of(after)]}}, LEAST)
        order = [container["name"] for container in changed["spec"]["initContainers"]]
        assert order[order.index(names.INIT_CONTAINER) - 1] == SIDECAR["name"]


def adding(capability: str) -> Json:
    return {"name": "mesh-init", "securityContext": {"capabilities": {"add": [capability]}}}


@pytest.mark.parametrize("part", ["initContainers", "containers"])
@pytest.mark.parametrize("capability", ["NET_ADMIN", "NET_RAW", "CAP_NET_ADMIN", "net_admin", "ALL"])
def test_pod_is_rejected_if_a_container_could_change_the_network_of_the_node(part: str, capability: str) -> None:
    """A mesh's init container, added before this webhook set hostNetwork, would rewrite the node's iptables."""
    pod = raw_pod(containers=[{"name": "main"}])
    pod["spec"].setdefault(part, []).append(adding(capability))
    denied = review(pod).denied
    assert f"spec.{part}[{len(pod['spec'][part]) - 1}], 'mesh-init', has the capability" in denied
    assert 'sidecar.istio.io/inject: "false"' in denied
    assert review(pod, LEAST).denied == ""


def test_pod_is_rejected_if_a_later_webhook_adds_network_capabilities() -> None:
    """The webhook of a mesh may ignore hostNetwork, regardless of whether the author or this webhook set it."""
    for network in ({}, {"hostNetwork": True}):
        after = injected(raw_pod(**network))
        after["spec"]["initContainers"].append(adding("NET_ADMIN"))
        assert "spec.initContainers[1], 'mesh-init', has the capability NET_ADMIN" in review(after).denied


def test_pod_with_hostnetwork_of_its_author_may_have_network_capabilities() -> None:
    after = injected(raw_pod(hostNetwork=True, initContainers=[adding("NET_ADMIN")]))
    assert review(after) == Answer()


@pytest.mark.parametrize(
    ("container", "want"),
    [
        pytest.param({"env": [{"name": "IPUOF_CONFIG_PATH", "value": "/mine"}]}, None, id="existing variable"),
        pytest.param({"securityContext": {"privileged": False}}, None, id="no privileges"),
        # Privileged containers may not forbid escalation.
        pytest.param({"securityContext": {"allowPrivilegeEscalation": False}}, None, id="no escalation"),
        pytest.param(
            {"securityContext": {"capabilities": {"drop": ["ALL"]}}}, None, id="no capabilities, as sidecars have"
        ),
        pytest.param(
            {"securityContext": {"runAsUser": 7}},
            {"securityContext": {"runAsUser": 7, "privileged": True}},
            id="the rest of a security context",
        ),
        pytest.param(
            {"volumeMounts": [_DATA_MOUNT]},
            {"volumeMounts": [_DATA_MOUNT, {"name": CONFIG_VOLUME, "mountPath": "/etc/graphcore", "readOnly": True}]},
            id="other mounts",
        ),
    ],
)
def test_injection_keeps_fields_that_a_container_sets(container: Json, want: Json | None) -> None:
    after = main_of(injected(raw_pod(containers=[{"name": "main", **container}])))
    assert {key: after[key] for key in container} == (container if want is None else want)


@pytest.mark.parametrize(
    ("policy", "want"), [("ClusterFirst", "ClusterFirstWithHostNet"), ("None", "None"), ("Default", "Default")]
)
def test_injection_keeps_a_dns_policy_other_than_the_default(policy: str, want: str) -> None:
    assert injected(raw_pod(dnsPolicy=policy))["spec"]["dnsPolicy"] == want


@pytest.mark.parametrize(
    ("policy", "url", "want"),
    [
        pytest.param("Default", "http://partitions.ipus.svc", 1, id="the node's DNS does not know Services"),
        pytest.param(
            "None", "https://partitions.ipus.svc.cluster.local:8443", 1, id="own DNS servers may not know them"
        ),
        pytest.param("ClusterFirst", "http://partitions.ipus.svc", 0, id="the cluster's DNS knows them"),
        pytest.param("Default", "http://partitions.example", 0, id="name of no Service"),
    ],
)
def test_pod_whose_dns_may_not_resolve_the_api_gets_a_warning(policy: str, url: str, want: int) -> None:
    """Without a warning, the pod would hold its IPUs and wait on its node, and only its log would have the reason."""
    answer = review(raw_pod(dnsPolicy=policy), replace(COMPATIBLE, ipu_api_url=url))
    assert (answer.denied, len(answer.warnings)) == ("", want)
    assert all("dnsPolicy" in warning for warning in answer.warnings)


def test_pod_with_the_nodes_network_of_its_author_gets_a_warning_unless_the_patch_sets_its_dns() -> None:
    """With hostNetwork, Kubernetes treats the default, ClusterFirst, as Default, which resolves no Services."""
    pod = raw_pod(hostNetwork=True)
    [warning] = review(pod, replace(WITH_PLUGIN, ipu_api_url="")).warnings
    assert "dnsPolicy ClusterFirst and hostNetwork" in warning
    assert not review(pod, replace(COMPATIBLE, ipu_api_url="")).warnings


@pytest.mark.parametrize(
    ("security", "by", "want"),
    [
        ({}, LEAST, 1),
        ({"capabilities": {"add": ["NET_BIND_SERVICE"]}}, LEAST, 1),
        ({"capabilities": {"add": ["CAP_IPC_LOCK"]}}, LEAST, 0),
        ({"privileged": True}, LEAST, 0),
        ({}, WITH_PLUGIN, 0),
        ({}, COMPATIBLE, 0),
    ],
)
def test_pod_without_rdma_gets_a_warning(security: Json, by: WebhookSettings, want: int) -> None:
    """IPUs are reached over RDMA (V-IPU user guide), which needs locked memory. Authors may arrange RDMA themselves."""
    answer = review(raw_pod(containers=[{"name": "main", "securityContext": security}]), by)
    assert (answer.denied, len(answer.warnings)) == ("", want)
    assert all("IPU_RDMA_RESOURCE" in warning for warning in answer.warnings)


@pytest.mark.parametrize("capability", ["IPC_LOCK", "CAP_IPC_LOCK", "ALL"])
def test_existing_capability_is_not_added_again(capability: str) -> None:
    security = {"capabilities": {"add": [capability]}}
    pod = raw_pod(containers=[{"name": "main", "securityContext": security}])
    assert main_of(injected(pod, WITH_PLUGIN))["securityContext"] == security


def test_injection_keeps_other_gates_and_volumes() -> None:
    other = {"name": "kueue.x-k8s.io/admission"}
    data = {"name": "data", "emptyDir": {}}
    spec = injected(raw_pod(schedulingGates=[other], volumes=[data]))["spec"]
    assert spec["schedulingGates"] == [other, GATE]
    assert [volume["name"] for volume in spec["volumes"]] == ["data", TOKEN_VOLUME, CONFIG_VOLUME]


@pytest.mark.parametrize("by", [COMPATIBLE, LEAST, WITH_PLUGIN])
def test_injected_pod_gets_no_patch(by: WebhookSettings) -> None:
    after = injected(raw_pod(), by)
    # Between the two reviews, the API server adds the mount of the pod's own token.
    token = {"name": "kube-api-access-x", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}
    after["spec"]["initContainers"][0]["volumeMounts"].append(token)
    assert replace(review(after, by), warnings=()) == Answer()


def test_init_container_and_volumes_with_reserved_names_are_replaced() -> None:
    sly = raw_pod(
        {names.IPUS: "4", names.STATUS: names.INJECTED},
        labels={names.POD_LABEL: "true"},
        schedulingGates=[GATE],
        initContainers=[{"name": "warm"}, {"name": names.INIT_CONTAINER, "image": "true"}],
        volumes=[{"name": CONFIG_VOLUME, "hostPath": {"path": "/"}}],
    )
    spec = injected(sly)["spec"]
    assert [container["name"] for container in spec["initContainers"]] == [names.INIT_CONTAINER, "warm"]
    assert spec["initContainers"][0]["image"] == COMPATIBLE.ipu_init_image
    assert {"name": CONFIG_VOLUME, "emptyDir": {}} in spec["volumes"]


def test_copy_of_a_running_pod_loses_the_partition_annotations() -> None:
    """`kubectl debug --copy-to` creates a copy with the annotations of the running pod."""
    running = injected(raw_pod())
    running["metadata"]["annotations"] |= {names.PARTITION_ID: "tpup-1", names.RELEASE: "true"}
    running["spec"]["schedulingGates"] = []
    answer = review(running)
    after = apply_patch(running, answer.patch)
    assert after["metadata"]["annotations"] == {names.IPUS: "4", names.STATUS: names.INJECTED}
    assert after["spec"]["schedulingGates"] == [GATE]
    assert [warning.split(" ")[4] for warning in answer.warnings] == [names.PARTITION_ID, names.RELEASE]


@pytest.mark.parametrize(
    ("pod", "want"),
    [
        pytest.param(raw_pod({names.IPUS: "128"}), "the largest partition that is served has 64", id="too many"),
        pytest.param(raw_pod({names.STATUS: "injected"}), "asks for no IPUs; leave it out", id="injected, but no size"),
        pytest.param(
            {**raw_pod(), "metadata": {**raw_pod()["metadata"], "ownerReferences": [{"kind": "DaemonSet"}]}},
            "it belongs to a DaemonSet",
            id="a DaemonSet",
        ),
        pytest.param(raw_pod(os={"name": "windows"}), "IPUs are used on Linux", id="Windows"),
        pytest.param(raw_pod(hostUsers=False), "spec.hostUsers is false", id="a user namespace"),
        pytest.param(raw_pod(containers=[{"name": names.INIT_CONTAINER}]), "rename it", id="reserved container name"),
        pytest.param(
            raw_pod(containers=[{"name": "m", "volumeMounts": [{"name": "x", "mountPath": "/etc/graphcore/"}]}]),
            "spec.containers[0] mounts the volume 'x' at /etc/graphcore",
            id="reserved path",
        ),
        pytest.param(
            raw_pod(containers=[{"name": "m", "ports": [{"containerPort": 80, "hostPort": 8080}]}]),
            "spec.containers[0] has containerPort 80 with hostPort 8080",
            id="a host port",
        ),
        pytest.param(
            raw_pod(containers=[{"name": name, "ports": [{"containerPort": 80}]} for name in "ab"]),
            "2 of its containers have the port 80 (TCP)",
            id="one port twice",
        ),
        pytest.param(
            raw_pod(initContainers=[{}], containers=[{}] * 256), "it has 257 containers", id="too many containers"
        ),
    ],
)
def test_pod_that_cannot_use_ipus_is_rejected_with_the_reason(pod: Json, want: str) -> None:
    answer = review(pod)
    assert answer.denied.startswith("Pod ml/train")
    assert want in answer.denied
    assert answer.patch == ()


def test_rejection_of_a_pod_with_thousands_of_conflicts_is_short() -> None:
    mounts = [{"name": "x", "mountPath": "/etc/graphcore"}] * 10_000
    assert len(review(raw_pod(containers=[{"name": "m", "volumeMounts": mounts}])).denied) < 2_000


class _Counted(dict[str, Any]):
    """A mapping that counts its comparisons."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        _Counted.compared += 1
        return super().__eq__(other)

    __hash__ = None  # type: ignore[assignment]


@pytest.mark.parametrize("by", [COMPATIBLE, LEAST], ids=["compatible", "least privilege"])
def test_number_of_comparisons_is_linear_in_the_number_of_mounts(by: WebhookSettings) -> None:
    """With a quadratic number of comparisons, one pod would block other reviews for minutes."""
    mounts = [_Counted(name="x", mountPath=f"/{number}") for number in range(500)]
    _Counted.compared = 0
    assert not review(raw_pod(containers=[{"name": "m", "volumeMounts": mounts}]), by).denied
    assert _Counted.compared <= 2 * len(mounts)


def test_ports_that_differ_or_are_used_at_other_times_do_not_conflict() -> None:
    containers = [
        {"name": "a", "ports": [{"containerPort": 80, "hostPort": 80}, {"containerPort": 81}]},
        {"name": "b", "ports": [{"containerPort": 80, "protocol": "UDP"}]},
    ]
    # The init container ends before the other containers start, so its port is free again.
    pod = raw_pod(containers=containers, initContainers=[{"name": "c", "ports": [{"containerPort": 80}]}])
    assert not review(pod).denied


def test_least_privilege_mode_allows_host_ports_and_user_namespaces() -> None:
    ports = [{"containerPort": 80, "hostPort": 8080}]
    assert not review(raw_pod(containers=[{"name": "m", "ports": ports}], hostUsers=False), LEAST).denied


@pytest.mark.parametrize("size", ["4", "three"])
def test_static_pod_is_admitted_with_a_warning_and_without_a_patch(size: str) -> None:
    answer = review(raw_pod({names.IPUS: size, "kubernetes.io/config.mirror": "x"}, nodeName="host-1"))
    assert (answer.denied, answer.patch) == ("", ())
    assert "is a static pod" in answer.warnings[0]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(Request(operation="CREATE", kind="Pod", namespace="ml", object={"spec": {}}), id="no metadata"),
        pytest.param(
            Request(
                operation="CREATE", kind="Pod", subresource="ephemeralcontainers", object=raw_pod({names.IPUS: "3"})
            ),
            id="subresource without metadata",
        ),
        pytest.param(Request(operation="DELETE", kind="Pod", namespace="ml"), id="another operation"),
    ],
)
def test_request_that_does_not_concern_ipus_is_admitted_unchanged(request_: Request) -> None:
    assert review_pod(request_, COMPATIBLE) == Answer()


RUNNING = raw_pod({names.IPUS: "4", names.STATUS: names.INJECTED}, labels={names.POD_LABEL: "true"})
PLAIN = raw_pod({}, labels={})


_AT_BOTH_PATHS = pytest.mark.parametrize("subresource", ["", "status"], ids=["pod", "status"])


def with_annotation(pod: Json, key: str, value: str | None) -> Json:
    changed = copy.deepcopy(pod)
    if value is None:
        del changed["metadata"]["annotations"][key]
    else:
        changed["metadata"]["annotations"][key] = value
    return changed


@pytest.mark.parametrize(
    ("before", "after", "want"),
    [
        pytest.param(RUNNING, with_annotation(RUNNING, names.IPUS, None), "cannot be changed", id="size removed"),
        pytest.param(RUNNING, with_annotation(RUNNING, names.IPU, "8"), "cannot be changed", id="a second size"),
        pytest.param(RUNNING, with_annotation(RUNNING, names.STATUS, "no"), "cannot be changed", id="the status"),
        pytest.param(
            RUNNING,
            {**RUNNING, "metadata": {**RUNNING["metadata"], "labels": {}}},
            "graphcore.ai/pod cannot be changed",
            id="the label",
        ),
        pytest.param(
            PLAIN, with_annotation(PLAIN, names.IPUS, "4"), "is read only when a pod is created", id="a size, too late"
        ),
        pytest.param(
            PLAIN, with_annotation(PLAIN, names.STATUS, "injected"), "is read only when", id="a status, too late"
        ),
        pytest.param(
            RUNNING,
            with_annotation(RUNNING, names.RELEASE, "true"),
            "only by the controller; to give the partition back early, send DELETE to the REST API",
            id="a release",
        ),
    ],
)
@_AT_BOTH_PATHS
def test_change_of_a_protected_annotation_or_label_is_rejected(
    before: Json, after: Json, want: str, subresource: str
) -> None:
    """A status update also changes annotations and labels."""
    assert want in update(before, after, subresource=subresource).denied


@pytest.mark.parametrize(
    ("before", "after", "user"),
    [
        pytest.param(RUNNING, with_annotation(RUNNING, "note", "x"), "ada", id="something else"),
        pytest.param(
            raw_pod(labels={}),
            with_annotation(raw_pod(labels={}), names.IPUS, None),
            "ada",
            id="size removed from a pod without injection",
        ),
        pytest.param(
            RUNNING, with_annotation(RUNNING, names.RELEASE, "true"), CONTROLLER, id="release by the controller"
        ),
    ],
)
@_AT_BOTH_PATHS
def test_change_of_other_annotations_or_by_the_controller_is_admitted(
    before: Json, after: Json, user: str, subresource: str
) -> None:
    assert update(before, after, user, subresource) == Answer()


GATED = raw_pod({names.IPUS: "4", names.STATUS: names.INJECTED}, labels={}, schedulingGates=[{"name": "x"}, GATE])
OPENED = {**GATED, "spec": {**GATED["spec"], "schedulingGates": [{"name": "x"}]}}
HELD = {**GATED, "spec": {**GATED["spec"], "schedulingGates": [GATE]}}


def test_gate_can_be_removed_only_by_the_controller() -> None:
    assert "is removed by the controller" in update(GATED, OPENED).denied
    assert update(GATED, OPENED, CONTROLLER) == Answer()
    # The webhook does not protect gates of other controllers.
    assert update(GATED, HELD) == Answer()
    assert update(OPENED, OPENED) == Answer()
    # A status update does not change the spec.
    assert update(GATED, OPENED, subresource="status") == Answer()


@pytest.mark.parametrize(
    ("metadata", "want"),
    [
        pytest.param({"annotations": {names.RELEASE: "true"}}, names.RELEASE, id="a release"),
        pytest.param({"annotations": {names.IPUS: "8"}}, names.IPUS, id="a size"),
        pytest.param({"annotations": {names.STATUS: "injected"}}, names.STATUS, id="the status"),
        pytest.param({"labels": {names.POD_LABEL: "true"}}, names.POD_LABEL, id="the label"),
        pytest.param({"annotations": {"note": "x"}, "labels": {"zone": "a"}}, "", id="something else"),
        pytest.param({}, "", id="nothing"),
        pytest.param({"annotations": [names.IPUS], "labels": 3}, "", id="invalid metadata"),
    ],
)
@pytest.mark.parametrize("subresource", ["binding", ""])
def test_binding_with_protected_annotations_or_labels_is_rejected(metadata: Json, want: str, subresource: str) -> None:
    """The API server copies the metadata of a binding to the pod, and accepts bindings at two paths."""
    binding = {"metadata": {"name": "train", **metadata}, "target": {"name": "node"}}
    request = Request(operation="CREATE", kind="Binding", subresource=subresource, namespace="ml", object=binding)
    denied = review_pod(request, COMPATIBLE).denied
    assert (want in denied and "Pod ml/train" in denied) if want else denied == ""


_CONTAINER = {
    "name": "main",
    "image": "poplar",
    "volumeMounts": [_DATA_MOUNT],
    "env": [{"name": "IPUOF_CONFIG_PATH", "value": "/mine"}],
    "ports": [{"containerPort": 80}],
    "securityContext": {"capabilities": {"add": ["IPC_LOCK"]}},
    "resources": {"limits": {"rdma/hca": "1"}},
}
#: Spec in which the webhook reads each part.
_SPEC = {
    "containers": [_CONTAINER],
    "initContainers": [{**_CONTAINER, "name": "warm"}],
    "hostNetwork": False,
    "volumes": [{"name": CONFIG_VOLUME, "emptyDir": {}}],
    "schedulingGates": [GATE],
    "dnsPolicy": "ClusterFirst",
}


@given(data=st.data(), by=st.sampled_from([COMPATIBLE, LEAST, WITH_PLUGIN]))
def test_any_pod_gets_a_valid_patch_that_a_second_review_keeps(data: st.DataObject, by: WebhookSettings) -> None:
    metadata = spoilt(data, {**RUNNING["metadata"], "ownerReferences": [{"kind": "Job"}]})
    if isinstance(metadata["annotations"], dict):
        metadata["annotations"] = {**metadata["annotations"], names.IPUS: "4"}
    pod = {"metadata": metadata, "spec": spoilt(data, _SPEC)}
    answer = review(pod, by)
    after = apply_patch(pod, answer.patch)
    json.dumps(after)
    if answer.patch:
        assert GATE in after["spec"]["schedulingGates"]
        assert after["spec"]["initContainers"][0]["name"] == names.INIT_CONTAINER
        assert review(after, by).patch == ()


@given(st.data())
def test_any_change_is_answered_without_a_patch(data: st.DataObject) -> None:
    before, after = (spoilt(data, RUNNING["metadata"]) for _ in range(2))
    assert update({"metadata": before}, {"metadata": after}).patch == ()


@pytest.mark.parametrize("by", [COMPATIBLE, WITH_PLUGIN], ids=["compatible", "least privilege"])
def test_example_job_is_injected_without_warnings(by: WebhookSettings) -> None:
    template = yaml.safe_load(Path("examples/partitions/job.yaml").read_text(encoding="utf-8"))["spec"]["template"]
    answer = review(template, by)
    assert (answer.denied, answer.warnings) == ("", ())
    identity = {"namespace": "ml", "name": "train", "uid": "u"}
    after = apply_patch(template, answer.patch)
    pod = parse_pod({**after, "metadata": {**after["metadata"], **identity}})
    assert (pod.size, pod.gated, pod.injected, pod.problem) == (4, True, True, "")
    assert pod.active_deadline_seconds == 3600.0
