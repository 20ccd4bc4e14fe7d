"""Tests of the table of node settings: settings, annotations, their bounds, and the sharing of pools."""

from __future__ import annotations

from typing import Any

import pytest

from provisioner import constants
from provisioner.model.capacity import CapacityKind, NodePool, NodePoolRequest, Taint, expected_pool
from provisioner.model.choices import CapacityChoice
from provisioner.model.workloads import Toleration
from provisioner.settings import OPTIONS, SettingsError, node_fields, read_settings, warnings_about_environment
from provisioner.slices.supplier import ImpossibleError, UnmeetableError
from provisioner.slices.suppliers.gke.rules import GKE_RULES
from provisioner.slices.suppliers.gke.translate import create_request_json
from tests.support.models import make_jobset, make_requirements, pool_request, slice_of
from tests.support.settings import REQUIRED
from tests.support.world import World

PREFIX = constants.NODE_SETTING_PREFIX
V6E = {"accelerator": "tpu-v6e-slice", "topology": "2x2", "chips": 4, "parallelism": 1}
#: A valid value of each annotation, on a single host of TPU v6e.
VALUES = {
    "node-disk-size": "500",
    "node-disk-type": "hyperdisk-balanced",
    "node-image-type": "ubuntu_containerd",
    "node-kubelet-config": "podPidsLimit=4096",
    "node-labels": "example.com/a=b",
    "node-linux-config": "hugepages-2Mi=1024",
    "node-max-run-duration": "48h",
    "node-pod-range": "pods-2",
    "node-private": "on",
    "node-sandbox": "gvisor",
    "node-tags": "allow-nfs",
    "node-taints": "team=a:NoSchedule",
}


def request_of(
    environment: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
    kind: CapacityKind = CapacityKind.ON_DEMAND,
    **asked: Any,
) -> NodePoolRequest:
    """Return the node pool request for a slice; the keys of `annotations` are written without the domain."""
    keys = {f"{PREFIX.removesuffix('node-')}{name}": value for name, value in (annotations or {}).items()}
    everything = (Toleration(operator="Exists"),)
    slice_ = slice_of(**{"annotations": keys, "tolerations": everything, **V6E, **asked})
    choice = CapacityChoice(kind=kind, zone=read_settings(REQUIRED).zone)
    return pool_request(slice_, read_settings(REQUIRED | (environment or {})), 0, choice)


def body_of(request: NodePoolRequest) -> dict[str, Any]:
    body: dict[str, Any] = create_request_json("", request)["nodePool"]
    return body


def test_each_annotation_that_can_be_allowed_has_a_value_here() -> None:
    names = {key.rpartition("/")[2] for key in node_fields.NODE_SETTING_KEYS}
    assert VALUES.keys() == names, "VALUES, which other tests use, needs one valid value of each annotation"


@pytest.mark.parametrize(("name", "value"), VALUES.items())
def test_annotation_is_rejected_until_the_administrator_allows_it(name: str, value: str) -> None:
    with pytest.raises(UnmeetableError, match="is not among ALLOWED_NODE_SETTINGS") as caught:
        request_of({}, {name: value})
    assert f"{name}=" in str(caught.value)
    with pytest.raises(UnmeetableError, match="is not among ALLOWED_NODE_SETTINGS"):
        request_of({"ALLOWED_NODE_SETTINGS": f"{name}=other, node-labels=x"}, {name: value})
    assert request_of({"ALLOWED_NODE_SETTINGS": f"{name}={value}"}, {name: value}).own_inputs


@pytest.mark.parametrize(
    ("of_pods", "size"),
    [pytest.param({}, 400, id="the workload's"), pytest.param({"node-disk-size": "300"}, 300, id="the pod's")],
)
def test_annotation_of_the_workload_applies_unless_the_pods_have_it(of_pods: dict[str, str], size: int) -> None:
    keys = [{f"{PREFIX}disk-size": value for value in chosen} for chosen in (["400"], of_pods.values())]
    workload = make_jobset(annotations=keys[0], template=make_requirements(annotations=keys[1]))
    world = World(workload, settings_=read_settings(REQUIRED | {"ALLOWED_NODE_SETTINGS": "node-disk-size=400"}))
    (create,) = world.step().creates
    assert node_fields.boot_disk_gb(create.request.node) == size


@pytest.mark.parametrize(
    ("allowed", "annotation", "accepted"),
    [
        pytest.param("node-disk-size=500", "499", True, id="a smaller number"),
        pytest.param("node-disk-size=500", "501", False, id="a larger number"),
        pytest.param("node-disk-size=500", "4999", False, id="a number with the same beginning"),
        pytest.param("node-tags=allow-*", "allow-a, allow-b", True, id="two entries with an allowed beginning"),
        pytest.param("node-tags=allow-*", "allow-a, deny", False, id="one entry with another beginning"),
        pytest.param("node-labels=team=*", "team=x", True, id="any value of one key"),
        pytest.param("node-labels=team=*", "teams=x", False, id="another key"),
        pytest.param("none", "team=x", False, id="none"),
    ],
)
def test_allowed_values_bound_the_annotation(allowed: str, annotation: str, *, accepted: bool) -> None:
    name = allowed.partition("=")[0] if allowed != "none" else "node-labels"
    if accepted:
        request_of({"ALLOWED_NODE_SETTINGS": allowed}, {name: annotation})
    else:
        with pytest.raises(UnmeetableError, match="ALLOWED_NODE_SETTINGS"):
            request_of({"ALLOWED_NODE_SETTINGS": allowed}, {name: annotation})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("node-disk-size", "9", "from 10 to 65536"),
        ("node-disk-size", "1e3", "from 10 to 65536"),
        ("node-image-type", "windows", "cos_containerd"),
        ("node-kubelet-config", "podPidLimit=4096", "did you mean podPidsLimit"),
        ("node-kubelet-config", "podPidsLimit=1", "from 1024"),
        ("node-linux-config", "kernel.core_pattern=|/bin/sh", "may not be set"),
        ("node-linux-config", "vm.swappiness=10; x", "a number"),
        ("node-labels", "google.com/tpu-provisioner-attempt=1", "Google, Kubernetes or the provisioner"),
        ("node-labels", f"{constants.SLICE}=x", "Google, Kubernetes or the provisioner"),
        ("node-labels", f"{constants.COMPUTE_CLASS}=x", "Google, Kubernetes or the provisioner"),
        ("node-labels", "cloud.google.com/gke-nodepool=x", "Google, Kubernetes or the provisioner"),
        ("node-labels", "a=b, a=c", "new name"),
        ("node-taints", "google.com/tpu=x:NoSchedule", "Google, Kubernetes or the provisioner"),
        ("node-taints", "a=b", "key=value:NoSchedule"),
        ("node-tags", ", ".join(f"t{number}" for number in range(65)), "65"),
        ("node-labels", ", ".join(f"t{number}=a" for number in range(65)), "65 entries"),
        ("node-max-run-duration", "9m", "from 10m to 2880h"),
        ("node-max-run-duration", "2881h", "from 10m to 2880h"),
        ("node-pod-range", "projects/other/x", "secondary range"),
        ("node-private", "maybe", "auto, on, off"),
        ("node-sandbox", "none", "gvisor"),
    ],
)
def test_invalid_annotation_is_rejected_with_its_key(name: str, value: str, words: str) -> None:
    with pytest.raises(ImpossibleError, match=words) as caught:
        request_of({"ALLOWED_NODE_SETTINGS": name}, {name: value})
    assert name in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("GCP_NODE_DISK_SIZE", "9", "from 10"),
        ("GCP_NODE_LABELS", "kubernetes.io/x=y", "Google, Kubernetes or the provisioner"),
        ("GCP_NODE_LABELS", "cloud.google.com/gke-node-autoprovisioned=true", "Google, Kubernetes or the provisioner"),
        ("GCP_NODE_TAINTS", "a=b:Never", "key=value:NoSchedule"),
        ("GCP_NODE_RESOURCE_LABELS", "Team=a", "keys begin"),
        ("GCP_NODE_RESOURCE_LABELS", "goog-x=a", "keys begin"),
        ("GCP_NODE_RESOURCE_LABELS", "team={owner}", "keys begin"),
        ("GCP_NODE_LINUX_CONFIG", "hugepages-2M=1", "did you mean hugepages-2Mi"),
        ("ALLOWED_NODE_SETTINGS", "node-disk-sise", "did you mean node-disk-size"),
    ],
)
def test_invalid_setting_is_rejected_at_start(variable: str, value: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        read_settings(REQUIRED | {variable: value})


def test_entries_of_the_administrator_take_precedence_over_entries_of_workloads() -> None:
    environment = {
        "GCP_NODE_LABELS": f"team=ops, {constants.COMPUTE_CLASS}=tpu",
        "GCP_NODE_TAINTS": "team=ops:NoSchedule",
        "GCP_NODE_TAGS": "t1",
        "GCP_NODE_KUBELET_CONFIG": "podPidsLimit=4096",
        "ALLOWED_NODE_SETTINGS": "node-labels, node-taints, node-tags, node-kubelet-config",
    }
    made = request_of(
        environment,
        {
            "node-labels": "team=me, a=b",
            "node-taints": "team=me:NoSchedule, a=b:NoSchedule",
            "node-tags": "t2",
            "node-kubelet-config": "podPidsLimit=9999, cpuManagerPolicy=static",
        },
    )
    assert {key: made.labels[key] for key in ("team", "a", constants.COMPUTE_CLASS)} == {
        "team": "ops",
        "a": "b",
        constants.COMPUTE_CLASS: "tpu",
    }
    assert made.taints == (Taint(key="team", value="ops"), Taint(key="a", value="b"))
    assert body_of(made)["config"]["tags"] == ["t1", "t2"]
    assert body_of(made)["config"]["kubeletConfig"] == {"podPidsLimit": 4096, "cpuManagerPolicy": "static"}


def test_pod_may_select_a_label_of_the_administrator_that_it_could_not_set() -> None:
    environment = {"GCP_NODE_LABELS": "env=prod", "ALLOWED_LABEL_KEYS": "none"}
    assert request_of(environment, selector={"env": "prod"}).labels["env"] == "prod"
    with pytest.raises(UnmeetableError, match="the node has env=prod"):
        request_of(environment, selector={"env": "test"})


@pytest.mark.parametrize(
    ("environment", "asked", "words"),
    [
        ({"GCP_NODE_DISK_TYPE": "pd-ssd"}, {}, "GCP_NODE_DISK_TYPE is pd-ssd, but ct6e-standard-4t boots only from"),
        ({"GCP_NODE_SANDBOX": "gvisor"}, {"topology": "4x4", "parallelism": 4}, "single hosts of TPU v4 to v6e"),
        ({"GCP_NODE_SANDBOX": "gvisor"}, {"accelerator": "tpu7x", "topology": "2x2x1"}, "single hosts of TPU v4"),
        ({"GCP_NODE_IMAGE_TYPE": "ubuntu_containerd"}, {"topology": "4x4", "parallelism": 4}, "need cos_containerd"),
        ({"GCP_NODE_TAINTS": "a=b:NoSchedule"}, {"tolerations": ()}, "does not tolerate the taint"),
        (
            {"GCP_NODE_SANDBOX": "gvisor"},
            {"tolerations": (Toleration(key="google.com/tpu", operator="Exists"),)},
            "gvisor",
        ),
    ],
)
def test_setting_that_the_slice_cannot_have_prevents_its_pools(
    environment: dict[str, str], asked: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnmeetableError, match=words):
        request_of(environment, **asked)


def test_selector_of_the_sandbox_requests_it_if_allowed() -> None:
    """Kubernetes adds the selector of the RuntimeClass gvisor to the pods of this class."""
    selector = {constants.SANDBOX_RUNTIME: "gvisor"}
    with pytest.raises(UnmeetableError, match="node-sandbox=gvisor is not among ALLOWED_NODE_SETTINGS"):
        request_of({}, selector=selector)
    made = request_of({"ALLOWED_NODE_SETTINGS": "node-sandbox"}, selector=selector)
    assert body_of(made)["config"]["sandboxConfig"] == {"type": "GVISOR"}
    view = GKE_RULES.expected_node(expected_pool(made))
    assert view.labels[constants.SANDBOX_RUNTIME] == "gvisor"
    assert Taint(key=constants.SANDBOX_RUNTIME, value="gvisor") in view.taints


@pytest.mark.parametrize(
    ("environment", "selected", "kind", "seconds"),
    [
        ({}, "", CapacityKind.ON_DEMAND, 0),
        ({"MAX_RUN_DURATION": "24h"}, "", CapacityKind.ON_DEMAND, 0),
        ({"GCP_NODE_MAX_RUN_DURATION": "240h"}, "", CapacityKind.ON_DEMAND, 864_000),
        ({"GCP_NODE_MAX_RUN_DURATION": "240h"}, "", CapacityKind.SPOT, 864_000),
        ({"GCP_NODE_MAX_RUN_DURATION": "240h"}, "7200", CapacityKind.SPOT, 7200),
        ({"GCP_NODE_MAX_RUN_DURATION": "240h"}, "", CapacityKind.FLEX_START, 604_800),
        ({"GCP_NODE_MAX_RUN_DURATION": "1h", "MAX_RUN_DURATION": "24h"}, "", CapacityKind.FLEX_START, 86_400),
    ],
)
def test_run_duration_applies_to_each_capacity(
    environment: dict[str, str], selected: str, kind: CapacityKind, seconds: int
) -> None:
    selector = {constants.MAX_RUN_SECONDS: selected} if selected else {}
    made = request_of(environment, kind=kind, selector=selector)
    assert made.max_run_seconds == seconds
    assert body_of(made)["config"].get("maxRunDuration") == (f"{seconds}s" if seconds else None)
    assert made.labels.get(constants.MAX_RUN_SECONDS, "") == selected


def test_resource_labels_name_namespace_and_workload_unless_disabled() -> None:
    """Google's bill shows the resource labels of the machines."""
    made = request_of()
    assert body_of(made)["config"]["resourceLabels"] == {"tpu-namespace": "default", "tpu-workload": "train"}
    assert "resourceLabels" not in body_of(request_of({"GCP_NODE_RESOURCE_LABELS": "none"}))["config"]


def test_label_of_a_team_is_written_in_googles_form() -> None:
    """Values of resource labels may not contain upper-case letters or dots."""
    environment = {
        "GCP_NODE_RESOURCE_LABELS": "team={label:team}, x=y, no={label:no}",
        "GCP_POD_TO_NODE_LABELS": "team",
    }
    made = request_of(environment, labels={"team": "A.B_" + "c" * 59})
    assert body_of(made)["config"]["resourceLabels"] == {"team": "a-b_" + "c" * 59, "x": "y"}


@pytest.mark.parametrize("kind", [CapacityKind.ON_DEMAND, CapacityKind.FLEX_START])
def test_no_setting_makes_a_pool_look_auto_provisioned(kind: CapacityKind) -> None:
    """GKE's cluster autoscaler may delete pools that are marked as auto-provisioned."""
    allowed = ", ".join(VALUES)
    values = {name: value for name, value in VALUES.items() if name != "node-image-type"}
    body = body_of(request_of({"ALLOWED_NODE_SETTINGS": allowed}, values, kind))
    assert "autoprovisioned" not in str(body).lower()
    assert ("autoscaling" in body) is (kind is CapacityKind.FLEX_START)


@pytest.mark.parametrize(
    ("made_by", "asks", "taken"),
    [
        pytest.param({}, {}, True, id="both by the settings"),
        pytest.param({"node-disk-size": "500"}, {"node-disk-size": "500"}, True, id="equal choices"),
        pytest.param({}, {"node-disk-size": "500"}, False, id="only the slice chose"),
        pytest.param(
            {"node-service-account": "a@p.iam.gserviceaccount.com"}, {}, False, id="only the pool's slice chose"
        ),
        pytest.param({"node-disk-size": "500"}, {"node-disk-size": "200"}, False, id="other choices"),
    ],
)
def test_free_pool_is_used_only_by_a_slice_with_equal_node_settings(
    made_by: dict[str, str], asks: dict[str, str], *, taken: bool
) -> None:
    own = read_settings(REQUIRED | {"ALLOWED_NODE_SETTINGS": "node-disk-size"})

    def jobset(name: str, chosen: dict[str, str]) -> Any:
        keys = {f"{PREFIX.removesuffix('node-')}{key}": value for key, value in chosen.items()}
        return make_jobset(name, template=make_requirements(annotations=keys))

    world = World(jobset("first", made_by), settings_=own)
    world.live(5)
    (name,) = world.created
    world.remove_jobset(next(iter(world.workloads.values())))
    second = jobset("second", asks)
    world.add(second)
    world.start_pods(second)
    world.live(5)
    assert (world.created == [name]) is taken


def test_changed_settings_do_not_affect_pools_that_are_in_use_or_free() -> None:
    workload = make_jobset("first")
    world = World(workload)
    world.live(5)
    (name,) = world.created
    changes = {"GCP_NODE_DISK_SIZE": "500", "GCP_NODE_LABELS": "a=b", "GCP_NODE_TAINTS": "a=b:NoSchedule"}
    world.settings = read_settings(REQUIRED | changes)
    world.live(200, seconds=30)
    assert (world.created, world.deleted) == ([name], [])
    world.remove_jobset(workload)
    second = make_jobset("second")
    world.add(second)
    world.start_pods(second)
    world.live(5)
    assert (world.created, world.bound(second) > 0) == ([name], True)


@pytest.mark.parametrize(
    ("name", "near"),
    [("GCP_NODE_DISC_SIZE", "GCP_NODE_DISK_SIZE"), ("GCP_NODE_HUGEPAGES", "GCP_NODE_"), ("GCP_NODE_X", "GCP_NODE_")],
)
def test_unknown_node_setting_is_reported_with_the_nearest_name(name: str, near: str) -> None:
    (warning,) = warnings_about_environment({**REQUIRED, name: "x"})
    assert f"{name} is not an option" in warning
    assert f"did you mean {near}" in warning


def test_fit_reads_disk_and_huge_pages_from_a_pool() -> None:
    made = request_of({"GCP_NODE_DISK_SIZE": "250", "GCP_NODE_LINUX_CONFIG": "hugepages-2Mi=2, hugepages-1Gi=3"})
    pool: NodePool = expected_pool(made)
    assert node_fields.boot_disk_gb(pool.node) == 250
    assert node_fields.boot_disk_gb({}) == 100
    assert node_fields.huge_pages_bytes(pool.node) == {"hugepages-2Mi": 4 << 20, "hugepages-1Gi": 3 << 30}


def test_node_options_that_node_groups_do_not_support_are_rejected_if_set() -> None:
    gce = {**REQUIRED, "PROVIDER": "gce", "NODE_GROUP_IMAGES": "*=projects/p/global/images/i"}
    read_settings({**gce, "GCP_NODE_LABELS": "a=b", "GCP_NODE_TAINTS": "a=b:NoSchedule"})
    for variable, value in (
        ("GCP_NODE_DISK_SIZE", "50"),
        ("GCP_NODE_RESOURCE_LABELS", "a=b"),
        ("GCP_NODE_SANDBOX", "gvisor"),
    ):
        assert variable in {option.variable for option in OPTIONS}
        with pytest.raises(SettingsError, match=variable):
            read_settings({**gce, variable: value})
