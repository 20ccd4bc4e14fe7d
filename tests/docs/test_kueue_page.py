"""docs/kueue.md and examples/kueue: what Kueue makes of them leads to the pools, conditions and details of the page."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from provisioner import constants
from provisioner.model.capacity import CapacityKind
from provisioner.model.workloads import Requirements, Workload
from provisioner.settings import OPTIONS
from provisioner.workloads import JOBSET
from provisioner.workloads.asks import parse_pod_template
from tests.docs import shell
from tests.slices.planning.test_asks import Asking
from tests.support.objects import raw_request

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs" / "kueue.md").read_text("utf-8")
_BLOCKS = [list(yaml.safe_load_all(text)) for text in re.findall(r"(?s)```yaml\n(.*?)```", _PAGE)]
_QUEUE = list(yaml.safe_load_all((_ROOT / "examples" / "kueue" / "queue.yaml").read_text("utf-8")))
_FLAVORS: dict[str, Any] = {
    each["metadata"]["name"]: each["spec"] for each in _QUEUE if each["kind"] == "ResourceFlavor"
}
_JOBSETS = ("two-slices", "one-slice")


def _only(kind: str) -> dict[str, Any]:
    (found,) = (each for each in _QUEUE if each["kind"] == kind)
    return found


def _jobset(name: str) -> dict[str, Any]:
    raw: dict[str, Any] = yaml.safe_load((_ROOT / "examples" / "kueue" / f"{name}.yaml").read_text("utf-8"))
    raw["metadata"] |= {"namespace": "default", "uid": f"uid-{name}"}
    return raw


def _asked(name: str, flavor: str = "v6e", **annotations: str) -> tuple[Asking, int, Requirements]:
    """Return a world with the request that Kueue makes for a JobSet, the pods it is for, and their template."""
    (job,) = _jobset(name)["spec"]["replicatedJobs"]
    template, spec = job["template"]["spec"]["template"], _FLAVORS[flavor]
    template["metadata"] = {"annotations": annotations}
    template["spec"]["nodeSelector"] |= spec["nodeLabels"]
    template["spec"]["tolerations"] = spec.get("tolerations", [])
    raw = {"metadata": {"namespace": "default", "name": "template", "uid": "t"}, "template": template}
    pods = job["replicas"] * job["template"]["spec"]["parallelism"]
    world = Asking(raw_request("req", pods))
    world.templates = {("default", "template"): parse_pod_template(raw)}
    world.run(2)
    return world, pods, world.templates["default", "template"]


def _provision(world: Asking) -> None:
    world.finish_creates()
    world.run(3)
    assert "Provisioned" in world.conditions()


def _resumed(name: str, template: Requirements) -> Workload:
    """Return a JobSet as Kueue resumes it: its pods have the annotation, and the flavor's selectors."""
    parsed = JOBSET.parse(_jobset(name))
    assert parsed is not None
    (group,) = parsed.groups
    annotations = {**template.annotations, constants.CONSUMES_REQUEST: "req"}
    return replace(parsed, groups=(replace(group, template=replace(template, annotations=annotations)),))


@pytest.mark.parametrize(
    ("flavor", "capacity"),
    [
        pytest.param("v6e", CapacityKind.ON_DEMAND, id="a flavor that says nothing of the terms"),
        pytest.param("v6e-spot", CapacityKind.SPOT, id="a flavor of spot capacity"),
    ],
)
def test_the_flavors_of_the_example(flavor: str, capacity: CapacityKind) -> None:
    """The provisioner follows the selectors that Kueue adds."""
    world, _, _ = _asked("one-slice", flavor)
    assert [each.capacity for each in world.pools.values()] == [capacity]


@pytest.mark.parametrize(("name", "pods", "slices"), [("two-slices", 8, 2), ("one-slice", 2, 1)])
def test_a_jobset_of_the_example_runs_on_what_was_asked_for(name: str, pods: int, slices: int) -> None:
    world, asked, template = _asked(name)
    assert (asked, len(world.created)) == (pods, slices)
    _provision(world)
    jobset = _resumed(name, template)
    world.add(jobset)
    world.run(2)
    world.schedule()
    world.run(2)
    assert (world.bound(jobset), len(world.created)) == (slices, slices)
    assert "BookingExpired" in world.conditions()


def test_the_objects_of_the_queue_name_each_other() -> None:
    check, config, queue = (_only(kind) for kind in ("AdmissionCheck", "ProvisioningRequestConfig", "ClusterQueue"))
    assert check["spec"] == {
        "controllerName": "kueue.x-k8s.io/provisioning-request",
        "parameters": {
            "apiGroup": "kueue.x-k8s.io",
            "kind": config["kind"],
            "name": config["metadata"]["name"],
        },
    }
    assert config["spec"]["provisioningClassName"] == constants.PROVISIONING_CLASS
    assert config["spec"]["managedResources"] == [constants.TPU_RESOURCE]
    assert queue["spec"]["admissionChecksStrategy"] == {"admissionChecks": [{"name": check["metadata"]["name"]}]}
    (group,) = queue["spec"]["resourceGroups"]
    assert group["coveredResources"] == [constants.TPU_RESOURCE]
    assert [each["name"] for each in group["flavors"]] == list(_FLAVORS)
    local = _only("LocalQueue")
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    labels = [_jobset(name)["metadata"]["labels"] for name in _JOBSETS]
    assert labels == [{"kueue.x-k8s.io/queue-name": local["metadata"]["name"]}] * 2


def test_the_page_shows_what_the_example_has() -> None:
    assert _BLOCKS[0] == [_only("AdmissionCheck"), _only("ProvisioningRequestConfig")]
    files = [
        words for each in shell.shown() if each.page == "docs/kueue.md" for words in re.findall(r"-f (\S+)", each.text)
    ]
    assert files
    assert [each for each in files if not (_ROOT / each).is_file()] == []


def test_the_choices_of_the_page_are_those_of_a_request() -> None:
    (annotations,) = (
        each["metadata"]["annotations"]
        for block in _BLOCKS
        for each in block
        if constants.CAPACITY in each.get("metadata", {}).get("annotations", {})
    )
    world, _, _ = _asked("one-slice", "v6e-spot", **annotations)
    assert [each.capacity for each in world.pools.values()] == [CapacityKind.SPOT]
    world, _, _ = _asked("one-slice", **annotations)
    assert [each.capacity for each in world.pools.values()] == [CapacityKind.RESERVATION]


@pytest.mark.parametrize("name", _JOBSETS)
def test_the_details_of_the_page_are_those_of_a_request(name: str) -> None:
    """And what the page pins pods by is on the nodes."""
    world, _, _ = _asked(name)
    _provision(world)
    details = world.raw["req"]["status"]["provisioningClassDetails"]
    rows = re.findall(r"(?m)^\| `([a-z-]+)` \| (.*?) \|", _PAGE.partition("## Pin pods")[2].partition("\n## ")[0])
    assert {detail for detail, _ in rows} == {*details, "node-pool"}
    (update,) = next(each[0] for each in _BLOCKS if "podSetUpdates" in each[0].get("spec", {}))["spec"][
        "podSetUpdates"
    ]["nodeSelector"]
    uid = details[update["valueFromProvisioningClassDetail"]]
    assert {node.labels[update["key"]] for node in world.nodes.values()} == {uid}


def test_the_conditions_and_the_booking_of_the_page() -> None:
    named = re.findall(r"(?m)^\| `([A-Z]\w+)`", _PAGE)
    ours = (constants.ACCEPTED, constants.PROVISIONED, constants.FAILED, constants.BOOKING_EXPIRED)
    assert {*named} == {*ours, constants.CAPACITY_REVOKED}
    booking = next(each for each in OPTIONS if each.variable == "PROVISIONING_REQUEST_BOOKING").default
    assert f"within `PROVISIONING_REQUEST_BOOKING` ({str(booking).removesuffix('m')} minutes)" in _PAGE


def test_the_topology_of_the_page_is_that_of_node_pools() -> None:
    """One slice of pods on one node pool."""
    (topology,) = (each for block in _BLOCKS for each in block if each.get("kind") == "Topology")
    levels = [each["nodeLabel"] for each in topology["spec"]["levels"]]
    assert levels == [constants.NODE_POOL, "kubernetes.io/hostname"]
    assert f"`topologyName: {topology['metadata']['name']}`" in _PAGE
    assert f"kueue.x-k8s.io/podset-slice-required-topology: {levels[0]}" in _PAGE
